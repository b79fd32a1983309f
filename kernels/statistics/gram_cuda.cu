// Sums of outer products by cuBLAS in fixed chunks of tokens and fixed block rows, accumulating in f32 straight onto
// the output. A Gram matrix is symmetric: only the blocks on and below its diagonal (row-major) are computed, and a
// tiled transposition fills the other half, which also makes both halves equal to the bit.
#include <algorithm>

#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/gram.h"

namespace fewbit::cuda {
namespace {

constexpr int kTile = 32;
constexpr int64_t kStrip = gram_tile(Device::cuda);  // rows of a block row

cudaDataType_t data_type(DType d) {
  FEWBIT_ASSERT(d == DType::f32 || d == DType::bf16);
  return d == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

// d[I, J] += a[tokens, I]^T b[tokens, J], row-major with n columns; I and J are [i0, i1) and [j0, j1).
void add_block(CudaState& s, ConstTensorView a, ConstTensorView b, float* d, int64_t i0, int64_t i1, int64_t j0,
               int64_t j1) {
  const int64_t n = a.cols();
  const float one = 1;
  const auto at = [&](ConstTensorView v, int64_t column) {
    return static_cast<const char*>(v.data) + column * bytes_of(v.dtype);
  };
  FEWBIT_CUBLAS_CALL(cublasGemmEx_64(s.blas, CUBLAS_OP_N, CUBLAS_OP_T, j1 - j0, i1 - i0, a.rows(), &one, at(b, j0),
                                     data_type(b.dtype), n, at(a, i0), data_type(a.dtype), n, &one, d + i0 * n + j0,
                                     CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

// g[i, j] = g[j, i] for i < j.
__global__ void mirror_kernel(float* g, int64_t n) {
  __shared__ float tile[kTile][kTile + 1];
  if (blockIdx.x < blockIdx.y) return;  // x: block column of the destination, y: its block row
  const int64_t j0 = static_cast<int64_t>(blockIdx.x) * kTile, i0 = static_cast<int64_t>(blockIdx.y) * kTile;
  for (int r = threadIdx.y; r < kTile; r += blockDim.y)
    if (j0 + r < n && i0 + threadIdx.x < n) tile[r][threadIdx.x] = g[(j0 + r) * n + i0 + threadIdx.x];
  __syncthreads();
  for (int r = threadIdx.y; r < kTile; r += blockDim.y) {
    const int64_t i = i0 + r, j = j0 + threadIdx.x;
    if (i < j && j < n) g[i * n + j] = tile[threadIdx.x][r];
  }
}

}  // namespace

// The half on and below the diagonal.
void add_gram_half(Exec& ex, ConstTensorView x, TensorView g, RowBand rows) {
  const int64_t n = x.cols();
  FEWBIT_ASSERT(g.rows() == n && g.cols() == n);
  CudaState& s = ex.cuda_state();
  for (int64_t t = 0; t < x.rows(); t += kGramChunk) {
    const ConstTensorView chunk = x.row_range(t, std::min(x.rows(), t + kGramChunk));
    for (int64_t i = rows.begin; i < std::min(n, rows.end); i += kStrip) {
      const int64_t end = std::min(n, i + kStrip);
      add_block(s, chunk, chunk, g.as<float>(), i, end, 0, end);
    }
  }
}

void fill_gram_half(Exec& ex, TensorView g) {
  const int64_t n = g.cols();
  const unsigned tiles = static_cast<unsigned>((n + kTile - 1) / kTile);
  mirror_kernel<<<dim3(tiles, tiles), dim3(kTile, 8), 0, ex.cuda_state().stream>>>(g.as<float>(), n);
  FEWBIT_CUDA_LAUNCHED();
}

void gram(Exec& ex, ConstTensorView x, TensorView g) {
  cuda::add_gram_half(ex, x, g);
  cuda::fill_gram_half(ex, g);
}

void cross_gram(Exec& ex, ConstTensorView a, ConstTensorView b, TensorView d, RowBand rows) {
  const int64_t n = a.cols();
  FEWBIT_ASSERT(a.shape == b.shape && a.dtype == b.dtype && d.rows() == n && d.cols() == n);
  for (int64_t t = 0; t < a.rows(); t += kGramChunk) {
    const int64_t end = std::min(a.rows(), t + kGramChunk);
    for (int64_t i = rows.begin; i < std::min(n, rows.end); i += kStrip)
      add_block(ex.cuda_state(), a.row_range(t, end), b.row_range(t, end), d.as<float>(), i, std::min(n, i + kStrip), 0,
                n);
  }
}

}  // namespace fewbit::cuda

// Sums of outer products by cuBLAS in fixed chunks of tokens and fixed block rows, accumulating in f32 straight onto
// the output. A Gram matrix is symmetric: only the blocks on and below its diagonal (row-major) are computed, and a
// tiled transposition fills the other half, which also makes both halves equal to the bit.
#include <algorithm>

#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/gram.h"
#include "kernels/statistics/gram_lanes.h"

namespace fewbit {

// Lane 0 is the stream of the Exec.
struct CudaLanes {
  static constexpr int kCount = 1 + GramLanes::kBeside;
  ~CudaLanes() {
    if (begin) cudaEventDestroy(begin);
    for (int i = 0; i < GramLanes::kBeside; ++i) {
      if (done[i]) cudaEventDestroy(done[i]);
      if (streams[i]) cudaStreamDestroy(streams[i]);
    }
  }
  CudaLanes() = default;
  CudaLanes(const CudaLanes&) = delete;
  CudaLanes& operator=(const CudaLanes&) = delete;

  cudaStream_t streams[GramLanes::kBeside] = {};
  cudaEvent_t begin = nullptr, done[GramLanes::kBeside] = {};
  Tensor workspaces{};  // [kBeside, bytes] u8
};

namespace cuda {
namespace {

constexpr int kTile = 32;
constexpr int64_t kStrip = gram_tile(Device::cuda);  // rows of a block row
constexpr int64_t kChunk = gram_chunk(Device::cuda);

cudaDataType_t data_type(DType d) {
  FEWBIT_ASSERT(d == DType::f32 || d == DType::bf16);
  return d == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

// d[I, J] += a[tokens, I]^T b[tokens, J], row-major with the columns of b; I and J are [i0, i1) and [j0, j1).
void add_block(CudaState& s, ConstTensorView a, ConstTensorView b, float* d, int64_t i0, int64_t i1, int64_t j0,
               int64_t j1) {
  const int64_t n = b.cols();
  const float one = 1;
  const auto at = [&](ConstTensorView v, int64_t column) {
    return static_cast<const char*>(v.data) + column * bytes_of(v.dtype);
  };
  FEWBIT_CUBLAS_CALL(cublasGemmEx_64(s.blas, CUBLAS_OP_N, CUBLAS_OP_T, j1 - j0, i1 - i0, a.rows(), &one, at(b, j0),
                                     data_type(b.dtype), n, at(a, i0), data_type(a.dtype), a.cols(), &one,
                                     d + i0 * n + j0, CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
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

constexpr int64_t kWideStrip = 4096;  // rows of the cross sums of bf16 that a lane takes at a time

// The handle of products works on one lane or another, and on the Exec's stream again when this goes.
class OnLanes {
 public:
  OnLanes(CudaState& s, const CudaLanes& lanes) : s_(s), lanes_(lanes) {
    FEWBIT_CUDA_CALL(cudaEventRecord(lanes.begin, s.stream));
    for (cudaStream_t lane : lanes.streams) FEWBIT_CUDA_CALL(cudaStreamWaitEvent(lane, lanes.begin, 0));
  }
  // The Exec's stream goes on behind all of them.
  ~OnLanes() {
    for (int i = 0; i < GramLanes::kBeside; ++i) {
      cudaEventRecord(lanes_.done[i], lanes_.streams[i]);
      cudaStreamWaitEvent(s_.stream, lanes_.done[i], 0);
    }
    cublasSetStream(s_.blas, s_.stream);
    cublasSetWorkspace(s_.blas, s_.blas_workspace, CudaState::kBlasWorkspace);
  }
  OnLanes(const OnLanes&) = delete;
  OnLanes& operator=(const OnLanes&) = delete;

  void next() {
    const int lane = at_++ % CudaLanes::kCount;
    void* workspace = lane == 0 ? s_.blas_workspace : lanes_.workspaces.view().row_range(lane - 1, lane).data;
    FEWBIT_CUBLAS_CALL(cublasSetStream(s_.blas, lane == 0 ? s_.stream : lanes_.streams[lane - 1]));
    FEWBIT_CUBLAS_CALL(cublasSetWorkspace(s_.blas, workspace, CudaState::kBlasWorkspace));
  }

 private:
  CudaState& s_;
  const CudaLanes& lanes_;
  int at_ = 0;
};

}  // namespace

std::unique_ptr<CudaLanes, void (*)(CudaLanes*)> make_lanes(Exec& ex) {
  static_assert(GramLanes::kBytes == GramLanes::kBeside * static_cast<int64_t>(CudaState::kBlasWorkspace));
  std::unique_ptr<CudaLanes, void (*)(CudaLanes*)> lanes{new CudaLanes, +[](CudaLanes* l) { delete l; }};
  FEWBIT_CUDA_CALL(cudaSetDevice(ex.cuda_state().device));
  lanes->workspaces = ex.alloc(DType::u8, {GramLanes::kBeside, GramLanes::kBytes / GramLanes::kBeside});
  FEWBIT_CUDA_CALL(cudaEventCreateWithFlags(&lanes->begin, cudaEventDisableTiming));
  for (int i = 0; i < GramLanes::kBeside; ++i) {
    FEWBIT_CUDA_CALL(cudaStreamCreateWithFlags(&lanes->streams[i], cudaStreamNonBlocking));
    FEWBIT_CUDA_CALL(cudaEventCreateWithFlags(&lanes->done[i], cudaEventDisableTiming));
  }
  return lanes;
}

// The longest strips come first, so that the lanes end together. A chunk waits for the one before on every lane.
void add_sums(Exec& ex, CudaLanes& lanes, ConstTensorView x, ConstTensorView x_full, TensorView g, TensorView d,
              RowBand half, RowBand whole) {
  const int64_t n = x.cols(), strip = x.dtype == DType::bf16 ? kWideStrip : kStrip;
  CudaState& s = ex.cuda_state();
  FEWBIT_ASSERT(g.rows() == n && g.cols() == n && (!x_full.data || (x_full.shape == x.shape && d.rows() == n)));
  for (int64_t t = 0; t < x.rows(); t += kChunk) {
    const int64_t end = std::min(x.rows(), t + kChunk);
    const ConstTensorView chunk = x.row_range(t, end);
    OnLanes on(s, lanes);
    for (int64_t i = whole.begin; x_full.data && i < std::min(n, whole.end); i += strip) {
      on.next();
      add_block(s, x_full.row_range(t, end), chunk, d.as<float>(), i, std::min({n, whole.end, i + strip}), 0, n);
    }
    const int64_t last = std::min(n, half.end);
    for (int64_t strips = (last - half.begin + kStrip - 1) / kStrip; strips > 0; --strips) {
      const int64_t i = half.begin + (strips - 1) * kStrip, to = std::min(n, i + kStrip);
      on.next();
      add_block(s, chunk, chunk, g.as<float>(), i, to, 0, to);
    }
  }
}

// The half on and below the diagonal.
void add_gram_half(Exec& ex, ConstTensorView x, TensorView g, RowBand rows) {
  const int64_t n = x.cols();
  FEWBIT_ASSERT(g.rows() == n && g.cols() == n);
  CudaState& s = ex.cuda_state();
  for (int64_t t = 0; t < x.rows(); t += kChunk) {
    const ConstTensorView chunk = x.row_range(t, std::min(x.rows(), t + kChunk));
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
  const int64_t m = a.cols(), n = b.cols();
  FEWBIT_ASSERT(a.rows() == b.rows() && a.dtype == b.dtype && d.rows() == m && d.cols() == n);
  for (int64_t t = 0; t < a.rows(); t += kChunk) {
    const int64_t end = std::min(a.rows(), t + kChunk);
    for (int64_t i = rows.begin; i < std::min(m, rows.end); i += kStrip)
      add_block(ex.cuda_state(), a.row_range(t, end), b.row_range(t, end), d.as<float>(), i, std::min(m, i + kStrip), 0,
                n);
  }
}

}  // namespace cuda
}  // namespace fewbit

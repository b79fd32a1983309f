// Dense products by cuBLAS, sums in f32, never TF32. A row-major matrix is its transpose in column-major
// order, so y = x W^T is asked for as y^T = W x^T and nothing is copied. The bias is laid into y first and
// taken up by the product (beta = 1): bf16 holds it exactly, and y is still rounded once.
#include <algorithm>

#include "kernels/dense.cuh"
#include "kernels/exec_cuda.h"
#include "kernels/gemm.h"
#include "kernels/vec.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <class In, class Out>
__global__ void lay_bias_kernel(const In* __restrict__ bias,  // [out]
                                Out* __restrict__ y,          // [rows, out]
                                int64_t out) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (col < out) y[blockIdx.y * out + col] = from_f32<Out>(to_f32(bias[col]));
}

cudaDataType_t data_type(DType d) { return d == DType::f32 ? CUDA_R_32F : CUDA_R_16BF; }

cublasOperation_t operation(Trans t) { return t == Trans::yes ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

void lay_bias(CudaState& s, ConstTensorView bias, TensorView y) {
  const int64_t out = y.cols();
  for (int64_t row = 0; row < y.rows(); row += 65535) {  // the grid's limit in y
    const TensorView part = y.row_range(row, std::min(y.rows(), row + 65535));
    const dim3 grid(grid_for(out, kThreads), static_cast<unsigned>(part.rows()));
    dispatch_f32_bf16(bias.dtype, [&](auto in) {
      dispatch_f32_bf16(y.dtype, [&](auto type) {
        using In = typename decltype(in)::type;
        using Out = typename decltype(type)::type;
        lay_bias_kernel<<<grid, kThreads, 0, s.stream>>>(bias.as<In>(), part.as<Out>(), out);
      });
    });
    FEWBIT_CUDA_LAUNCHED();
  }
}

void dense_product(CudaState& s, const DenseProduct& p) {
  const float one = 1, beta = p.add ? 1.f : 0.f;
  FEWBIT_CUBLAS_CALL(cublasGemmEx_64(s.blas, CUBLAS_OP_T, CUBLAS_OP_N, p.out, p.rows, p.in, &one, p.w,
                                     data_type(p.in_dtype), p.in, p.x, data_type(p.in_dtype), p.in, &beta,
                                     p.y, data_type(p.y_dtype), p.y_stride, CUBLAS_COMPUTE_32F,
                                     CUBLAS_GEMM_DEFAULT));
}

void gemm(Exec& ex, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  const int64_t rows = x.rows(), out = w.rows();
  FEWBIT_ASSERT(x.dtype == w.dtype && (x.dtype == DType::f32 || x.dtype == DType::bf16));
  FEWBIT_ASSERT(y.dtype == x.dtype || y.dtype == DType::f32);
  if (rows == 0 || out == 0) return;
  FEWBIT_ASSERT(w.cols() == x.cols() && y.rows() == rows && y.cols() == out);
  CudaState& s = ex.cuda_state();
  if (bias.data) {
    FEWBIT_ASSERT(bias.numel() == out && bias.dtype == x.dtype);
    lay_bias(s, bias, y);
  }
  dense_product(s, {.x = x.data,
                    .w = w.data,
                    .y = y.data,
                    .in_dtype = x.dtype,
                    .y_dtype = y.dtype,
                    .rows = rows,
                    .in = x.cols(),
                    .out = out,
                    .y_stride = out,
                    .add = bias.data != nullptr});
}

void matmul(Exec& ex, const MatmulArgs& m) {
  const int64_t inner = m.ta == Trans::no ? m.a.cols : m.a.rows;
  FEWBIT_ASSERT((m.ta == Trans::no ? m.a.rows : m.a.cols) == m.c.rows);
  FEWBIT_ASSERT((m.tb == Trans::no ? m.b.rows : m.b.cols) == inner);
  FEWBIT_ASSERT((m.tb == Trans::no ? m.b.cols : m.b.rows) == m.c.cols);
  if (m.c.rows == 0 || m.c.cols == 0) return;
  FEWBIT_CUBLAS_CALL(cublasSgemm_64(ex.cuda_state().blas, operation(m.tb), operation(m.ta), m.c.cols,
                                    m.c.rows, inner, &m.alpha, m.b.data, m.b.ld, m.a.data, m.a.ld, &m.beta,
                                    m.c.data, m.c.ld));
}

}  // namespace fewbit::cuda

// Dense products: few rows in bf16 by the kernel of skinny.cuh, all others by cuBLAS with f32 sums, never TF32. For
// cuBLAS a row-major matrix is its transpose in column-major order, so y = x W^T is asked for as y^T = W x^T and
// nothing is copied. The bias is laid into y first and added by the product (beta = 1): y holds it exactly, and is
// still rounded once.
#include <algorithm>

#include "kernels/choice/kernel_choice.h"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/dense.cuh"
#include "kernels/products/gemm.h"
#include "kernels/products/skinny_job.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <class In, class Out>
__global__ void lay_bias_kernel(const In* __restrict__ bias,  // [out]
                                Out* __restrict__ y,          // [rows, out]
                                int64_t out, bool add) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (col >= out) return;
  Out& to = y[blockIdx.y * out + col];
  to = from_f32<Out>(to_f32(bias[col]) + (add ? to_f32(to) : 0.f));
}

cudaDataType_t data_type(DType d) { return d == DType::f32 ? CUDA_R_32F : CUDA_R_16BF; }

cublasOperation_t operation(Trans t) { return t == Trans::yes ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

void lay_bias(CudaState& s, ConstTensorView bias, TensorView y, bool add) {
  const int64_t out = y.cols();
  for (int64_t row = 0; row < y.rows(); row += 65535) {  // the limit of gridDim.y
    const TensorView chunk = y.row_range(row, std::min(y.rows(), row + 65535));
    const dim3 grid(grid_for(out, kThreads), static_cast<unsigned>(chunk.rows()));
    dispatch_f32_bf16(bias.dtype, [&](auto in) {
      dispatch_f32_bf16(y.dtype, [&](auto type) {
        using In = typename decltype(in)::type;
        using Out = typename decltype(type)::type;
        lay_bias_kernel<<<grid, kThreads, 0, s.stream>>>(bias.as<In>(), chunk.as<Out>(), out, add);
      });
    });
    FEWBIT_CUDA_LAUNCHED();
  }
}

void dense_product(CudaState& s, const DenseProduct& p) {
  const float one = 1, beta = p.add ? 1.f : 0.f;
  FEWBIT_CUBLAS_CALL(cublasGemmEx_64(s.blas, CUBLAS_OP_T, CUBLAS_OP_N, p.out, p.rows, p.in, &one, p.w,
                                     data_type(p.in_dtype), p.in, p.x, data_type(p.in_dtype), p.in, &beta, p.y,
                                     data_type(p.y_dtype), p.y_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

namespace {

void check_product(ConstTensorView x, const GemmProduct& p) {
  FEWBIT_ASSERT(x.dtype == p.w.dtype && (x.dtype == DType::f32 || x.dtype == DType::bf16));
  FEWBIT_ASSERT(p.y.dtype == x.dtype || p.y.dtype == DType::f32);
  FEWBIT_ASSERT(p.w.cols() == x.cols() && p.y.rows() == x.rows() && p.y.cols() == p.w.rows());
  FEWBIT_ASSERT(!p.bias.data || (p.bias.numel() == p.w.rows() && p.bias.dtype == x.dtype));
}

KernelProblem problem_of(ConstTensorView x, const GemmProduct& p) {
  return {.op = ChoiceOp::dense,
          .x = x.dtype,
          .weight = p.w.dtype,
          .rows = x.rows(),
          .in = x.cols(),
          .out = p.w.rows(),
          .aligned = aligned16(static_cast<const char*>(p.w.data)) && aligned16(static_cast<const char*>(x.data))};
}

void library_product(CudaState& s, ConstTensorView x, const GemmProduct& p) {
  if (p.bias.data) lay_bias(s, p.bias, p.y, p.add);
  dense_product(s, {.x = x.data,
                    .w = p.w.data,
                    .y = p.y.data,
                    .in_dtype = x.dtype,
                    .y_dtype = p.y.dtype,
                    .rows = x.rows(),
                    .in = x.cols(),
                    .out = p.w.rows(),
                    .y_stride = p.w.rows(),
                    .add = p.add || p.bias.data != nullptr});
}

}  // namespace

bool skinny::try_gemms(CudaState& s, ConstTensorView x, const RowNorm* norm, std::span<const GemmProduct> products,
                       bool settled) {
  constexpr skinny::Types kTypes{DType::bf16, DType::bf16};
  if (products.size() > skinny::Job::kWeights) return false;
  if (norm && !skinny::prepares_x(x.rows(), x.cols())) return false;
  skinny::Job job{};
  for (size_t i = 0; i < products.size(); ++i) {
    const GemmProduct& p = products[i];
    if (p.y.dtype != products[0].y.dtype || choose_kernel(problem_of(x, p), s.traits()).kernel != Kernel::skinny)
      return false;
    job.weights[i] = {.w = static_cast<const uint8_t*>(p.w.data),
                      .scales = nullptr,
                      .bias = static_cast<const __nv_bfloat16*>(p.bias.data),
                      .y = p.y.data,
                      .sums = nullptr,
                      .add = p.add,
                      .out = static_cast<int>(p.w.rows()),
                      .end_tile = 0};
  }
  job.x = x.data;
  job.rows = static_cast<int>(x.rows());
  job.in = static_cast<int>(x.cols());
  job.y_f32 = products[0].y.dtype == DType::f32;
  job.settled = settled;
  skinny::set_norm(job, norm);
  skinny::launch_products(s, kTypes, job, static_cast<int>(products.size()), 1);
  return true;
}

void gemms(Exec& ex, ConstTensorView x, std::span<const GemmProduct> products) {
  if (x.rows() == 0) return;
  CudaState& s = ex.cuda_state();
  for (const GemmProduct& p : products) check_product(x, p);
  while (!products.empty()) {
    const std::span<const GemmProduct> run = products.first(std::min<size_t>(products.size(), kGemmsAtOnce));
    products = products.subspan(run.size());
    if (!skinny::try_gemms(s, x, nullptr, run, true))
      for (const GemmProduct& p : run) library_product(s, x, p);
  }
}

void library_gemms(Exec& ex, ConstTensorView x, std::span<const GemmProduct> products) {
  if (x.rows() == 0) return;
  for (const GemmProduct& p : products) {
    check_product(x, p);
    library_product(ex.cuda_state(), x, p);
  }
}

void gemm(Exec& ex, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  const int64_t rows = x.rows(), out = w.rows();
  const GemmProduct product{.w = w, .bias = bias, .y = y};
  if (rows == 0 || out == 0) return;
  check_product(x, product);
  CudaState& s = ex.cuda_state();
  if (!skinny::try_gemms(s, x, nullptr, std::span(&product, 1), false)) library_product(s, x, product);
}

void matmul(Exec& ex, const MatmulArgs& m) {
  const int64_t inner = m.ta == Trans::no ? m.a.cols : m.a.rows;
  FEWBIT_ASSERT((m.ta == Trans::no ? m.a.rows : m.a.cols) == m.c.rows);
  FEWBIT_ASSERT((m.tb == Trans::no ? m.b.rows : m.b.cols) == inner);
  FEWBIT_ASSERT((m.tb == Trans::no ? m.b.cols : m.b.rows) == m.c.cols);
  if (m.c.rows == 0 || m.c.cols == 0) return;
  FEWBIT_CUBLAS_CALL(cublasSgemm_64(ex.cuda_state().blas, operation(m.tb), operation(m.ta), m.c.cols, m.c.rows, inner,
                                    &m.alpha, m.b.data, m.b.ld, m.a.data, m.a.ld, &m.beta, m.c.data, m.c.ld));
}

}  // namespace fewbit::cuda

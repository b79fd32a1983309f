#include "kernels/device/row_product.cuh"

#include <algorithm>
#include <compare>
#include <map>
#include <memory>
#include <mutex>

namespace fewbit::cuda {
namespace {

template <auto kDestroy>
struct Destroyed {
  template <class T>
  void operator()(T* of_library) const {
    (*kDestroy)(of_library);
  }
};
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroyed<&cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroyed<&cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroyed<&cublasLtMatmulPreferenceDestroy>>;

// All that the choice depends on.
struct Problem {
  int device;
  cudaDataType_t type;
  bool transposed;
  int64_t inner, cols, a_ld, b_ld, c_ld;
  uint32_t a_align, b_align, c_align;
  auto operator<=>(const Problem&) const = default;
};

cudaDataType_t sum_type(cudaDataType_t type) { return type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F; }

// Of a row-major matrix: for the library, which is column-major, its transpose.
Layout layout_of(cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld) {
  cublasLtMatrixLayout_t layout = nullptr;
  FEWBIT_CUBLAS_CALL(
      cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(cols), static_cast<uint64_t>(rows), ld));
  return Layout(layout);
}

// A product for the library: row-major C = A B is C^T = B^T A^T column-major.
struct Call {
  Description product{};
  Layout a{}, b{}, c{};

  Call(const RowProduct& p, int64_t rows)
      : a(layout_of(p.type, rows, p.inner, p.a_ld)),
        b(p.transposed ? layout_of(p.type, p.cols, p.inner, p.b_ld) : layout_of(p.type, p.inner, p.cols, p.b_ld)),
        c(layout_of(sum_type(p.type), rows, p.cols, p.c_ld)) {
    const bool wide = p.type == CUDA_R_64F;
    cublasLtMatmulDesc_t made = nullptr;
    FEWBIT_CUBLAS_CALL(
        cublasLtMatmulDescCreate(&made, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, sum_type(p.type)));
    product.reset(made);
    const cublasOperation_t of_b = p.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    FEWBIT_CUBLAS_CALL(cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof of_b));
  }
};

// The largest power of two that divides the address, up to what the library asks about.
uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256u;
  return static_cast<uint32_t>(address & (~address + 1));
}

cublasLtMatmulAlgo_t chosen(CudaState& s, const RowProduct& p, const Problem& problem) {
  const Call call(p, kRowsOfChoice);
  cublasLtMatmulPreference_t made = nullptr;
  FEWBIT_CUBLAS_CALL(cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    FEWBIT_CUBLAS_CALL(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value));
  };
  // Without memory of its own and without a way to reduce, no kernel divides the inner dimension.
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{0});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.b_align);  // the library's A is B
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.a_align);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.c_align);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.c_align);
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  FEWBIT_CUBLAS_CALL(cublasLtMatmulAlgoGetHeuristic(s.blas_lt, call.product.get(), call.b.get(), call.a.get(),
                                                    call.c.get(), call.c.get(), made, 1, &best, &count));
  FEWBIT_CUBLAS_CALL(count > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED);
  return best.algo;
}

// The choice for a problem, asked for once in a process: it takes the library tens of microseconds.
cublasLtMatmulAlgo_t remembered(CudaState& s, const RowProduct& p, const Problem& problem) {
  static std::mutex mutex;
  static std::map<Problem, cublasLtMatmulAlgo_t> known;
  const std::lock_guard lock(mutex);
  const auto at = known.find(problem);
  return at != known.end() ? at->second : known.emplace(problem, chosen(s, p, problem)).first->second;
}

}  // namespace

void row_product(CudaState& s, const RowProduct& p, std::span<const RowFactors> factors) {
  if (p.rows == 0 || p.cols == 0) return;
  Problem problem{.device = s.device,
                  .type = p.type,
                  .transposed = p.transposed,
                  .inner = p.inner,
                  .cols = p.cols,
                  .a_ld = p.a_ld,
                  .b_ld = p.b_ld,
                  .c_ld = p.c_ld,
                  .a_align = 256,
                  .b_align = 256,
                  .c_align = alignment(p.c)};
  for (const RowFactors& f : factors) {
    problem.a_align = std::min(problem.a_align, alignment(f.a));
    problem.b_align = std::min(problem.b_align, alignment(f.b));
  }
  const cublasLtMatmulAlgo_t algorithm = remembered(s, p, problem);
  const Call call(p, p.rows);
  const bool wide = p.type == CUDA_R_64F;
  double beta = p.beta;
  for (const RowFactors& f : factors) {
    const float narrow[] = {static_cast<float>(p.alpha), static_cast<float>(beta)};
    const void* times = wide ? static_cast<const void*>(&p.alpha) : &narrow[0];
    const void* kept = wide ? static_cast<const void*>(&beta) : &narrow[1];
    FEWBIT_CUBLAS_CALL(cublasLtMatmul(s.blas_lt, call.product.get(), times, f.b, call.b.get(), f.a, call.a.get(), kept,
                                      p.c, call.c.get(), p.c, call.c.get(), &algorithm, nullptr, 0, s.stream));
    beta = 1;
  }
}

}  // namespace fewbit::cuda

// The library's product of 8-bit codes: one cuBLASLt call, which leaves raw sums or scales them itself.
#include <compare>
#include <map>
#include <mutex>

#include "kernels/products/bytes/library_product.cuh"
#include "kernels/products/dense.cuh"

namespace fewbit::cuda::byte_product {
namespace {

template <class T>
void set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, T value) {
  FEWBIT_CUBLAS_CALL(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value));
}

// Of a row-major matrix: for the library, which is column-major, its transpose.
cublasLtMatrixLayout_t layout_of(cudaDataType_t type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  FEWBIT_CUBLAS_CALL(
      cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), columns));
  return layout;
}

// All that the library's choice of an algorithm depends on. Asking for it takes tens of microseconds.
struct Problem {
  int device;
  bool scales;
  cudaDataType_t codes, sums;
  int64_t rows, in, out;
  auto operator<=>(const Problem&) const = default;
};
// The algorithm that find() gives, asked once for each problem of a process; nothing where the library has none.
template <class Find>
std::optional<cublasLtMatmulAlgo_t> remembered(const Problem& problem, const Find& find) {
  static std::mutex mutex;
  static std::map<Problem, std::optional<cublasLtMatmulAlgo_t>> known;
  const std::lock_guard lock(mutex);
  const auto at = known.find(problem);
  return at != known.end() ? at->second : known.emplace(problem, find()).first->second;
}

}  // namespace

LibraryProduct::LibraryProduct(CudaState& s, const LibraryTypes& types, const Task& t, bool scales)
    : w_(layout_of(types.codes, t.out, t.in)),
      x_(layout_of(types.codes, t.rows, t.in)),
      y_(layout_of(types.sums, t.rows, t.out)),
      integer_(types.scale == CUDA_R_32I),
      scales_(scales) {
  cublasLtMatmulDesc_t product = nullptr;
  FEWBIT_CUBLAS_CALL(cublasLtMatmulDescCreate(&product, types.compute, types.scale));
  product_.reset(product);
  set(product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);  // as in kernels/products/gemm_cuda.cu: y^T = W x^T
  if (scales) {
    for (const auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
      set(product, mode, static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
    for (const auto pointer : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER})
      set(product, pointer, t.w_scales);  // any pointer: the heuristic wants one, run() sets those of the product
  }
  const Problem problem{s.device, scales, types.codes, types.sums, t.rows, t.in, t.out};
  algorithm_ = remembered(problem, [&]() -> std::optional<cublasLtMatmulAlgo_t> {
    cublasLtMatmulPreference_t preference = nullptr;
    FEWBIT_CUBLAS_CALL(cublasLtMatmulPreferenceCreate(&preference));
    const size_t workspace = CudaState::kBlasWorkspace;
    cublasLtMatmulHeuristicResult_t best{};
    int count = 0;
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                                 &workspace, sizeof workspace);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulAlgoGetHeuristic(s.blas_lt, product, w_.get(), x_.get(), y_.get(), y_.get(), preference, 1,
                                              &best, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    // Libraries that do not know scales by rows and outputs yet call them an invalid value.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (scales && status == CUBLAS_STATUS_INVALID_VALUE)) return std::nullopt;
    FEWBIT_CUBLAS_CALL(status);
    return count > 0 ? std::optional(best.algo) : std::nullopt;
  });
}

LibraryProduct LibraryProduct::raw(CudaState& s, const LibraryTypes& types, const Task& t) {
  return {s, types, t, false};
}

LibraryProduct LibraryProduct::scaled(CudaState& s, const Task& t) {
  LibraryTypes types = kF8Sums;
  if (t.y_dtype == DType::bf16) types.sums = CUDA_R_16BF;
  return {s, types, t, true};
}

void LibraryProduct::run(CudaState& s, const Task& t, void* to) const {
  bool add = false;
  if (scales_) {
    set(product_.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, t.w_scales);
    set(product_.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, t.x_scales);
    if (t.bias)  // laid into y first and added by the product, as in kernels/products/gemm_cuda.cu
      lay_bias(s, {t.bias, t.bias_dtype, {t.out}, {}}, {to, t.y_dtype, {t.rows, t.out}, {}});
    add = t.add || t.bias;
  }
  const int32_t one_i = 1, zero_i = 0;
  const float one_f = 1, beta_f = add ? 1.f : 0.f;
  const void* one = integer_ ? static_cast<const void*>(&one_i) : &one_f;
  const void* beta = integer_ ? static_cast<const void*>(&zero_i) : &beta_f;
  FEWBIT_CUBLAS_CALL(cublasLtMatmul(s.blas_lt, product_.get(), one, t.w, w_.get(), t.x, x_.get(), beta, to, y_.get(),
                                    to, y_.get(), &*algorithm_, s.blas_workspace, CudaState::kBlasWorkspace, s.stream));
}

}  // namespace fewbit::cuda::byte_product

// The library's product of 8-bit codes: one cuBLASLt call that leaves raw sums.
#include "kernels/byte_product.cuh"

namespace fewbit::cuda {
namespace {

// Frees the descriptors of one cuBLASLt call.
struct Descriptors {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  ~Descriptors() {
    if (preference) cublasLtMatmulPreferenceDestroy(preference);
    for (cublasLtMatrixLayout_t layout : {a, b, d})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
    if (product) cublasLtMatmulDescDestroy(product);
  }
};

}  // namespace

bool library_product(CudaState& s, const LibraryTypes& types, const ByteTask& t, void* sums) {
  const auto in = static_cast<uint64_t>(t.in), out = static_cast<uint64_t>(t.out), rows = static_cast<uint64_t>(t.rows);
  Descriptors d;
  FEWBIT_CUBLAS_CALL(cublasLtMatmulDescCreate(&d.product, types.compute, types.scale));
  // As in kernels/gemm_cuda.cu: a row-major matrix is its transpose, so sums^T = W x^T is asked for.
  const cublasOperation_t transposed = CUBLAS_OP_T;
  FEWBIT_CUBLAS_CALL(cublasLtMatmulDescSetAttribute(d.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                    sizeof transposed));
  FEWBIT_CUBLAS_CALL(cublasLtMatrixLayoutCreate(&d.a, types.codes, in, out, t.in));
  FEWBIT_CUBLAS_CALL(cublasLtMatrixLayoutCreate(&d.b, types.codes, in, rows, t.in));
  FEWBIT_CUBLAS_CALL(cublasLtMatrixLayoutCreate(&d.d, types.sums, out, rows, t.out));
  FEWBIT_CUBLAS_CALL(cublasLtMatmulPreferenceCreate(&d.preference));
  const size_t workspace = CudaState::kBlasWorkspace;
  FEWBIT_CUBLAS_CALL(cublasLtMatmulPreferenceSetAttribute(d.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                          &workspace, sizeof workspace));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(s.blas_lt, d.product, d.a, d.b, d.d, d.d,
                                                               d.preference, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) return false;
  FEWBIT_CUBLAS_CALL(status);
  const int32_t one_i = 1, zero_i = 0;
  const float one_f = 1, zero_f = 0;
  const bool integer = types.scale == CUDA_R_32I;
  FEWBIT_CUBLAS_CALL(cublasLtMatmul(s.blas_lt, d.product, integer ? static_cast<const void*>(&one_i) : &one_f, t.w,
                                    d.a, t.x, d.b, integer ? static_cast<const void*>(&zero_i) : &zero_f, sums, d.d,
                                    sums, d.d, &found.algo, s.blas_workspace, workspace, s.stream));
  return true;
}

}  // namespace fewbit::cuda

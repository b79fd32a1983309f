#pragma once
// OpenBLAS for the CPU halves of the ops; only files of kernels/ ending in _cpu.cpp include it. It works on one thread
// always: the threads come from parallel_for over blocks of fixed shape, so that the bits of a result do not depend on
// how many there are. Its library is loaded, not linked, so that it makes no threads of its own (blas_cpu.cpp).
#include <cblas.h>

#include <cstdint>

// LAPACK's Cholesky factorization (column-major): A = U^T U or L L^T. info > 0: the order of the first leading minor
// that is not positive definite.
extern "C" {
void spotrf_(const char* uplo, const int* n, float* a, const int* lda, int* info);
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info);
}

namespace fewbit::blas {

#define FEWBIT_BLAS_FUNCTIONS(X) \
  X(cblas_sgemm)                 \
  X(cblas_dgemm)                 \
  X(cblas_strsm)                 \
  X(cblas_dtrsm)                 \
  X(spotrf_)                     \
  X(dpotrf_)

// What this project calls of the library.
struct Functions {
#define FEWBIT_BLAS_POINTER(name) decltype(&::name) name = nullptr;  // NOLINT: the name that it declares
  FEWBIT_BLAS_FUNCTIONS(FEWBIT_BLAS_POINTER)
#undef FEWBIT_BLAS_POINTER
};

// Loaded by the first call. Error{io} where the machine has no OpenBLAS, Error{memory} where a limit of the process
// does not hold what it maps for each thread that multiplies.
const Functions& functions();

// Every op calls it before its first product: the library is there, on one thread, with the newest kernels that this
// machine can run (an OpenBLAS that does not know the processor takes its oldest ones). Does its work once.
void use_one_thread();

// c [m, n] = alpha op(a) op(b) + beta c, row-major, with k columns of op(a).
inline void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                 int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  functions().cblas_sgemm(CblasRowMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha,
                          a, static_cast<int>(lda), b, static_cast<int>(ldb), beta, c, static_cast<int>(ldc));
}
inline void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a,
                 int64_t lda, const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  functions().cblas_dgemm(CblasRowMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha,
                          a, static_cast<int>(lda), b, static_cast<int>(ldb), beta, c, static_cast<int>(ldc));
}

// b = b op(a)^-1 for a triangular a [n, n] and b [m, n], row-major.
inline void solve_right(CBLAS_UPLO uplo, CBLAS_TRANSPOSE ta, int64_t m, int64_t n, const float* a, int64_t lda,
                        float* b, int64_t ldb) {
  functions().cblas_strsm(CblasRowMajor, CblasRight, uplo, ta, CblasNonUnit, static_cast<int>(m), static_cast<int>(n),
                          1.f, a, static_cast<int>(lda), b, static_cast<int>(ldb));
}
inline void solve_right(CBLAS_UPLO uplo, CBLAS_TRANSPOSE ta, int64_t m, int64_t n, const double* a, int64_t lda,
                        double* b, int64_t ldb) {
  functions().cblas_dtrsm(CblasRowMajor, CblasRight, uplo, ta, CblasNonUnit, static_cast<int>(m), static_cast<int>(n),
                          1., a, static_cast<int>(lda), b, static_cast<int>(ldb));
}

// In-place Cholesky factorization A = L L^T in the lower triangle of a row-major matrix [n, n], which is LAPACK's upper
// one, seen column-major. Returns LAPACK's info: 0, or as above.
inline int potrf_lower(int n, float* a, int lda) {
  int info = 0;
  functions().spotrf_("U", &n, a, &lda, &info);
  return info;
}
inline int potrf_lower(int n, double* a, int lda) {
  int info = 0;
  functions().dpotrf_("U", &n, a, &lda, &info);
  return info;
}

}  // namespace fewbit::blas

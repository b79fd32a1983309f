#pragma once
// cuBLAS, cuBLASLt and cuSOLVER, loaded when the first CUDA Exec is made. A program linked against them would map them
// at every start: a tenth of a second and some 160 MiB of resident memory of runs that compute on the CPU, which would
// not even start where the libraries are not installed.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cusolverDn.h>

// The functions that the CUDA halves call.
#define FEWBIT_CUBLAS_FUNCTIONS(X) \
  X(cublasCreate)                  \
  X(cublasDestroy)                 \
  X(cublasDgemmStridedBatched_64)  \
  X(cublasDtrsm_64)                \
  X(cublasGemmEx_64)               \
  X(cublasGetStatusName)           \
  X(cublasSetMathMode)             \
  X(cublasSetStream)               \
  X(cublasSetWorkspace)            \
  X(cublasSgemmStridedBatched_64)  \
  X(cublasSgemm_64)
#define FEWBIT_CUBLASLT_FUNCTIONS(X)      \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)
#define FEWBIT_CUSOLVER_FUNCTIONS(X) \
  X(cusolverDnCreate)                \
  X(cusolverDnDestroy)               \
  X(cusolverDnDpotrfBatched)         \
  X(cusolverDnDpotrsBatched)         \
  X(cusolverDnSetStream)             \
  X(cusolverDnXpotrf)                \
  X(cusolverDnXpotrf_bufferSize)

namespace fewbit {

// A pointer to each under the function's own name. An unqualified call in this namespace finds the pointer, not the
// function, since a variable ends the lookup; so nothing links against the libraries. A call of a function that the
// lists above lack is a link error with its name.
#define FEWBIT_DECLARE_POINTER(name) extern decltype(&::name) name;
FEWBIT_CUBLAS_FUNCTIONS(FEWBIT_DECLARE_POINTER)
FEWBIT_CUBLASLT_FUNCTIONS(FEWBIT_DECLARE_POINTER)
FEWBIT_CUSOLVER_FUNCTIONS(FEWBIT_DECLARE_POINTER)
#undef FEWBIT_DECLARE_POINTER

// Sets all pointers, once for the process; they are null before. Looks where the loader looks, then in the folder of
// the toolkit that this build was made with. Error{device}, which names the library and what to install, where one is
// missing or lacks a function.
void load_cuda_libraries();

}  // namespace fewbit

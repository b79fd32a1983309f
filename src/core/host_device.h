#pragma once
// FEWBIT_HD: a function of a header that the CPU and, where nvcc compiles it, the GPU run word for word.
#ifdef __CUDACC__
#define FEWBIT_HD __host__ __device__ __forceinline__
#else
#define FEWBIT_HD inline
#endif

#pragma once
// Tensor maps: descriptions of arrays for the copy engine (kernels/device/hopper.cuh).
#include <cuda.h>

#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {

// The driver's function that makes them, found at run time so that nothing links libcuda. Null where the driver is too
// old.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto found = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    FEWBIT_CUDA_CALL(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result));
#else
    FEWBIT_CUDA_CALL(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &result));
#endif
    if (result != cudaDriverEntryPointSuccess) f = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  return found;
}

// Makes one. Sizes and box count values, the innermost dimension first; strides are bytes, of all dimensions but the
// innermost.
template <size_t kRank>
CUtensorMap map_of(CUtensorMapDataType type, const void* data, const cuuint64_t (&sizes)[kRank],
                   const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank], CUtensorMapSwizzle swizzle) {
  CUtensorMap map{};
  static_assert(kRank <= 4);
  const cuuint32_t each[4] = {1, 1, 1, 1};
  const CUresult status = tensor_map_encoder()(&map, type, kRank, const_cast<void*>(data), sizes, strides, box, each,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  FEWBIT_ASSERT(status == CUDA_SUCCESS);
  return map;
}

}  // namespace fewbit::cuda

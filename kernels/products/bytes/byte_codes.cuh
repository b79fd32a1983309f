#pragma once
// Four values to 8-bit codes, packed into a word: those of kernels/products/bytes/quantize_rows.h, bit for bit.
#include <cuda_fp8.h>

#include "kernels/grids/row_grid.h"
#include "kernels/products/bytes/quantize_rows.h"

namespace fewbit::cuda {

// `v`: divided by their scale already; the first one becomes the lowest byte. kF8: E4M3, else int8.
template <bool kF8>
__device__ __forceinline__ uint32_t codes_of(float4 v) {
  if constexpr (kF8) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    const uint32_t low = __nv_cvt_float2_to_fp8x2({v.x, v.y}, __NV_SATFINITE, __NV_E4M3);
    return low | static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2({v.z, v.w}, __NV_SATFINITE, __NV_E4M3)) << 16;
#else
    return f8_code(v.x) | f8_code(v.y) << 8 | f8_code(v.z) << 16 | static_cast<uint32_t>(f8_code(v.w)) << 24;
#endif
  } else {
    const auto byte = [](float x) { return static_cast<uint32_t>(static_cast<int>(int8_level(x))) & 0xffu; };
    return byte(v.x) | byte(v.y) << 8 | byte(v.z) << 16 | byte(v.w) << 24;
  }
}

}  // namespace fewbit::cuda

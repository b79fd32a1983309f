#pragma once
// The types that meet in the products of skinny.cuh: bf16, E4M3 with three kinds of x, int8.
#include <cuda_fp8.h>

#include "kernels/kv_codes.cuh"
#include "kernels/mma.cuh"
#include "kernels/row_grid.h"

namespace fewbit::cuda {

// What a format gives: the type of a sum, the bytes of a value of the weight, of x as codes in memory and of x in shared
// memory, and sums += (16 outputs) x (8 rows) over a step. The words of output g are in `low`, those of output g + 8 in
// `high`, lane = 4 g + t; `x` points to the values that go with them.
struct SkinnyBf16 {
  using Sum = float;
  static constexpr int kBytes = 2, kCodeBytes = 2, kXBytes = 2;
  static __device__ __forceinline__ void multiply(Sum (&sum)[4], uint4 low, uint4 high, const uint8_t* x) {
    const uint4 v = *reinterpret_cast<const uint4*>(x);
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    mma_bf16(sum, first, v.x, v.y);
    mma_bf16(sum, second, v.z, v.w);
  }
  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  }
};
// E4M3 is exact in f16, and so are products of two in f32. x is E4M3 too; the same but standing as f16, which saves a
// third of the conversions and takes twice the room; or f16 from the start: bf16 under a power of two (row_grid.h).
enum class F8Input { codes, widened, unrounded };
template <F8Input kInput>
struct SkinnyF8 {
  using Sum = float;
  static constexpr bool kWide = kInput != F8Input::codes;
  static constexpr int kBytes = 1, kCodeBytes = kInput == F8Input::unrounded ? 2 : 1, kXBytes = kWide ? 2 : 1;
  static __device__ __forceinline__ void multiply(Sum (&sum)[4], uint4 low, uint4 high, const uint8_t* x) {
    const uint4 v = *reinterpret_cast<const uint4*>(x);
    if constexpr (kWide) {
      const uint4 more = *reinterpret_cast<const uint4*>(x + 16);
      multiply(sum, low.x, high.x, v.x, v.y);
      multiply(sum, low.y, high.y, v.z, v.w);
      multiply(sum, low.z, high.z, more.x, more.y);
      multiply(sum, low.w, high.w, more.z, more.w);
    } else {
      multiply(sum, low.x, high.x, two_f16(v.x), two_f16(v.x >> 16));
      multiply(sum, low.y, high.y, two_f16(v.y), two_f16(v.y >> 16));
      multiply(sum, low.z, high.z, two_f16(v.z), two_f16(v.z >> 16));
      multiply(sum, low.w, high.w, two_f16(v.w), two_f16(v.w >> 16));
    }
  }
  static __device__ __forceinline__ void multiply(Sum (&sum)[4], uint32_t low, uint32_t high, uint32_t x0,
                                                  uint32_t x1) {
    const uint32_t a[4] = {two_f16(low), two_f16(high), two_f16(low >> 16), two_f16(high >> 16)};
    mma_f16(sum, a, x0, x1);
  }
  // x of 16 weights to where it stands.
  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    if constexpr (kInput == F8Input::unrounded) {
      *reinterpret_cast<uint4*>(to) = v;
      *reinterpret_cast<uint4*>(to + 16) = *reinterpret_cast<const uint4*>(from + 16);
    } else if constexpr (kWide) {
      *reinterpret_cast<uint4*>(to) = {two_f16(v.x), two_f16(v.x >> 16), two_f16(v.y), two_f16(v.y >> 16)};
      *reinterpret_cast<uint4*>(to + 16) = {two_f16(v.z), two_f16(v.z >> 16), two_f16(v.w),
                                            two_f16(v.w >> 16)};
    } else {
      *reinterpret_cast<uint4*>(to) = v;
    }
  }
  // 8 values, divided by their scale already.
  static __device__ __forceinline__ void put(uint8_t* to, const float (&x)[8]) {
    if constexpr (kInput == F8Input::unrounded) {
      *reinterpret_cast<uint4*>(to) = {pack_f16(x[0], x[1]), pack_f16(x[2], x[3]), pack_f16(x[4], x[5]),
                                       pack_f16(x[6], x[7])};
      return;
    }
    const uint2 v = {codes({x[0], x[1], x[2], x[3]}), codes({x[4], x[5], x[6], x[7]})};
    if constexpr (kWide)
      *reinterpret_cast<uint4*>(to) = {two_f16(v.x), two_f16(v.x >> 16), two_f16(v.y), two_f16(v.y >> 16)};
    else
      *reinterpret_cast<uint2*>(to) = v;
  }
  static __device__ __forceinline__ uint32_t codes(float4 v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    const uint32_t low = __nv_cvt_float2_to_fp8x2({v.x, v.y}, __NV_SATFINITE, __NV_E4M3);
    return low | static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2({v.z, v.w}, __NV_SATFINITE, __NV_E4M3)) << 16;
#else
    return f8_code(v.x) | f8_code(v.y) << 8 | f8_code(v.z) << 16 | static_cast<uint32_t>(f8_code(v.w)) << 24;
#endif
  }
  static __device__ __forceinline__ float scale(float most, float fixed) {
    return kInput == F8Input::unrounded ? f16_row_scale(most) : row_scale(most, fixed, kF8Max);
  }
};
struct SkinnyI8 {
  using Sum = int32_t;
  static constexpr int kBytes = 1, kCodeBytes = 1, kXBytes = 1;
  static __device__ __forceinline__ void multiply(Sum (&sum)[4], uint4 low, uint4 high, const uint8_t* x) {
    const uint4 v = *reinterpret_cast<const uint4*>(x);
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    mma_i8(sum, first, v.x, v.y);
    mma_i8(sum, second, v.z, v.w);
  }
  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  }
  static __device__ __forceinline__ void put(uint8_t* to, const float (&x)[8]) {
    *reinterpret_cast<uint2*>(to) = {codes({x[0], x[1], x[2], x[3]}), codes({x[4], x[5], x[6], x[7]})};
  }
  static __device__ __forceinline__ uint32_t codes(float4 v) {
    const auto byte = [](float x) { return static_cast<uint32_t>(static_cast<int>(int8_level(x))) & 0xffu; };
    return byte(v.x) | byte(v.y) << 8 | byte(v.z) << 16 | byte(v.w) << 24;
  }
  static __device__ __forceinline__ float scale(float most, float fixed) { return row_scale(most, fixed, 127.f); }
};

}  // namespace fewbit::cuda

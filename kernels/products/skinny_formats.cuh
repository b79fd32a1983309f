#pragma once
// How the kernel of skinny.cuh multiplies each pair of types: bf16, int8, and E4M3 with three kinds of x.
#include "kernels/device/kv_codes.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/products/bytes/byte_codes.cuh"

namespace fewbit::cuda::skinny {

// A format gives
//   Sum         the type of a sum
//   kBytes      bytes of a value of the weight
//   kCodeBytes  bytes of a value of x as codes in memory
//   kXBytes     bytes of a value of x in shared memory
//   multiply    sums += (16 outputs) x (8 rows of x) over a step of k. With lane = 4 g + t, `low` holds values of
//               output g, `high` those of output g + 8, and `x` points to the values of x that go with them
//   copy        x of 16 bytes of weight from codes in memory to shared memory
//   put         8 values of x, divided by their scale already, to shared memory as codes (formats of one byte)
//   scale       of a row of x whose largest magnitude is `most` (the same)

// Weights and x of one type, which `kMma` multiplies as they lie: two products a step.
template <class S, int kValueBytes, void (*kMma)(S (&)[4], const uint32_t (&)[4], uint32_t, uint32_t)>
struct SameType {
  using Sum = S;
  static constexpr int kBytes = kValueBytes, kCodeBytes = kValueBytes, kXBytes = kValueBytes;
  static __device__ __forceinline__ void multiply(Sum (&sum)[4], uint4 low, uint4 high, const uint8_t* x) {
    const uint4 v = *reinterpret_cast<const uint4*>(x);
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
    kMma(sum, first, v.x, v.y);
    kMma(sum, second, v.z, v.w);
  }
  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  }
};
struct Bf16Format : SameType<float, 2, mma_bf16> {};
// What x is in a product with E4M3 weights.
enum class F8Input {
  codes,      // E4M3
  widened,    // E4M3 that lies as f16 in shared memory: a third fewer conversions, twice the room
  unrounded,  // f16 from the start: bf16 under a power of two (f16_row_scale() of kernels/grids/row_grid.h)
};
// E4M3 weights become f16, which holds them exactly; products of two such values are exact in f32.
template <F8Input kInput>
struct F8Format {
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
  static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    if constexpr (kInput == F8Input::unrounded) {
      *reinterpret_cast<uint4*>(to) = v;
      *reinterpret_cast<uint4*>(to + 16) = *reinterpret_cast<const uint4*>(from + 16);
    } else if constexpr (kWide) {
      *reinterpret_cast<uint4*>(to) = {two_f16(v.x), two_f16(v.x >> 16), two_f16(v.y), two_f16(v.y >> 16)};
      *reinterpret_cast<uint4*>(to + 16) = {two_f16(v.z), two_f16(v.z >> 16), two_f16(v.w), two_f16(v.w >> 16)};
    } else {
      *reinterpret_cast<uint4*>(to) = v;
    }
  }
  static __device__ __forceinline__ void put(uint8_t* to, const float (&x)[8]) {
    if constexpr (kInput == F8Input::unrounded) {
      *reinterpret_cast<uint4*>(to) = {pack_f16(x[0], x[1]), pack_f16(x[2], x[3]), pack_f16(x[4], x[5]),
                                       pack_f16(x[6], x[7])};
      return;
    }
    const uint2 v = {codes_of<true>({x[0], x[1], x[2], x[3]}), codes_of<true>({x[4], x[5], x[6], x[7]})};
    if constexpr (kWide)
      *reinterpret_cast<uint4*>(to) = {two_f16(v.x), two_f16(v.x >> 16), two_f16(v.y), two_f16(v.y >> 16)};
    else
      *reinterpret_cast<uint2*>(to) = v;
  }
  static __device__ __forceinline__ float scale(float most, float fixed) {
    return kInput == F8Input::unrounded ? f16_row_scale(most) : row_scale(most, fixed, kF8Max);
  }
};
struct I8Format : SameType<int32_t, 1, mma_i8> {
  static __device__ __forceinline__ void put(uint8_t* to, const float (&x)[8]) {
    *reinterpret_cast<uint2*>(to) = {codes_of<false>({x[0], x[1], x[2], x[3]}),
                                     codes_of<false>({x[4], x[5], x[6], x[7]})};
  }
  static __device__ __forceinline__ float scale(float most, float fixed) { return row_scale(most, fixed, 127.f); }
};

}  // namespace fewbit::cuda::skinny

#pragma once
// The types that meet in the products of skinny.cuh: bf16, E4M3 with three kinds of x, int8.
#include "kernels/attention/kv_codes.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/products/bytes/byte_codes.cuh"

namespace fewbit::cuda {

// What a format gives: the type of a sum, the bytes of a value of the weight, of x as codes in memory and of x in
// shared memory, and sums += (16 outputs) x (8 rows) over a step. The words of output g are in `low`, those of output g
// + 8 in `high`, lane = 4 g + t; `x` points to the values that go with them.

// Those that `kMma` multiplies as weights and x lie: two products a step.
template <class S, int kValueBytes, void (*kMma)(S (&)[4], const uint32_t (&)[4], uint32_t, uint32_t)>
struct SkinnyAsIs {
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
struct SkinnyBf16 : SkinnyAsIs<float, 2, mma_bf16> {};
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
      *reinterpret_cast<uint4*>(to + 16) = {two_f16(v.z), two_f16(v.z >> 16), two_f16(v.w), two_f16(v.w >> 16)};
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
struct SkinnyI8 : SkinnyAsIs<int32_t, 1, mma_i8> {
  static __device__ __forceinline__ void put(uint8_t* to, const float (&x)[8]) {
    *reinterpret_cast<uint2*>(to) = {codes_of<false>({x[0], x[1], x[2], x[3]}),
                                     codes_of<false>({x[4], x[5], x[6], x[7]})};
  }
  static __device__ __forceinline__ float scale(float most, float fixed) { return row_scale(most, fixed, 127.f); }
};

}  // namespace fewbit::cuda

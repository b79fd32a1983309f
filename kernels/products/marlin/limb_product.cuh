#pragma once
// Products of one row of x with 4-bit Marlin words on the int8 tensor cores: exact in integers, with hardly an
// instruction a weight.
//
// The words are the operand as they lie. A byte of a word is low + 16 high, where low and high are the codes of one
// output at two values of k, from the lower and the upper half of a k-tile; one mask leaves 16 high. So, with x as
// integers X,
//   16 (low X_low + high X_high) = (low + 16 high) * 16 X_low + 16 high * (X_high - 16 X_low)
// and x needs the two factors 16 X_low and X_high - 16 X_low. Each is written in base 256 with limbs of -128 .. 127,
// and each limb takes a column of the product of its own: one row of x leaves the columns idle otherwise. Bytes 0 and 2
// of a word belong to output g of a sub-tile, bytes 1 and 3 to output g + 8 (marlin_fragment.h): columns of even number
// hold limbs where the former are, those of odd number where the latter are, and zeros elsewhere. Three limbs hold 17
// times a value of 18 bits and a sign.
#include "kernels/device/mma.cuh"
#include "kernels/device/powers.cuh"
#include "kernels/products/marlin/marlin_fragment.h"

namespace fewbit::cuda {

inline constexpr int kLimbs = 3;
inline constexpr int kLimbBits = 18;    // of |X|, at most: 17 * 2^18 < 127 * 256^2
inline constexpr int kLimbGroup = 128;  // values of k with a common power of two
inline constexpr int kGroupTiles = kLimbGroup / marlin::kTileK;
inline constexpr int kGroupLimbBytes = kLimbs * 4 * 4 * kGroupTiles;  // [tiles / 4, limb, t, tiles % 4] words
// Sums begin near this integer. Its bits are those of the f32 1.5 * 2^23, where steps are one, so a sum's bits read as
// f32 need no conversion. Sums stay within 2^22 of it: 64 products each of up to 255 * 128 and 240 * 128, and 2^16 for
// what code - 8 takes off.
inline constexpr int kOffset = 0x4b400000;

// The offset in bytes of a word of a k-tile within the limbs of its group. The word of t belongs to k 2t, 2t+1, 2t+8
// and 2t+9: the pair of the first factor in the lower half, that of the second in the upper half.
__device__ __forceinline__ constexpr int limb_word_at(int tile, int limb, int t) {
  return ((tile / 4 * kLimbs + limb) * 4 + t) * 16 + tile % 4 * 4;
}

// The limbs of v in bytes 0 .. 2, each in two's complement.
__device__ __forceinline__ uint32_t limbs_of(int32_t v) { return (static_cast<uint32_t>(v) + 0x808080u) ^ 0x808080u; }

// The words of limbs of two pairs of values, from the lower and the upper half of a tile.
__device__ __forceinline__ void limb_words(uint32_t (&words)[kLimbs], const int32_t (&low)[2],
                                           const int32_t (&high)[2]) {
  uint32_t first[2], second[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    first[i] = limbs_of(16 * low[i]);
    second[i] = limbs_of(high[i] - 16 * low[i]);
  }
  const uint32_t firsts = __byte_perm(first[0], first[1], 0x5140), seconds = __byte_perm(second[0], second[1], 0x5140);
  words[0] = __byte_perm(firsts, seconds, 0x5410);
  words[1] = __byte_perm(firsts, seconds, 0x7632);
  words[2] = __byte_perm(__byte_perm(first[0], first[1], 0x0062), __byte_perm(second[0], second[1], 0x0062), 0x5410);
}

// What a group of x means for its sums: they start with start[limb] and are multiplied by scale * 256^limb in the end.
struct LimbGroup {
  int32_t start[kLimbs];
  float scale;

  // `sum` is that of the group's X = x * 2^up. Weights are code - 8, and the 8 is taken off here. Not finite: NaN.
  __device__ __forceinline__ void set(int sum, int up, bool finite) {
    // 16 * 8 * sum in base 256.
    const int top = (sum + 256) >> 9, rest = sum - 512 * top;
    start[0] = kOffset - 128 * (rest & 1);
    start[1] = kOffset - (rest >> 1);
    start[2] = kOffset - top;
    scale = finite ? power_of_two(-up - 4) : __uint_as_float(0x7fc00000u);
  }
};
// The exponent of the power of two by which values of up to `most` fill kLimbBits bits.
__device__ __forceinline__ int limb_power(float most) { return power_to_bits(most, kLimbBits); }

// A lane's part of the product: a column of the second operand, and one limb of the sums.
struct LimbLane {
  int offset;             // of its words of tile 0 within a group's limbs, in bytes
  uint32_t lower, upper;  // selectors for __byte_perm: the bytes of a word in the operand's two registers
  int t;

  __device__ __forceinline__ explicit LimbLane(int lane) : t(lane % 4) {
    const int column = lane / 4, limb = column / 2;
    offset = limb_word_at(0, min(limb, kLimbs - 1), t);
    lower = limb >= kLimbs ? 0x4444u : column % 2 == 0 ? 0x4140u : 0x1404u;
    upper = limb >= kLimbs ? 0x4444u : column % 2 == 0 ? 0x4342u : 0x3424u;
  }
  // Adds a tile's products to sums[i / 4][i % 4] of the lane's limb t; index i is that of marlin::fragment_scale().
  __device__ __forceinline__ void add_tile(int32_t (&sums)[2][4], const uint4& words, uint32_t limbs) const {
    add_words(sums, words, __byte_perm(limbs, 0, lower), __byte_perm(limbs, 0, upper));
  }
  static __device__ __forceinline__ void add_words(int32_t (&sums)[2][4], const uint4& words, uint32_t b0,
                                                   uint32_t b1) {
    constexpr uint32_t kHigh = 0xf0f0f0f0u;
    const uint32_t a[2][4] = {{words.x, words.y, words.x & kHigh, words.y & kHigh},
                              {words.z, words.w, words.z & kHigh, words.w & kHigh}};
    mma_u8(sums[0], a[0], b0, b1);
    mma_u8(sums[1], a[1], b0, b1);
  }
  __device__ __forceinline__ int32_t start(const LimbGroup& group) const {
    return reinterpret_cast<const int32_t*>(&group)[t];  // of the fourth lane: any, gather() drops its sums
  }
  static __device__ __forceinline__ float value(int32_t sum) { return __int_as_float(sum) - __int_as_float(kOffset); }
  // Adds up each lane's totals by limb: lane t of four ends with those of index 2 t and 2 t + 1.
  __device__ __forceinline__ float2 gather(const float (&total)[8]) const {
    const float weight = t == 0 ? 1.f : t == 1 ? 256.f : t == 2 ? 65536.f : 0.f;
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = total[i] * weight, high = total[i + 4] * weight;
      four[i] = (t & 2 ? high : low) + __shfl_xor_sync(0xffffffffu, t & 2 ? low : high, 2);
    }
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      two[i] = (t & 1 ? four[i + 2] : four[i]) + __shfl_xor_sync(0xffffffffu, t & 1 ? four[i] : four[i + 2], 1);
    return {two[0], two[1]};
  }
};

}  // namespace fewbit::cuda

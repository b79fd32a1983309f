#pragma once
// Products of one row of x with 4-bit Marlin words by the int8 tensor cores, exact in integers, with hardly an
// instruction a weight. The words are the operand as they lie: a byte of a word is
//   low + 16 high,   low and high the codes of one output at two values of k (lower and upper half of a k-tile),
// and one mask leaves 16 high. So, with x as integers X,
//   16 (low X_low + high X_high) = (low + 16 high) * 16 X_low + 16 high * (X_high - 16 X_low),
// and the two factors of x are written in base 256 with digits -128 .. 127, each digit in a column of its own: one row
// of x leaves the columns of the product idle otherwise. Bytes 0 and 2 of a word belong to output g of a sub-tile,
// bytes 1 and 3 to output g + 8 (kernels/products/marlin/marlin_fragment.h): columns of even number meet the former,
// those of odd number the latter, and zeros the rest. Three digits hold 17 times a value of 18 bits and a sign.
#include "kernels/device/mma.cuh"
#include "kernels/device/powers.cuh"
#include "kernels/products/marlin/marlin_fragment.h"

namespace fewbit::cuda {

inline constexpr int kDigits = 3;
inline constexpr int kDigitBits = 18;    // of |X|, at most
inline constexpr int kDigitGroup = 128;  // values of k with a common power of two
inline constexpr int kGroupTiles = kDigitGroup / marlin::kTileK;
inline constexpr int kGroupDigitBytes = kDigits * 4 * 4 * kGroupTiles;  // [tiles / 4, digit, t, tiles % 4] words
// Sums begin about this integer, which as an f32 is 1.5 * 2^23, whose steps are one: read as f32 they need no
// conversion. They stay within 2^22 of it: 64 values each of 255 * 128 and 240 * 128 in magnitude, and 2^16 for what
// codes - 8 take off.
inline constexpr int kOffset = 0x4b400000;

// Where the word of a k-tile stands in its group's digits: of t (k 2t, 2t+1 and 2t+8, 2t+9), the pair of the first
// factor in the lower half, that of the second in the upper.
__device__ __forceinline__ constexpr int digit_word_at(int tile, int digit, int t) {
  return ((tile / 4 * kDigits + digit) * 4 + t) * 16 + tile % 4 * 4;
}

// Digits of v in the bytes 0 .. 2, each in two's complement.
__device__ __forceinline__ uint32_t digits_of(int32_t v) { return (static_cast<uint32_t>(v) + 0x808080u) ^ 0x808080u; }

// Digit words of two pairs of values, of the lower and the upper half of a tile.
__device__ __forceinline__ void digit_words(uint32_t (&words)[kDigits], const int32_t (&low)[2],
                                            const int32_t (&high)[2]) {
  uint32_t first[2], second[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    first[i] = digits_of(16 * low[i]);
    second[i] = digits_of(high[i] - 16 * low[i]);
  }
  const uint32_t firsts = __byte_perm(first[0], first[1], 0x5140), seconds = __byte_perm(second[0], second[1], 0x5140);
  words[0] = __byte_perm(firsts, seconds, 0x5410);
  words[1] = __byte_perm(firsts, seconds, 0x7632);
  words[2] = __byte_perm(__byte_perm(first[0], first[1], 0x0062), __byte_perm(second[0], second[1], 0x0062), 0x5410);
}

// What a group of x brings to its sums: they begin with start[digit] and are to be multiplied by scale * 256^digit.
struct DigitGroup {
  int32_t start[kDigits];
  float scale;

  // `sum` over the group's X, which are x * 2^up; codes mean code - 8. NaN where x is not finite.
  __device__ __forceinline__ void set(int sum, int up, bool finite) {
    // 16 * 8 * sum, in base 256.
    const int top = (sum + 256) >> 9, rest = sum - 512 * top;
    start[0] = kOffset - 128 * (rest & 1);
    start[1] = kOffset - (rest >> 1);
    start[2] = kOffset - top;
    scale = finite ? power_of_two(-up - 4) : __uint_as_float(0x7fc00000u);
  }
};
// The power of two that brings values up to `most` to kDigitBits bits.
__device__ __forceinline__ int digit_power(float most) { return power_to_bits(most, kDigitBits); }

// How a lane takes part: its column of the product's second operand, its digit of the sums.
struct DigitLane {
  int offset;             // of its words in a group's digits, tile 0
  uint32_t lower, upper;  // which bytes of a word go where, in the two registers of the operand
  int t;

  __device__ __forceinline__ explicit DigitLane(int lane) : t(lane % 4) {
    const int column = lane / 4, digit = column / 2;
    offset = digit_word_at(0, min(digit, kDigits - 1), t);
    lower = digit >= kDigits ? 0x4444u : column % 2 == 0 ? 0x4140u : 0x1404u;
    upper = digit >= kDigits ? 0x4444u : column % 2 == 0 ? 0x4342u : 0x3424u;
  }
  // Adds a tile's products; sums[i / 4][i % 4], index i as in marlin::fragment_scale(), of the lane's digit t.
  __device__ __forceinline__ void add_tile(int32_t (&sums)[2][4], const uint4& words, uint32_t digits) const {
    add_words(sums, words, __byte_perm(digits, 0, lower), __byte_perm(digits, 0, upper));
  }
  static __device__ __forceinline__ void add_words(int32_t (&sums)[2][4], const uint4& words, uint32_t b0,
                                                   uint32_t b1) {
    constexpr uint32_t kHigh = 0xf0f0f0f0u;
    const uint32_t a[2][4] = {{words.x, words.y, words.x & kHigh, words.y & kHigh},
                              {words.z, words.w, words.z & kHigh, words.w & kHigh}};
    mma_u8(sums[0], a[0], b0, b1);
    mma_u8(sums[1], a[1], b0, b1);
  }
  __device__ __forceinline__ int32_t start(const DigitGroup& group) const {
    return reinterpret_cast<const int32_t*>(&group)[t];  // the fourth lane's sums count nothing
  }
  static __device__ __forceinline__ float value(int32_t sum) { return __int_as_float(sum) - __int_as_float(kOffset); }
  // From each lane's totals by digit: lane t of four ends with those of index 2 t and 2 t + 1.
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

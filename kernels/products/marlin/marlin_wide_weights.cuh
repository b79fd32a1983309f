#pragma once
// A consumer lane of marlin_wide.cuh: which weights it has, and how its words become the operand of wgmma in registers.
#include "kernels/products/marlin/marlin_wide_job.cuh"

namespace fewbit::cuda::marlin_wide {

#ifdef FEWBIT_SM90A

// A consumer lane's part of the block's tile. The 64 outputs of a k-tile lie as four sub-tiles of 16 with one word a
// lane each (two of 8 bits, one for each eight rows of the operand), of which a warp takes kOperands. Which ones
// depends on the lane, so that a read of 4 bits touches all banks of shared memory; of 8 bits it takes two turns.
template <class S>
struct Lane {
  static constexpr int kWarps = 4 / S::kOperands;  // that share 64 outputs
  int lane, group, warp;                           // the warpgroup is `group`, `warp` is within it
  int chunk;                                       // which 64 outputs among the block's
  int sub;                                         // the first of its sub-tiles

  __device__ __forceinline__ Lane() {
    lane = threadIdx.x % 32;
    warp = threadIdx.x / 32 % 4;
    group = threadIdx.x / 128;
    chunk = S::kChunks / 2 * group + warp / kWarps;
    sub = S::kOperands * ((warp ^ lane / 8) % kWarps);
  }
  // Where its words of a k-tile begin, in bytes.
  __device__ __forceinline__ int words_begin() const {
    return chunk * S::kChunkBytes + lane * 4 * S::kBits + sub * S::kBits;
  }
  // The output, counted within the block's tile, in row 8 r + lane / 4 of the warp's m-th operand.
  __device__ __forceinline__ int output(int m, int r) const {
    return marlin::kTileN * chunk + 16 * (sub + m) + 8 * r + lane / 4;
  }
};

// Turns a lane's words into weights, (code - zero) * scale rounded once to bf16. It keeps the scales and zero points of
// the lane's outputs, each twice side by side for instructions on pairs.
//
// 4 bits with zero points: 0x4300 | code is 128 + code as bf16; that less 128 + zero is exact, and its product with the
// scale is rounded.
//
// Without zero points one instruction is enough. Bits 0 to 7 of a bf16 whose other bits are zero count in units of
// 2^-133 (as a subnormal, and past the smallest normal number too). So a code of 4 bits at bit 0 or 4 reads as code *
// 2^-133 or code * 2^-129, one of 8 bits as code * 2^-133, and code * scale - middle * scale is one multiply-add with
// one rounding, the middle (8 or 128) times the scale being exact. 8 bits with zero points: the difference of two such
// numbers is exact, and its product with the scale is rounded. Scales up to 2^16 times 2^133 are too large for a bf16,
// so the weights are left 2^kWeightExponent times as large, and the epilogue multiplies the sums by the inverse.
constexpr int kWeightExponent = -22;  // 2^16 * 2^(133 - 22) is 2^127, the largest power of two of a bf16
template <class S>
struct Dequantizer {
  static constexpr bool kSmall = S::kBits == 8 || !S::kZeros;  // codes are read in units of 2^-133
  static constexpr int kExponent = kSmall ? kWeightExponent : 0;
  static constexpr int kScales = S::kBits == 4 && !S::kZeros ? 2 : 1, kWords = S::kBits / 4;  // words of an operand
  uint32_t scale[S::kOperands][2][kScales], zero[S::kOperands][2];  // [operand][upper eight rows of it][code at bit 4]

  // Reads the scales and zero points of a group from these addresses of shared memory.
  __device__ __forceinline__ void read(uint32_t scales_at, uint32_t zeros_at, const Lane<S>& l) {
    uint32_t pairs[S::kOperands];
    load_shared_words(pairs, scales_at);
#pragma unroll
    for (int m = 0; m < S::kOperands; ++m) set_scales(pairs[m], m);
    if constexpr (S::kZeros) set_zeros(zeros_at, l);
  }
  // `pair`: the two f16 scales of an operand's outputs.
  __device__ __forceinline__ void set_scales(uint32_t pair, int m) {
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    const uint32_t both[2] = {pack_bf16(v.x, v.x), pack_bf16(v.y, v.y)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      scale[m][r][0] = kSmall ? times(both[r], power_of_two(133 + kWeightExponent)) : both[r];
      if constexpr (kScales == 2) scale[m][r][1] = times(both[r], power_of_two(129 + kWeightExponent));
      if constexpr (!S::kZeros) zero[m][r] = times(both[r], power_of_two(S::kBits - 1 + kWeightExponent) | 0x80008000u);
    }
  }
  // `at`: address in shared memory of the zero points of eight outputs, the lane's among them.
  __device__ __forceinline__ void set_zeros(uint32_t at, const Lane<S>& l) {
    uint32_t words[kWords];
    load_shared_words(words, at);
#pragma unroll
    for (int m = 0; m < S::kOperands; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int j = l.sub + m;
        if constexpr (S::kBits == 4)
          zero[m][r] = (0x4300u | (words[0] >> 4 * (j + 4 * r) & 15u)) * 0x10001u;
        else
          zero[m][r] = ((j < 2 ? words[0] : words[1]) >> 8 * (j % 2 + 2 * r) & 255u) * 0x10001u;
      }
  }
  // The weights of eight codes, in the lane's words of a k-tile, as its m-th operand, times 2^kExponent.
  __device__ __forceinline__ void operand(uint32_t (&a)[4], const uint32_t (&words)[S::kOperands * kWords],
                                          int m) const {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const int bit = S::kBits * marlin::fragment_field(reg, S::kBits), r = reg % 2;
      const uint32_t word = words[m * kWords + r % kWords];
      const auto scaled = [&](uint32_t pair) {  // after its zero point is taken off
        return bits_of(__hmul2(as_pair(bits_of(__hsub2(as_pair(pair), as_pair(zero[m][r])))), as_pair(scale[m][r][0])));
      };
      if constexpr (S::kBits == 8) {
        const uint32_t pair = bit == 0 ? word & 0x00ff00ffu : __byte_perm(word, 0, 0x4341);  // bytes 1 and 3
        a[reg] =
            S::kZeros ? scaled(pair) : bits_of(__hfma2(as_pair(pair), as_pair(scale[m][r][0]), as_pair(zero[m][r])));
      } else if constexpr (S::kZeros) {
        a[reg] = scaled(merge_masked(word >> bit, 0x000f000fu, 0x43004300u));
      } else {
        const uint32_t pair = word >> bit / 8 * 8 & 0x000f000fu << bit % 8;
        a[reg] = bits_of(__hfma2(as_pair(pair), as_pair(scale[m][r][bit % 8 / 4]), as_pair(zero[m][r])));
      }
    }
  }

 private:
  __device__ __forceinline__ static __nv_bfloat162 as_pair(const uint32_t& v) {
    return *reinterpret_cast<const __nv_bfloat162*>(&v);
  }
  __device__ __forceinline__ static uint32_t bits_of(__nv_bfloat162 v) {
    return *reinterpret_cast<const uint32_t*>(&v);
  }
  // 2^exponent as bf16, twice side by side.
  __device__ __forceinline__ static constexpr uint32_t power_of_two(int exponent) {
    return static_cast<uint32_t>(127 + exponent) << 7 | static_cast<uint32_t>(127 + exponent) << 23;
  }
  __device__ __forceinline__ static uint32_t times(uint32_t pair, uint32_t power) {
    return bits_of(__hmul2(as_pair(pair), as_pair(power)));
  }
};

#endif  // FEWBIT_SM90A

}  // namespace fewbit::cuda::marlin_wide

#pragma once
// A consumer lane of marlin_wide.cuh: which weights it has, and how its words become the operand of wgmma in registers.
#include "kernels/products/marlin/marlin_wide_job.cuh"

namespace fewbit::cuda::marlin_wide {

#ifdef FEWBIT_SM90A

// A consumer lane's part of the block's tile. The 64 outputs of a k-tile lie as four sub-tiles of 16 with one word a
// lane each, of which a warp takes kOperands. Which ones depends on the lane, so that a read touches all banks of
// shared memory.
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
  // The output, counted within the block's tile, in row 8 r + lane / 4 of the warp's m-th operand.
  __device__ __forceinline__ int output(int m, int r) const {
    return marlin::kTileN * chunk + 16 * (sub + m) + 8 * r + lane / 4;
  }
};

// Turns a lane's words into weights, (code - zero) * scale rounded once to bf16. It keeps the scales and zero points of
// the lane's outputs, each twice side by side for instructions on pairs.
//
// With zero points: 0x4300 | code is 128 + code as bf16; that less 128 + zero is exact, and its product with the scale
// is rounded.
//
// Without zero points one instruction is enough. Bits 0 to 7 of a bf16 whose other bits are zero count in units of
// 2^-133 (as a subnormal, and past the smallest normal number too). So a code at bit 0 or 4 reads as code * 2^-133 or
// code * 2^-129, and code * scale - 8 * scale is one multiply-add with one rounding, 8 * scale being exact. Scales up
// to 2^16 times 2^133 are too large for a bf16, so the weights are left 2^kWeightExponent times as large, and the
// epilogue multiplies the sums by the inverse.
constexpr int kWeightExponent = -22;  // 2^16 * 2^(133 - 22) is 2^127, the largest power of two of a bf16
template <class S>
struct Dequantizer {
  static constexpr int kScales = S::kZeros ? 1 : 2;
  uint32_t scale[S::kOperands][2][kScales], zero[S::kOperands][2];  // [operand][upper eight rows of it][code at bit 4]

  // `pair`: the two f16 scales of an operand's outputs.
  __device__ __forceinline__ void set_scales(uint32_t pair, int m) {
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    const uint32_t both[2] = {pack_bf16(v.x, v.x), pack_bf16(v.y, v.y)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (S::kZeros) {
        scale[m][r][0] = both[r];
      } else {
        scale[m][r][0] = times(both[r], power_of_two(133 + kWeightExponent));
        scale[m][r][1] = times(both[r], power_of_two(129 + kWeightExponent));
        zero[m][r] = times(both[r], power_of_two(3 + kWeightExponent) | 0x80008000u);
      }
    }
  }
  // `word`: the zero points of eight outputs, the lane's among them.
  __device__ __forceinline__ void set_zeros(uint32_t word, const Lane<S>& l) {
#pragma unroll
    for (int m = 0; m < S::kOperands; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) zero[m][r] = (0x4300u | (word >> 4 * (l.sub + m + 4 * r) & 15u)) * 0x10001u;
  }
  // The weights of a word's eight codes as an operand; without zero points times 2^kWeightExponent.
  __device__ __forceinline__ void operand(uint32_t (&a)[4], uint32_t word, int m) const {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const int bit = 4 * marlin::fragment_field(reg, 4), r = reg % 2;
      if constexpr (S::kZeros) {
        const uint32_t pair = merge_masked(word >> bit, 0x000f000fu, 0x43004300u);
        a[reg] =
            bits_of(__hmul2(as_pair(bits_of(__hsub2(as_pair(pair), as_pair(zero[m][r])))), as_pair(scale[m][r][0])));
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

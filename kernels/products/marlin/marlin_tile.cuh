#pragma once
// A Marlin weight on the device, and its words as bf16 fragments in registers. Every conversion is exact: codes, zero
// points and their differences have at most eight significant bits.
#include "kernels/device/mma.cuh"
#include "kernels/products/marlin/marlin_fragment.h"

namespace fewbit {
struct MarlinView;
}
namespace fewbit::cuda {

struct MarlinSource {
  const uint32_t* b;  // [in / 16, out * 16 * bits / 32]
  const __half* s;    // [G, out], permuted
  const uint32_t* z;  // [G, out * bits / 32] or null
  int out, in;
  int group_tiles;  // k-tiles of a group: 2, 4, 8; 0 where one group spans the row
  __host__ __device__ bool grouped() const { return group_tiles > 0; }
  __host__ __device__ int k_tiles() const { return in / marlin::kTileK; }
  // log2 of the k-tiles of a group; 30, so that every k-tile is in group 0, where one group spans the row.
  int group_shift() const { return group_tiles == 8 ? 3 : group_tiles == 4 ? 2 : group_tiles == 2 ? 1 : 30; }
};

MarlinSource source_of(const MarlinView&);  // checks shapes, dtypes and alignment (marlin_gemm_cuda.cu)

// The zero points of a lane's eight outputs, in the form that fragment() subtracts
//   4 bits   a pair of bf16, 128 + zero each
//   8 bits   an f32, 2^23 + zero
template <int kBits>
struct LaneZeros {
  uint32_t v[8];

  __device__ __forceinline__ void set(int index, uint32_t zero) {
    v[index] = kBits == 4 ? (0x4300u | zero) * 0x10001u : 0x4b000000u | zero;
  }
  __device__ __forceinline__ void set_middle() {
#pragma unroll
    for (int i = 0; i < 8; ++i) set(i, 1u << (kBits - 1));
  }
  // `words`: the zero points of a chunk of 64 outputs (marlin::fragment_zero_word).
  __device__ __forceinline__ void set_words(const uint32_t* words, int lane) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = words[marlin::fragment_zero_word(lane, i, kBits)];
      set(i, word >> (kBits * marlin::fragment_zero_field(i, kBits)) & ((1u << kBits) - 1));
    }
  }
};

// value & mask | bits in one instruction; the compiler alone takes two where mask and bits are constants.
__device__ __forceinline__ uint32_t merge_masked(uint32_t value, uint32_t mask, uint32_t bits) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(value), "r"(mask), "r"(bits));
  return r;
}

// The lowest four bits as a number, by way of the fraction of an f32 of 2^23.
__device__ __forceinline__ float small_integer(uint32_t bits) {
  return __uint_as_float(merge_masked(bits, 0xfu, 0x4b000000u)) - 8388608.f;
}

// The registers of the weight operand of sub-tile j: code - zero as bf16. `words`: the lane's words of the tile.
template <int kBits>
__device__ __forceinline__ void fragment(uint32_t (&a)[4], const uint32_t (&words)[kBits], int j,
                                         const LaneZeros<kBits>& zeros) {
#pragma unroll
  for (int reg = 0; reg < 4; ++reg) {
    const uint32_t word = words[marlin::fragment_word(j, reg, kBits)], zero = zeros.v[2 * j + reg % 2];
    if constexpr (kBits == 4) {
      // A bf16 of exponent 2^7 has steps of one, so 0x4300 | code is 128 + code. One mask takes the low and the high
      // half.
      uint32_t pair = merge_masked(word >> (4 * marlin::fragment_field(reg, 4)), 0x000f000fu, 0x43004300u);
      const __nv_bfloat162 value =
          __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&pair), *reinterpret_cast<const __nv_bfloat162*>(&zero));
      a[reg] = *reinterpret_cast<const uint32_t*>(&value);
    } else {
      // An f32 of exponent 2^23 has steps of one. The difference has at most eight significant bits, so the upper half
      // of its f32 is its bf16.
      const uint32_t low = __byte_perm(word, 0x4b000000u, 0x7440 + marlin::fragment_field(reg, 8));
      const uint32_t high = __byte_perm(word, 0x4b000000u, 0x7440 + marlin::fragment_high_field(reg, 8));
      const float base = __uint_as_float(zero);
      a[reg] = __byte_perm(__float_as_uint(__uint_as_float(low) - base), __float_as_uint(__uint_as_float(high) - base),
                           0x7632);
    }
  }
}

// The lane's eight scales for a chunk of 64 outputs of a weight with one group.
__device__ __forceinline__ void lane_scales_one_group(__half (&scales)[8], const MarlinSource& w, int chunk, int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) scales[i] = w.s[chunk * marlin::kTileN + marlin::fragment_scale(lane, i, false)];
}

}  // namespace fewbit::cuda

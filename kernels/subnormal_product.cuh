#pragma once
// Up to 16 rows of x times 4-bit Marlin words by mma.m16n8k16, the codes as they lie: masked out of their words they are subnormals.
// The weights are the row operand; kColumns, 1 or 2, columns of the other hold eight rows of x each.
#include "kernels/marlin_fragment.h"
#include "kernels/mma.cuh"

namespace fewbit::cuda {

// The codes as f16 subnormals, with the fewest instructions: bits 0 to 10 of an f16 count in steps of 2^-24, past the smallest
// normal number too. So registers 0 and 1 are 2^-24 * code, and 2 and 3, the upper eight of a k-tile's values, 2^-20 * code:
// the caller divides those activations by 16. As bf16, bits 0 to 7 of which count in steps of 2^-133: 2^-133 and 2^-129 * code.
inline constexpr float kSubnormalScale = 16777216.f;  // 2^24
__device__ __forceinline__ void subnormal_fragment(uint32_t (&a)[4], uint32_t word) {
  const uint32_t down = word >> 8;
  a[0] = word & 0x000f000fu;
  a[1] = down & 0x000f000fu;
  a[2] = word & 0x00f000f0u;
  a[3] = down & 0x00f000f0u;
}

// The offset that this lane gives to ldmatrix, rows of x `row_bytes` apart: of 16 rows and a k-tile, or of 8 and two. Past the last
// row it is the last: a column of the product depends on its own activations only, and those are not stored.
template <int kColumns>
__device__ __forceinline__ int subnormal_x_offset(int lane, int rows, int row_bytes) {
  const int row = lane % 8 + (kColumns == 2 ? lane / 16 * 8 : 0);
  return min(row, rows - 1) * row_bytes + (kColumns == 2 ? lane / 8 % 2 : lane / 8) * 16;
}

// part[sub-tile][column] += the lane's words of k-tile `tile` times what ldmatrix read: of one column, the tile and its neighbour.
template <auto kMma, int kColumns>
__device__ __forceinline__ void add_subnormal_tile(float (&part)[marlin::kSubTiles][kColumns][4], const uint4& words, int tile,
                                                   const uint32_t (&x)[4]) {
  const uint32_t of_tile[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int j = 0; j < marlin::kSubTiles; ++j) {
    uint32_t a[4];
    subnormal_fragment(a, of_tile[j]);
    if constexpr (kColumns == 2) {
      kMma(part[j][0], a, x[0], x[1]);
      kMma(part[j][1], a, x[2], x[3]);
    } else {
      kMma(part[j][0], a, x[tile % 2 * 2], x[tile % 2 * 2 + 1]);
    }
  }
}

// The same with codes that are all 1: the sums of x, of a k-tile or, of one column, of two.
template <auto kMma, int kColumns>
__device__ __forceinline__ void add_subnormal_ones(float (&sum)[kColumns][4], const uint32_t (&x)[4]) {
  const uint32_t ones[4] = {0x00010001u, 0x00010001u, 0x00100010u, 0x00100010u};
  kMma(sum[0], ones, x[0], x[1]);
  kMma(sum[kColumns - 1], ones, x[2], x[3]);
}

}  // namespace fewbit::cuda

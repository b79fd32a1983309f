#pragma once
// Up to 16 rows of x times 4-bit Marlin words by mma.m16n8k16, the codes as they lie: masked out of their words they
// are subnormals. The weights are the row operand; kColumns, 1 or 2, columns of the other hold eight rows of x each.
#include "kernels/device/mma.cuh"
#include "kernels/products/marlin/marlin_fragment.h"

namespace fewbit::cuda {

// The codes as bf16 subnormals, with the fewest instructions: bits 0 to 7 of a bf16 count in steps of 2^-133, past the
// smallest normal number too. So registers 0 and 1 are 2^-133 * code, and 2 and 3, the upper eight of a k-tile's
// values, 2^-129 * code. Activations are multiplied by kRaise and kRaiseUpper, so that products are normal, and sums by
// kLower in the end: exact for activations from 2^-57 to 2^63.
inline constexpr float kRaise = 0x1p64f, kRaiseUpper = 0x1p60f, kLower = 0x1p69f;
__device__ __forceinline__ void subnormal_fragment(uint32_t (&a)[4], uint32_t word) {
  const uint32_t down = word >> 8;
  a[0] = word & 0x000f000fu;
  a[1] = down & 0x000f000fu;
  a[2] = word & 0x00f000f0u;
  a[3] = down & 0x00f000f0u;
}

// Eight values of k of a row, the lower or the upper of a k-tile, as the codes want them.
__device__ __forceinline__ uint4 raised(uint4 v, bool lower) {
  const __nv_bfloat162 power = __float2bfloat162_rn(lower ? kRaise : kRaiseUpper);
  for (uint32_t* pair : {&v.x, &v.y, &v.z, &v.w}) {
    const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(pair), power);
    *pair = *reinterpret_cast<const uint32_t*>(&product);
  }
  return v;
}

// The offset that this lane gives to ldmatrix, rows of x `row_bytes` apart: of 16 rows and a k-tile, or of 8 and two.
// Past the last row it is the last: a column of the product depends on its own activations only, and those are not
// stored.
template <int kColumns>
__device__ __forceinline__ int subnormal_x_offset(int lane, int rows, int row_bytes) {
  const int row = lane % 8 + (kColumns == 2 ? lane / 16 * 8 : 0);
  return min(row, rows - 1) * row_bytes + (kColumns == 2 ? lane / 8 % 2 : lane / 8) * 16;
}

// part[i][column] += words[i] times what ldmatrix read of k-tile `tile`: of one column, the tile and its neighbour.
template <int kWords, int kColumns>
__device__ __forceinline__ void add_subnormal_words(float (&part)[kWords][kColumns][4], const uint32_t (&words)[kWords],
                                                    int tile, const uint32_t (&x)[4]) {
#pragma unroll
  for (int j = 0; j < kWords; ++j) {
    uint32_t a[4];
    subnormal_fragment(a, words[j]);
    if constexpr (kColumns == 2) {
      mma_bf16(part[j][0], a, x[0], x[1]);
      mma_bf16(part[j][1], a, x[2], x[3]);
    } else {
      mma_bf16(part[j][0], a, x[tile % 2 * 2], x[tile % 2 * 2 + 1]);
    }
  }
}

// The same with codes that are all 1: the sums of x, of a k-tile or, of one column, of two.
template <int kColumns>
__device__ __forceinline__ void add_subnormal_ones(float (&sum)[kColumns][4], const uint32_t (&x)[4]) {
  const uint32_t ones[4] = {0x00010001u, 0x00010001u, 0x00100010u, 0x00100010u};
  mma_bf16(sum[0], ones, x[0], x[1]);
  mma_bf16(sum[kColumns - 1], ones, x[2], x[3]);
}

}  // namespace fewbit::cuda

#pragma once
// Products of up to 16 rows of x with 4-bit Marlin words by mma.m16n8k16, where the codes are used as they lie: masked
// out of their words they are bf16 subnormals. The weights are the row operand; kColumns, 1 or 2, column operands hold
// eight rows of x each.
#include "kernels/device/mma.cuh"
#include "kernels/products/marlin/marlin_fragment.h"

namespace fewbit::cuda {

// Bits 0 to 7 of a bf16 whose other bits are zero count in steps of 2^-133 (as a subnormal, and past the smallest
// normal number too). A mask is thus all it takes to make codes operands: registers 0 and 1 are 2^-133 * code;
// registers 2 and 3, for the upper eight values of a k-tile, are 2^-129 * code. Activations are multiplied by kPrescale
// and kPrescaleUpper before, so that products are normal numbers, and sums by kUnscale afterwards. That is exact for
// activations from 2^-57 to 2^63 in magnitude.
inline constexpr float kPrescale = 0x1p64f, kPrescaleUpper = 0x1p60f, kUnscale = 0x1p69f;
__device__ __forceinline__ void subnormal_fragment(uint32_t (&a)[4], uint32_t word) {
  const uint32_t down = word >> 8;
  a[0] = word & 0x000f000fu;
  a[1] = down & 0x000f000fu;
  a[2] = word & 0x00f000f0u;
  a[3] = down & 0x00f000f0u;
}

// Eight values of a row of x, the lower or the upper half of a k-tile, multiplied by kPrescale or kPrescaleUpper.
__device__ __forceinline__ uint4 prescaled(uint4 v, bool lower) {
  const __nv_bfloat162 power = __float2bfloat162_rn(lower ? kPrescale : kPrescaleUpper);
  for (uint32_t* pair : {&v.x, &v.y, &v.z, &v.w}) {
    const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(pair), power);
    *pair = *reinterpret_cast<const uint32_t*>(&product);
  }
  return v;
}

// The offset in bytes that this lane gives to ldmatrix, for rows of x that are `row_bytes` apart: two columns read 16
// rows of one k-tile, one column 8 rows of two. Lanes past the last row repeat it, which is harmless: a column of the
// product depends on its own activations only, and these columns are not stored.
template <int kColumns>
__device__ __forceinline__ int subnormal_x_offset(int lane, int rows, int row_bytes) {
  const int row = lane % 8 + (kColumns == 2 ? lane / 16 * 8 : 0);
  return min(row, rows - 1) * row_bytes + (kColumns == 2 ? lane / 8 % 2 : lane / 8) * 16;
}

// part[i][column] += words[i] times x, as ldmatrix read it for k-tile `tile` (with one column: for a pair of tiles).
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

// The same with codes that are all 1, which gives the sums of x: of a k-tile, or with one column of two.
template <int kColumns>
__device__ __forceinline__ void add_subnormal_ones(float (&sum)[kColumns][4], const uint32_t (&x)[4]) {
  const uint32_t ones[4] = {0x00010001u, 0x00010001u, 0x00100010u, 0x00100010u};
  mma_bf16(sum[0], ones, x[0], x[1]);
  mma_bf16(sum[kColumns - 1], ones, x[2], x[3]);
}

}  // namespace fewbit::cuda

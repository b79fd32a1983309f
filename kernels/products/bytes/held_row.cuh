#pragma once
// A row of bf16 values that the threads of a block hold in registers on its way to 8-bit codes: the phases that the
// kernels which make codes have in common.
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/grids/row_grid.h"

namespace fewbit::cuda {

inline constexpr int kHeldValues = 8;  // of a unit: 16 bytes of bf16, one load of a thread
using HeldUnit = Vec<__nv_bfloat16, kHeldValues>;

// `for_units(f)` calls f(unit, its first column, its number in this thread) for the units of the row that this thread
// holds: t, t + threads, ... of thread t. All threads of the block call these functions; `partial`: shared memory for
// 32 values.

// The row, of `in` values, becomes rms_norm (kernels/model/norm.h) of itself. A block of 512 threads adds in the order
// of that op's kernel for rows wider than 1,024 values: there the bits are the same. Each value is rounded to bf16.
template <class ForUnits>
__device__ __forceinline__ void norm_held_row(const ForUnits& for_units, const __nv_bfloat16* weight, int in, float eps,
                                              float offset, float* partial) {
  float squares = 0;
  for_units([&](HeldUnit& unit, int, int) {
#pragma unroll
    for (int i = 0; i < kHeldValues; ++i) squares = fmaf(to_f32(unit[i]), to_f32(unit[i]), squares);
  });
  const float inverse = 1.f / sqrtf(block_sum(squares, partial) / static_cast<float>(in) + eps);
  for_units([&](HeldUnit& unit, int c, int) {
    const auto w = load_vec<__nv_bfloat16, kHeldValues>(weight + c);
#pragma unroll
    for (int i = 0; i < kHeldValues; ++i)
      unit[i] = from_f32<__nv_bfloat16>(to_f32(unit[i]) * inverse * (to_f32(w[i]) + offset));
  });
}

// The largest magnitude of the row, for every thread; NaN where the row holds one.
template <class ForUnits>
__device__ __forceinline__ float largest_magnitude(const ForUnits& for_units, float* partial) {
  float most = 0;
  for_units([&](HeldUnit& unit, int, int) {
#pragma unroll
    for (int i = 0; i < kHeldValues; ++i) most = larger_abs(most, to_f32(unit[i]));
  });
  return block_reduce(
      most, [](float a, float b) { return larger_abs(a, b); }, 0.f, partial);
}

}  // namespace fewbit::cuda

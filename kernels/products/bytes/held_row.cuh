#pragma once
// A row of bf16 values that the threads of a block hold in registers while it is normed and its largest magnitude
// found: the phases that the kernels which turn rows into 8-bit codes have in common.
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/grids/row_grid.h"

namespace fewbit::cuda {

inline constexpr int kHeldValues = 8;  // of a unit: 16 bytes of bf16, one load of a thread

// Room for kUnits units a thread. Thread t of kThreads holds the units t, t + kThreads, ... of the row; `in` (values of
// the row) is a multiple of kHeldValues. Every function is called by all threads of the block; `partial`: shared memory
// for 32 values.
template <int kThreads, int kUnits>
struct HeldRow {
  using Unit = Vec<__nv_bfloat16, kHeldValues>;
  Unit units[kUnits];
  int in;

  // Calls f(unit, its first column, its number in this thread) for the units of this thread that the row has.
  template <class F>
  __device__ __forceinline__ void for_units(F&& f) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      if (const int c = kHeldValues * (static_cast<int>(threadIdx.x) + u * kThreads); c < in) f(units[u], c, u);
  }
  __device__ __forceinline__ void load(const __nv_bfloat16* x) {
    for_units([&](Unit& unit, int c, int) { unit = load_vec<__nv_bfloat16, kHeldValues>(x + c); });
  }
  // The row becomes rms_norm (kernels/model/norm.h) of itself, bit for bit: the threads add in the order of that op's
  // kernel for wide rows, and each value is rounded to bf16.
  __device__ __forceinline__ void norm(const __nv_bfloat16* weight, float eps, float offset, float* partial) {
    float squares = 0;
    for_units([&](Unit& unit, int, int) {
#pragma unroll
      for (int i = 0; i < kHeldValues; ++i) squares = fmaf(to_f32(unit[i]), to_f32(unit[i]), squares);
    });
    const float inverse = 1.f / sqrtf(block_sum(squares, partial) / static_cast<float>(in) + eps);
    for_units([&](Unit& unit, int c, int) {
      const auto w = load_vec<__nv_bfloat16, kHeldValues>(weight + c);
#pragma unroll
      for (int i = 0; i < kHeldValues; ++i)
        unit[i] = from_f32<__nv_bfloat16>(to_f32(unit[i]) * inverse * (to_f32(w[i]) + offset));
    });
  }
  // The largest magnitude of the row, for every thread; NaN where the row holds one.
  __device__ __forceinline__ float largest_magnitude(float* partial) {
    float most = 0;
    for_units([&](Unit& unit, int, int) {
#pragma unroll
      for (int i = 0; i < kHeldValues; ++i) most = larger_abs(most, to_f32(unit[i]));
    });
    return block_reduce(
        most, [](float a, float b) { return larger_abs(a, b); }, 0.f, partial);
  }
};

}  // namespace fewbit::cuda

#pragma once
// Scales and levels of the rows of an activation in 8 bits, in one text for the CPU and CUDA halves.
#include "kernels/grids/f8_grid.h"

namespace fewbit {

inline constexpr float kLeastRowScale = 1e-30f;  // far above f32's least: 1 / scale stays finite

// The larger of `most` and |x|; NaN if either is one.
FEWBIT_HD float larger_abs(float most, float x) {
  const float a = std::fabs(x);
  return a > most || a != a ? a : most;
}

// The scale of a row whose largest magnitude is `most` (NaN where the row holds one): `fixed` where that is positive,
// else most / top with `top` the largest level. NaN and infinity stay what they are, so that they can be seen in y.
FEWBIT_HD float row_scale(float most, float fixed, float top) {
  if (!(most <= 3.402823466e38f)) return most;
  if (fixed > 0) return fixed;
  if (most == 0) return 1;
  const float scale = most / top;
  return scale < kLeastRowScale ? kLeastRowScale : scale;
}

// The power of two that scales the largest magnitude of a row into [2^14, 2^15): f16 then holds the row's bf16 values
// exactly down to 2^-31 of the largest.
FEWBIT_HD float f16_row_scale(float most) {
  if (!(most <= 3.402823466e38f)) return most;
  if (most == 0) return 1;
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(most) >> 23) - 14;
  return std::bit_cast<float>(static_cast<uint32_t>(exponent > 1 ? exponent : 1) << 23);
}

// The int8 level of a value divided by its scale; 0 of a NaN.
FEWBIT_HD float int8_level(float scaled) {
  const float level = round_even(clamp_to(scaled, -128.f, 127.f));
  return level == level ? level : 0.f;
}

}  // namespace fewbit

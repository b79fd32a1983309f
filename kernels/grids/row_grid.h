#pragma once
// Scales and levels of the rows of an activation in 8 bits, and of its groups in 4, in one text for the CPU and CUDA
// halves.
#include "kernels/grids/f8_grid.h"
#include "kernels/grids/fp4_grid.h"

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

// What the levels of a row reach: so many hundredths of its largest magnitude.
FEWBIT_HD float reached(float most, int hundredths) {
  return hundredths == 100 ? most : mul_rn(most, static_cast<float>(hundredths) / 100.f);
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

// The same of an int4 level, and the number of its steps that the largest magnitude of a row takes.
inline constexpr float kInt4Steps = 7.5f;
FEWBIT_HD float int4_level(float scaled) {
  const float level = round_even(clamp_to(scaled, -8.f, 7.f));
  return level == level ? level : 0.f;
}

// The scale of a group of E2M1 codes whose largest magnitude is `most`. E4M3 under `fixed` (NVFP4): the nearest code to
// most / 6, which may be 0. E8M0 (MXFP4): the power of two of compressed-tensors 0.17, max|x| / scale in [3.5, 7), not
// below 2^-126. NaN and infinity stay what they are.
FEWBIT_HD float fp4_group_scale(float most, float fixed, DType scales) {
  if (!(most <= 3.402823466e38f)) return most;
  if (scales == DType::f8_e4m3) return mul_rn(f8_round(most / mul_rn(6.f, fixed)), fixed);
  const uint32_t exponent = (std::bit_cast<uint32_t>(most) + 0x00200000u) >> 23;  // one more from 1.75 * 2^e on
  return std::bit_cast<float>((exponent > 3 ? exponent - 2 : 1u) << 23);
}

// The value of x as an E2M1 code under a scale; 0 under the scale 0.
FEWBIT_HD float fp4_value(float x, float scale) {
  return scale == 0 ? 0.f : mul_rn(e2m1_value(e2m1_code(x / scale)), scale);
}

}  // namespace fewbit

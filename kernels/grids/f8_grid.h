#pragma once
// Arithmetic of the E4M3 grid (Micikevicius et al., "FP8 Formats for Deep Learning", 2022) in one text for the CPU and
// CUDA halves: rounding, codes, values. Plain operations on floats and their bits, so that the compiler can vectorise
// them.
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/grids/integer_grid.h"

namespace fewbit {

inline constexpr float kF8Max = 448.f;  // the largest value: 1.75 * 2^8

// The nearest E4M3 value, ties to even, saturating at +-448; a NaN stays one.
FEWBIT_HD float f8_round(float x) {
  const float a = clamp_to(x, -kF8Max, kF8Max);
  // From 2^-6 on (normal numbers) three bits of the mantissa stay. Below, the steps are 2^-9, and next to 1.5 * 2^14 an
  // f32 has no bits for less.
  const uint32_t u = std::bit_cast<uint32_t>(a);
  const float normal = std::bit_cast<float>((u + 0x7ffffu + ((u >> 20) & 1u)) & 0xfff00000u);
  const float small = add_rn(add_rn(a, 24576.f), -24576.f);
  const float rounded = (u & 0x7fffffffu) < 0x3c800000u ? small : normal;
  return x == x ? rounded : x;
}

// The code of f8_round(x); 0x7f with the sign for a NaN.
FEWBIT_HD uint8_t f8_code(float x) {
  const uint32_t sign = (std::bit_cast<uint32_t>(x) >> 24) & 0x80u;
  const float value = std::fabs(f8_round(x));
  const uint32_t normal = (std::bit_cast<uint32_t>(value) >> 20) - (120u << 3);  // the bias goes from 127 to 7
  const uint32_t small = static_cast<uint32_t>(static_cast<int>(value * 512.f));
  const uint32_t magnitude = value < 0.015625f ? small : normal;
  return static_cast<uint8_t>(sign | (x == x ? magnitude : 0x7fu));
}

// The value of a code: its bits in the place of an f32's, times 2^120 for the difference of the biases (127 - 7).
FEWBIT_HD float f8_value(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float value = mul_rn(std::bit_cast<float>(magnitude << 20), 1.329227995784916e36f);  // 2^120
  const float number = magnitude == 0x7fu ? NAN : value;
  return code & 0x80u ? -number : number;
}

}  // namespace fewbit

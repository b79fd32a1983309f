#pragma once
// Arithmetic of 4-bit floats (E2M1; OCP Microscaling Formats, version 1.0) in one text for the CPU and CUDA halves: the
// candidates for a group's scale, the codes and their error.
#include <bit>

#include "kernels/grids/integer_grid.h"

namespace fewbit {

// The E2M1 code (sign in bit 3) nearest to x; ties go to the even code.
FEWBIT_HD uint8_t e2m1_code(float x) {
  const float a = fabsf(x);
  const int index = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.f);
  return static_cast<uint8_t>(index | (x < 0 ? 8 : 0));
}

// 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
FEWBIT_HD float e2m1_value(uint8_t code) {
  const int m = code & 7;
  const float a = m < 4 ? 0.5f * static_cast<float>(m) : m == 7 ? 6.f : static_cast<float>(m - 2);
  return code & 8 ? -a : a;
}

// The value of a positive scale's code: E4M3 (NVFP4), codes 1 to 126; E8M0 (MXFP4), 2^(code - 127), codes 0 to 254.
FEWBIT_HD float scale_value(int code, DType dtype) {
  if (dtype == DType::f8_e8m0) return std::bit_cast<float>(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
  const auto m = static_cast<float>(code & 7);
  if (code < 8) return m * 0x1p-9f;
  return (8.f + m) * std::bit_cast<float>(static_cast<uint32_t>((code >> 3) + 117) << 23);
}

FEWBIT_HD int largest_scale(DType dtype) { return dtype == DType::f8_e8m0 ? 254 : 126; }

// The largest code whose value is at most s > 0, or the least code where none is.
FEWBIT_HD int scale_floor(float s, DType dtype) {
  const uint32_t bits = std::bit_cast<uint32_t>(s);
  const int exponent = static_cast<int>(bits >> 23);  // biased by 127
  int code = exponent;
  if (dtype != DType::f8_e8m0) {
    code = exponent < 121 ? static_cast<int>(s * 0x1p9f) : (exponent - 120) * 8 + static_cast<int>((bits >> 20) & 7);
    if (exponent > 135) code = 126;
  }
  const int least = dtype == DType::f8_e8m0 ? 0 : 1, most = largest_scale(dtype);
  return code < least ? least : code > most ? most : code;
}

// The scale that the formats' own quantizers choose for a group whose largest magnitude is `absmax`: E8M0, a power of
// two with absmax / scale below 7 (1.75 * 4); E4M3, the nearest to absmax / 6 / global, ties to even.
FEWBIT_HD int plain_scale(float absmax, float global, DType dtype) {
  if (dtype == DType::f8_e8m0) {
    const uint32_t bits = std::bit_cast<uint32_t>(absmax) + (1u << 21);  // a significand of 1.75 and above goes up
    const int code = static_cast<int>(bits >> 23) - 2;
    return code < 0 ? 0 : code > 254 ? 254 : code;
  }
  const float s = absmax / 6.f / global;
  const int low = scale_floor(s, dtype);
  if (low == largest_scale(dtype)) return low;
  const float below = s - scale_value(low, dtype), above = scale_value(low + 1, dtype) - s;
  return above < below || (above == below && (low & 1)) ? low + 1 : low;
}

// n weights that share a scale, and their importance.
struct Fp4Group {
  const float* w;
  const float* h;  // null: all 1
  int n;
};

// sum_i h_i (w_i - scale * its nearest E2M1 value)^2, in f32, in order.
FEWBIT_HD float fp4_error(const Fp4Group& g, float scale) {
  float error = 0;
  for (int i = 0; i < g.n; ++i) {
    const float d = add_rn(g.w[i], -mul_rn(e2m1_value(e2m1_code(g.w[i] / scale)), scale));
    const float e = mul_rn(d, d);
    error = add_rn(error, g.h ? mul_rn(g.h[i], e) : e);
  }
  return error;
}

// The code of the group's scale: the plain one or, with `search`, the one of least error around it. `global`: the
// factor above all scales (NVFP4), else 1. A group of zeros has scale 1.
FEWBIT_HD int choose_fp4_scale(const Fp4Group& g, DType dtype, float global, bool search) {
  float absmax = 0;
  for (int i = 0; i < g.n; ++i) absmax = fabsf(g.w[i]) > absmax ? fabsf(g.w[i]) : absmax;
  if (!(absmax > 0)) return dtype == DType::f8_e8m0 ? 127 : 0x38;
  const int plain = plain_scale(absmax, global, dtype);
  if (!search) return plain;
  // Down to half the plain scale, where the largest weight is clipped, and a little up.
  const int reach = dtype == DType::f8_e8m0 ? 1 : 8;
  const int least = dtype == DType::f8_e8m0 ? 0 : 1, most = largest_scale(dtype);
  int best = plain;
  float best_error = INFINITY;
  for (int code = plain + (reach + 1) / 2; code >= plain - reach; --code) {
    if (code < least || code > most) continue;
    const float error = fp4_error(g, mul_rn(scale_value(code, dtype), global));
    if (error < best_error) best = code, best_error = error;
  }
  return best;
}

}  // namespace fewbit

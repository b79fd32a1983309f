#include "src/core/half.h"

namespace fewbit {
namespace {

// One routine for both 8-bit floats: rounds |f| on the grid of a type with `man_bits` of mantissa and the
// given bias; the caller decides what happens above the largest finite value.
uint32_t narrow_magnitude(float f, int man_bits, int bias) {
  const double a = std::fabs(static_cast<double>(f));
  if (a == 0) return 0;
  int e = 0;
  std::frexp(a, &e);  // a = m * 2^e with m in [0.5, 1)
  int exponent = e - 1;
  if (exponent < 1 - bias) exponent = 1 - bias;  // subnormals share the least exponent
  const double q = std::nearbyint(std::ldexp(a, man_bits - exponent));
  const auto n = static_cast<uint32_t>(q);  // in [0, 2^(man_bits+1)]
  return (static_cast<uint32_t>(exponent + bias - 1) << man_bits) + n;
}

float widen(uint32_t magnitude, int man_bits, int bias) {
  const uint32_t e = magnitude >> man_bits;
  const uint32_t m = magnitude & ((1u << man_bits) - 1);
  if (e == 0) return std::ldexp(static_cast<float>(m), 1 - bias - man_bits);
  return std::ldexp(static_cast<float>(m + (1u << man_bits)), static_cast<int>(e) - bias - man_bits);
}

}  // namespace

float f8_e4m3_to_f32(uint8_t v) {
  const float sign = (v & 0x80) ? -1.f : 1.f;
  if ((v & 0x7f) == 0x7f) return std::copysign(NAN, sign);
  return sign * widen(v & 0x7f, 3, 7);
}

uint8_t f32_to_f8_e4m3_torch(float f) {
  const uint8_t sign = std::signbit(f) ? 0x80 : 0;
  if (std::isnan(f)) return sign | 0x7f;
  if (std::fabs(f) >= 480.f) return sign | 0x7f;
  const uint32_t m = narrow_magnitude(f, 3, 7);
  return static_cast<uint8_t>(sign | (m > 0x7e ? 0x7f : m));
}

uint8_t f32_to_f8_e4m3_saturated(float f) {
  if (std::isnan(f)) return f32_to_f8_e4m3_torch(f);
  return f32_to_f8_e4m3_torch(std::fmin(448.f, std::fmax(-448.f, f)));
}

float f8_e5m2_to_f32(uint8_t v) {
  const float sign = (v & 0x80) ? -1.f : 1.f;
  const uint32_t m = v & 0x7f;
  if (m > 0x7c) return std::copysign(NAN, sign);
  if (m == 0x7c) return sign * INFINITY;
  return sign * widen(m, 2, 15);
}

uint8_t f32_to_f8_e5m2(float f) {
  const uint8_t sign = std::signbit(f) ? 0x80 : 0;
  if (std::isnan(f)) return sign | 0x7f;
  if (std::isinf(f)) return sign | 0x7c;
  const uint32_t m = narrow_magnitude(f, 2, 15);
  return static_cast<uint8_t>(sign | (m > 0x7c ? 0x7c : m));
}

float f4_e2m1_to_f32(uint8_t code) {
  const float magnitude = widen(code & 7, 1, 1);
  return (code & 8) ? -magnitude : magnitude;
}

uint8_t f32_to_f4_e2m1(float f) {
  const uint8_t sign = std::signbit(f) ? 8 : 0;
  if (!(std::fabs(f) < 6.f)) return static_cast<uint8_t>(sign | (std::isnan(f) ? 0 : 7));
  return static_cast<uint8_t>(sign | narrow_magnitude(f, 1, 1));
}

float f8_e8m0_to_f32(uint8_t v) { return v == 255 ? NAN : std::ldexp(1.f, v - 127); }

uint8_t f32_to_f8_e8m0(float f) {
  if (std::isnan(f)) return 255;
  const float a = std::fabs(f);
  if (!(a > 0x1p-127f)) return 0;
  if (std::isinf(a)) return 254;
  int e = 0;
  const float m = std::frexp(a, &e);  // a = m * 2^e with m in [0.5, 1)
  const int exponent = m * m < 0.5f ? e - 1 : e;
  return static_cast<uint8_t>(std::fmin(254, std::fmax(0, exponent + 127)));
}

}  // namespace fewbit

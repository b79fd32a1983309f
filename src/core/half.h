#pragma once
// Bit-exact host conversions of the small floating types. Narrowing rounds to nearest, ties to even.
#include <bit>
#include <cmath>
#include <cstdint>

namespace fewbit {

struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  constexpr explicit bf16(uint16_t raw, int) : bits(raw) {}
  constexpr bf16(float f) : bits(narrow(f)) {}  // NOLINT: a value type, converts like float
  constexpr operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

 private:
  static constexpr uint16_t narrow(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // keep NaN a NaN
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

constexpr float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exp = (h >> 10) & 31u;
  uint32_t man = h & 1023u;
  if (exp == 31) return std::bit_cast<float>(sign | 0x7f800000u | (man << 13));
  if (exp == 0) {
    if (man == 0) return std::bit_cast<float>(sign);
    int e = -1;
    do {
      ++e;
      man <<= 1;
    } while ((man & 1024u) == 0);
    return std::bit_cast<float>(sign | (static_cast<uint32_t>(112 - e) << 23) | ((man & 1023u) << 13));
  }
  return std::bit_cast<float>(sign | ((exp + 112) << 23) | (man << 13));
}

constexpr uint16_t f32_to_f16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (a >= 0x38800000u) {                                              // normal
    const uint32_t r = a + 0xfffu + ((a >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((r - 0x38000000u) >> 13));
  }
  if (a < 0x33000000u) return sign;  // below half the least subnormal
  const int shift = 126 - static_cast<int>(a >> 23);
  const uint32_t man = (a & 0x7fffffu) | 0x800000u;
  const uint32_t half = 1u << (shift - 1);
  uint32_t q = man >> shift;
  const uint32_t rest = man & ((1u << shift) - 1);
  if (rest > half || (rest == half && (q & 1u))) ++q;
  return static_cast<uint16_t>(sign | q);
}

struct f16 {
  uint16_t bits = 0;
  f16() = default;
  constexpr explicit f16(uint16_t raw, int) : bits(raw) {}
  constexpr f16(float f) : bits(f32_to_f16(f)) {}  // NOLINT
  constexpr operator float() const { return f16_to_f32(bits); }
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

// E4M3 ("fn": no infinity, 0x7f and 0xff are NaN, largest 448).
float f8_e4m3_to_f32(uint8_t v);
uint8_t f32_to_f8_e4m3_saturated(float f);  // clamps to +-448 first; NaN stays NaN
uint8_t f32_to_f8_e4m3_torch(float f);      // PyTorch's cast: above the range becomes NaN
float f8_e5m2_to_f32(uint8_t v);
uint8_t f32_to_f8_e5m2(float f);  // PyTorch's cast: above the range becomes infinity

// E2M1: sign << 3 | index into 0, 0.5, 1, 1.5, 2, 3, 4, 6; 8 is -0. Rounds to nearest, ties to the even index,
// above 6 to 6; NaN becomes 0.
float f4_e2m1_to_f32(uint8_t code);  // code < 16
uint8_t f32_to_f4_e2m1(float f);

// E8M0: 2^(code - 127), no sign and no 0; 255 is NaN.
float f8_e8m0_to_f32(uint8_t v);
// The nearest power of two to |f| in the exponent, [sqrt(1/2), sqrt(2)) times f; f = 0 gives the least.
uint8_t f32_to_f8_e8m0(float f);

// f rounded to the storage type and back: what a reader of the file will see.
constexpr float round_to_f16(float f) { return f16_to_f32(f32_to_f16(f)); }
constexpr float round_to_bf16(float f) { return static_cast<float>(bf16(f)); }

}  // namespace fewbit

// The loops of cpu_rows.h, over plain arrays of kLanes partial results: the compiler makes them vector registers of the
// width that each compiled clone has (src/core/hot.h), while the order of the sums stays as it is written.
#include "kernels/cpu/cpu_rows.h"

#include <bit>
#include <cstring>
#include <vector>

#include "src/core/hot.h"

namespace fewbit::cpu {
namespace {

constexpr int kLanes = 64;

FEWBIT_HOT_INLINE float bits_to_float(uint32_t u) { return std::bit_cast<float>(u); }

// exp(x) for x <= 0, never below exp(-87); a NaN stays one. exp(x) = 2^n p(r) with r = x - n ln 2 in
// [-ln 2 / 2, ln 2 / 2] (Cody and Waite, "Software Manual for the Elementary Functions", 1980: ln 2 in two constants)
// and p the Taylor polynomial of degree 6, whose remainder is below 2e-7 there. n is read from the low bits of x / ln 2
// + 1.5 * 2^23, an addition that rounds to nearest without a conversion. The bound and the NaN go through integers, so
// that the compiler sees no branch.
FEWBIT_HOT_INLINE float exp_of(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t nan = 0u - static_cast<uint32_t>((u & 0x7fffffffu) > 0x7f800000u);
  const uint32_t least = 0xc2ae0000u;  // -87; among negative floats the larger magnitude has the larger bits
  const float bounded = bits_to_float(u < least ? u : least);
  const float shifted = bounded * 1.44269504f + 12582912.f;
  const float n = shifted - 12582912.f;
  float r = bounded - n * 0.693359375f;
  r -= n * -2.12194440e-4f;
  float p = 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.f;
  p = p * r + 1.f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) - 0x4b400000u + 127u) << 23;
  return bits_to_float(std::bit_cast<uint32_t>(p * bits_to_float(power)) | nan);
}

template <class T>
FEWBIT_HOT_INLINE T tree_sum(T* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}

FEWBIT_HOT_INLINE float value_of(float x) { return x; }
FEWBIT_HOT_INLINE float value_of(bf16 x) { return bits_to_float(static_cast<uint32_t>(x.bits) << 16); }

FEWBIT_HOT_INLINE uint16_t narrowed(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  // All ones where u is a NaN: then the rounding, which could carry into the exponent, is left out.
  const uint32_t nan = 0u - static_cast<uint32_t>((u & 0x7fffffffu) > 0x7f800000u);
  return static_cast<uint16_t>((rounded & ~nan) | (((u >> 16) | 0x40u) & nan));
}

// Sixteen lanes. An array of 64 floats, of which the rest of a row takes some, would lie in memory.
using Sixteen = float __attribute__((vector_size(64)));
FEWBIT_HOT_INLINE Sixteen sixteen_at(const float* x) {
  Sixteen v;
  std::memcpy(&v, x, sizeof v);
  return v;
}
FEWBIT_HOT_INLINE Sixteen sixteen_at(const bf16* x) {
  using Words = uint32_t __attribute__((vector_size(64)));
  uint16_t __attribute__((vector_size(32))) bits;
  std::memcpy(&bits, x, sizeof bits);
  return std::bit_cast<Sixteen>(__builtin_convertvector(bits, Words) << 16);
}
// tree_sum() of 64 lanes.
FEWBIT_HOT_INLINE float tree_sum(Sixteen a, Sixteen b, Sixteen c, Sixteen d) {
  Sixteen s = (a + c) + (b + d);
  s += __builtin_shufflevector(s, s, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
  s += __builtin_shufflevector(s, s, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
  s += __builtin_shufflevector(s, s, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
  return s[0] + s[1];
}

template <class T>
FEWBIT_HOT_INLINE float dot_of(const float* a, const T* b, int64_t n) {
  Sixteen sum[kLanes / 16] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes / 16; ++k) sum[k] += sixteen_at(a + i + 16 * k) * sixteen_at(b + i + 16 * k);
  if (i == n) return tree_sum(sum[0], sum[1], sum[2], sum[3]);
  float lanes[kLanes];
  std::memcpy(lanes, sum, sizeof lanes);
  for (int l = 0; i + l < n; ++l) lanes[l] += a[i + l] * value_of(b[i + l]);
  return tree_sum(lanes);
}

template <class T>
FEWBIT_HOT_INLINE void add_rows_of(const float* a, const T* x, int64_t ld, int64_t rows, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    float lanes[kLanes];
    for (int l = 0; l < kLanes; ++l) lanes[l] = y[i + l];
    for (int64_t j = 0; j < rows; ++j)
      for (int l = 0; l < kLanes; ++l) lanes[l] += a[j] * value_of(x[j * ld + i + l]);
    for (int l = 0; l < kLanes; ++l) y[i + l] = lanes[l];
  }
  for (int64_t j = 0; j < rows; ++j)
    for (int64_t c = i; c < n; ++c) y[c] += a[j] * value_of(x[j * ld + c]);
}

}  // namespace

FEWBIT_HOT void widen(const bf16* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = bits_to_float(static_cast<uint32_t>(x[i].bits) << 16);
}

FEWBIT_HOT void narrow(const float* x, bf16* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i].bits = narrowed(x[i]);
}

FEWBIT_HOT void narrow_rows(const float* x, int64_t x_ld, bf16* y, int64_t y_ld, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n; ++i) y[r * y_ld + i].bits = narrowed(x[r * x_ld + i]);
}

void narrow_rows(const float* x, int64_t x_ld, float* y, int64_t y_ld, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) narrow(x + r * x_ld, y + r * y_ld, n);
}

void widen(const float* x, float* y, int64_t n) { std::memmove(y, x, static_cast<size_t>(n) * sizeof(float)); }
void narrow(const float* x, float* y, int64_t n) { widen(x, y, n); }

FEWBIT_HOT float dot(const float* a, const float* b, int64_t n) { return dot_of(a, b, n); }
FEWBIT_HOT float dot(const float* a, const bf16* b, int64_t n) { return dot_of(a, b, n); }

FEWBIT_HOT void dots(const float* a, float scale, const float* b, int64_t ld, int64_t rows, int64_t n, float* out) {
  for (int64_t j = 0; j < rows; ++j) out[j] = scale * dot_of(a, b + j * ld, n);
}
FEWBIT_HOT void dots(const float* a, float scale, const bf16* b, int64_t ld, int64_t rows, int64_t n, float* out) {
  for (int64_t j = 0; j < rows; ++j) out[j] = scale * dot_of(a, b + j * ld, n);
}

FEWBIT_HOT void axpy(float a, const float* x, float* y, int64_t n) { add_rows_of(&a, x, 0, 1, y, n); }
FEWBIT_HOT void axpy(float a, const bf16* x, float* y, int64_t n) { add_rows_of(&a, x, 0, 1, y, n); }
FEWBIT_HOT void add_rows(const float* a, const float* x, int64_t ld, int64_t rows, float* y, int64_t n) {
  add_rows_of(a, x, ld, rows, y, n);
}
FEWBIT_HOT void add_rows(const float* a, const bf16* x, int64_t ld, int64_t rows, float* y, int64_t n) {
  add_rows_of(a, x, ld, rows, y, n);
}

FEWBIT_HOT double sum_of_squares(const float* x, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += static_cast<double>(x[i + l]) * x[i + l];
  for (int l = 0; i + l < n; ++l) lanes[l] += static_cast<double>(x[i + l]) * x[i + l];
  return tree_sum(lanes);
}

FEWBIT_HOT float max_of(const float* x, int64_t n) {
  float lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = x[0];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  for (int l = 0; i + l < n; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  float best = lanes[0];
  for (int l = 1; l < kLanes; ++l) best = lanes[l] > best ? lanes[l] : best;
  return best;
}

FEWBIT_HOT double exp_in_place(float* x, float shift, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kLanes * 4) {  // 256 values in f32 partial sums, then on to double
    float lanes[kLanes] = {};
    const int64_t end = i + kLanes * 4 < n ? i + kLanes * 4 : n;
    for (int64_t j = i; j < end; ++j) x[j] = exp_of(x[j] - shift);
    int64_t j = i;
    for (; j + kLanes <= end; j += kLanes)
      for (int l = 0; l < kLanes; ++l) lanes[l] += x[j + l];
    for (int l = 0; j + l < end; ++l) lanes[l] += x[j + l];
    total += tree_sum(lanes);
  }
  return total;
}

FEWBIT_HOT double sum_of_exp(const float* x, float shift, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kLanes * 4) {
    float lanes[kLanes] = {};
    const int64_t end = i + kLanes * 4 < n ? i + kLanes * 4 : n;
    int64_t j = i;
    for (; j + kLanes <= end; j += kLanes)
      for (int l = 0; l < kLanes; ++l) lanes[l] += exp_of(x[j + l] - shift);
    for (int l = 0; j + l < end; ++l) lanes[l] += exp_of(x[j + l] - shift);
    total += tree_sum(lanes);
  }
  return total;
}

FEWBIT_HOT void gated_sigmoid(const float* gate, const float* up, float scale, float cubic, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float a = scale * (g + cubic * g * g * g);
    const float e = exp_of(-std::fabs(a));  // sigmoid(a) = 1 / (1 + e) above 0, e / (1 + e) below
    y[i] = g * (a < 0.f ? e : 1.f) / (1.f + e) * up[i];
  }
}

float* scratch(Scratch slot, int64_t floats) {
  thread_local std::vector<float> memory[static_cast<int>(Scratch::slots)];
  std::vector<float>& m = memory[static_cast<int>(slot)];
  if (m.size() < static_cast<size_t>(floats)) m.resize(static_cast<size_t>(floats));
  return m.data();
}

void widen_rows(DType dtype, const void* x, int64_t rows, int64_t cols, int64_t ld, float* out) {
  for_float_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for (int64_t r = 0; r < rows; ++r) widen(static_cast<const T*>(x) + r * ld, out + r * cols, cols);
  });
}

}  // namespace fewbit::cpu

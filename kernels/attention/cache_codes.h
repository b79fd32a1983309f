#pragma once
// What the CPU halves of attention over a cache share: rows of its codes as f32 values and back, and the weights that
// scores become.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/cpu/cpu_rows.h"
#include "kernels/kv/int4_rows.h"
#include "src/core/half.h"

namespace fewbit::cpu {

// E4M3 codes, a byte each.
struct F8 {
  uint8_t bits;
};
// Two codes of 4 bits.
struct Nibbles {
  uint8_t bits;
};
// What a row's codes are scaled by: one number, or one for every group of features.
template <class C>
using ScaleOf = std::conditional_t<std::is_same_v<C, Nibbles>, Int4Scale, float>;

// Where the scales of a row of the cache begin; `head`: its kv head.
template <class C>
ScaleOf<C>* scales_of_row(TensorView scales, int64_t head, int64_t row) {
  if constexpr (std::is_same_v<C, Nibbles>)
    return static_cast<Int4Scale*>(scales.data) + row * (scales.shape[3] / 2);
  else
    return scales.as<float>() + (scales.shape.rank() == 1 ? head : row);
}

// f32 values of all E4M3 codes.
inline const float* f8_values() {
  static const auto table = [] {
    std::array<float, 256> t{};
    for (int i = 0; i < 256; ++i) t[static_cast<size_t>(i)] = f8_e4m3_to_f32(static_cast<uint8_t>(i));
    return t;
  }();
  return table.data();
}

inline void dequantize_row(const F8* codes, const float* scale, float* y, int64_t d) {
  const float* values = f8_values();
  for (int64_t c = 0; c < d; ++c) y[c] = values[codes[c].bits] * *scale;
}
inline void dequantize_row(const int8_t* codes, const float* scale, float* y, int64_t d) {
  for (int64_t c = 0; c < d; ++c) y[c] = static_cast<float>(codes[c]) * *scale;
}
inline void dequantize_row(const Nibbles* codes, const Int4Scale* scales, float* y, int64_t d) {
  widen_int4_row(&codes->bits, scales, y, d);
}

// Quantizes the row x of one token and kv head. E4M3 takes the scale that is there, the others leave their own.
inline void quantize_row(const float* x, F8* codes, const float* scale, int64_t d) {
  for (int64_t c = 0; c < d; ++c) codes[c].bits = f32_to_f8_e4m3_saturated(x[c] / *scale);
}
inline void quantize_row(const float* x, int8_t* codes, float* scale, int64_t d) {
  float amax = 0;
  for (int64_t c = 0; c < d; ++c) amax = std::max(amax, std::fabs(x[c]));
  const float inverse = amax > 0 ? 127.f / amax : 0.f;
  for (int64_t c = 0; c < d; ++c) codes[c] = static_cast<int8_t>(std::nearbyint(x[c] * inverse));
  *scale = amax / 127.f;
}
inline void quantize_row(const float* x, Nibbles* codes, Int4Scale* scales, int64_t d) {
  int4_row(x, d, &codes->bits, scales);
}

template <class C>
inline constexpr bool is_code = sizeof(C) == 1;

// Calls f with null pointers of the element types of queries and cache.
template <class F>
void for_cache_types(DType dtype, DType kv_dtype, F&& f) {
  for_float_type(dtype, [&](auto* type) {
    if (kv_dtype == DType::f8_e4m3) return f(type, static_cast<F8*>(nullptr));
    if (kv_dtype == DType::i8) return f(type, static_cast<int8_t*>(nullptr));
    if (kv_dtype == DType::u8) return f(type, static_cast<Nibbles*>(nullptr));
    f(type, type);
  });
}

// Turns the n scores of visible keys into weights that are not yet divided by their sum; returns that sum, with the
// sink's weight in it.
inline double weights_of(float* scores, int64_t n, const AttentionArgs& a, float sink) {
  if (a.softcap > 0)
    for (int64_t i = 0; i < n; ++i) scores[i] = a.softcap * std::tanh(scores[i] / a.softcap);
  const float top = std::max(max_of(scores, n), sink);
  return exp_in_place(scores, top, n) + std::exp(static_cast<double>(sink) - top);
}

// Rounds the weighted sum of values, divided by the sum of the weights, to the output type.
template <class T>
void store_mean(const float* values, double sum, int64_t n, T* out) {
  const auto inverse = static_cast<float>(1 / sum);
  for (int64_t c = 0; c < n; ++c) out[c] = values[c] * inverse;
}

inline float sink_of(const AttentionArgs& a, int64_t head) {
  return a.sinks.data ? a.sinks.as<float>()[head] : -std::numeric_limits<float>::infinity();
}

inline void check_queries(ConstTensorView q, const AttentionArgs& a, ConstTensorView out) {
  FEWBIT_ASSERT(a.kv_heads > 0 && a.heads % a.kv_heads == 0 && q.cols() == a.heads * a.head_dim);
  FEWBIT_ASSERT(out.dtype == q.dtype && out.numel() == q.numel());
}

// Keys [begin, end).
struct Span {
  int64_t begin = 0, end = 0;
};

// The keys that the query at position p sees.
inline Span keys_in_sight(const AttentionArgs& a, int64_t p) {
  if (a.chunk > 0) return {p / a.chunk * a.chunk, p + 1};
  return {a.window > 0 ? std::max<int64_t>(0, p - a.window + 1) : 0, p + 1};
}

}  // namespace fewbit::cpu

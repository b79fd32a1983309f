#pragma once
// Arithmetic of an integer grid that the CPU and CUDA halves share word for word, so that both choose the
// same scales and codes for the same weights: rounding, the candidates of a scale search, the order of its
// sums. No contraction to fused multiply-add happens in here, on either side.
#include <cmath>
#include <cstdint>

#include "kernels/choose_scales.h"
#include "src/core/half.h"
#include "src/core/host_device.h"
#include "src/core/quantized_linear.h"

namespace fewbit {

FEWBIT_HD float mul_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
FEWBIT_HD float add_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// Nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction. Plain
// additions, so that the compiler can do several at once.
FEWBIT_HD float round_even(float x) { return add_rn(add_rn(x, 12582912.f), -12582912.f); }
FEWBIT_HD float clamp_to(float x, float lo, float hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}

// The level (code - zero) nearest to w on a grid; the bounds are whole numbers, so clamping may come first.
FEWBIT_HD float grid_level(float w, float scale, int zero, int max_code) {
  return round_even(clamp_to(w / scale, static_cast<float>(-zero), static_cast<float>(max_code - zero)));
}

// representable_scale() of src/core/quantized_linear.h, on either side.
FEWBIT_HD float stored_scale(float s, DType dtype) {
#ifdef __CUDA_ARCH__
  if (!isfinite(s)) return s;
  if (dtype == DType::f16) {
    const float a = fminf(fmaxf(fabsf(s), 6.103515625e-05f), 65504.f);
    return copysignf(round_to_f16(a), s);
  }
  const float a = fmaxf(fabsf(s), 1.17549435e-38f);
  return copysignf(dtype == DType::bf16 ? round_to_bf16(a) : a, s);
#else
  return representable_scale(s, dtype);
#endif
}

// What a search must know of a group: its extremes, both forced to hold 0.
struct GroupRange {
  float min = 0, max = 0;
  FEWBIT_HD float absmax() const { return -min > max ? -min : max; }
};

struct GridChoice {
  float scale = 1;
  int zero = 0;
};

inline constexpr float kScaleStep = 0.02f;
inline constexpr int kMaxCandidates = 96;

// Number of factors in [lo, hi]; a symmetric grid tries each with both signs.
inline int scale_candidates(const ScaleSearch& s) {
  if (s.rule == ScaleRule::absmax) return 1;
  const int factors = static_cast<int>(std::lround((s.hi - s.lo) / kScaleStep)) + 1;
  return s.symmetric ? 2 * factors : factors;
}

// Candidate c of a search over a group with range r, in the order in which ties are settled.
FEWBIT_HD GridChoice scale_candidate(const ScaleSearch& s, const GroupRange& r, int c) {
  const int max_code = (1 << s.bits) - 1, mid = 1 << (s.bits - 1);
  const bool searched = s.rule != ScaleRule::absmax;
  const float factor = !searched ? 1.f : add_rn(s.lo, mul_rn(kScaleStep, static_cast<float>(s.symmetric ? c / 2 : c)));
  if (s.symmetric) {
    const float step = searched ? r.absmax() / static_cast<float>(mid) : 2 * r.absmax() / static_cast<float>(max_code);
    if (!(step > 0)) return {stored_scale(1.f, s.scale_dtype), mid};
    const float scale = stored_scale(mul_rn(factor, step), s.scale_dtype);
    return {searched && c % 2 == 1 ? -scale : scale, mid};
  }
  const float width = add_rn(r.max, -r.min);
  if (!(width > 0)) return {stored_scale(1.f, s.scale_dtype), 0};
  const float scale = stored_scale(mul_rn(factor, width / static_cast<float>(max_code)), s.scale_dtype);
  const float zero = round_even(clamp_to(mul_rn(factor, -r.min) / scale, 0.f, static_cast<float>(max_code)));
  return {scale, static_cast<int>(zero)};
}

// A candidate made ready for judging: its error over w is the sum of h (w - level * scale)^2, in f32 over
// runs of kSearchRun weights, the runs added in f64.
inline constexpr int64_t kSearchRun = 128;
FEWBIT_HD float search_error(float w, float h, float scale, float inverse, float lo, float hi) {
  const float level = round_even(clamp_to(mul_rn(w, inverse), lo, hi));
  const float d = add_rn(w, -mul_rn(level, scale));
  return mul_rn(h, mul_rn(d, d));
}

namespace cpu {
// The candidates of one group side by side, so that the loop over them can use vector instructions.
struct Candidates {
  int count = 0;
  GridChoice choice[kMaxCandidates];
  float scale[kMaxCandidates], inverse[kMaxCandidates], lo[kMaxCandidates], hi[kMaxCandidates];
};
Candidates list_candidates(const float* w, int64_t n, const ScaleSearch& search);
// The best grid for w[0, n) with importance h (null: all ones).
GridChoice search_group(const float* w, const float* h, int64_t n, const ScaleSearch& search);
}  // namespace cpu

}  // namespace fewbit

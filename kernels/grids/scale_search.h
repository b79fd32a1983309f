#pragma once
// The search for the scale (and zero) of a group on an integer grid, in one text for the CPU and CUDA halves: its
// rules, its candidates in the order that settles ties, and the error of one weight.
#include <cmath>
#include <cstdint>

#include "kernels/grids/integer_grid.h"

namespace fewbit {

// How the scale (and zero) of a group of weights is found.
enum class ScaleRule : uint8_t {
  // Symmetric: 2 max|w| / (2^bits - 1), as in the code published with GPTQ (Frantar et al., 2022). Asymmetric:
  // (max - min) / (2^bits - 1), with 0 within the range, and zero = round(-min / scale).
  absmax,
  // The candidate with the least sum_i h_i (w_i - round(w_i))^2. Symmetric: factors lo to hi in steps of .02, times
  // max|w| / 2^(bits - 1), each with both signs. Asymmetric: the range of absmax times the same factors.
  diag_grid,
  // The same candidates, each tried by the column loop itself on the group's weights as they are then: the least sum of
  // e^2 over the group's columns. Only error_feedback can do that, where it chooses the scales of a group that fits its
  // tiles; everywhere else it means diag_grid.
  loop_grid,
};
struct ScaleSearch {
  ScaleRule rule = ScaleRule::diag_grid;
  int bits = 4;
  bool symmetric = true;
  DType scale_dtype = DType::f16;  // every candidate is rounded to it before it is judged
  float lo = 0.56f, hi = 1.10f;    // factors of the grid; good ones: .56-1.10 at 4 bits, .40-1.10 at 3
};

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

// How many candidates a search has: the factors from lo to hi, for a symmetric grid each with both signs.
inline int scale_candidates(const ScaleSearch& s) {
  if (s.rule == ScaleRule::absmax) return 1;
  const int factors = static_cast<int>(std::lround((s.hi - s.lo) / kScaleStep)) + 1;
  return s.symmetric ? 2 * factors : factors;
}

// Candidate c for a group with range r. Of candidates with equal errors the first one wins.
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

// The error of weight w with importance h under a candidate: h (w - level * scale)^2 with the nearest level from lo to
// hi; inverse = 1 / scale. A search adds these errors as kSearchRun says.
FEWBIT_HD float search_error(float w, float h, float scale, float inverse, float lo, float hi) {
  const float level = round_even(clamp_to(mul_rn(w, inverse), lo, hi));
  const float d = add_rn(w, -mul_rn(level, scale));
  return mul_rn(h, mul_rn(d, d));
}

}  // namespace fewbit

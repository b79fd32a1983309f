#pragma once
// The search for the scale (and zero) of a group on an integer grid: its rules, its candidates in the order in which
// ties are settled, and the error of one weight. The CPU and CUDA halves share it word for word.
#include <cmath>
#include <cstdint>

#include "kernels/grids/integer_grid.h"

namespace fewbit {

// How the scale (and zero) of a group of weights is found.
enum class ScaleRule : uint8_t {
  absmax,     // symmetric: 2 max|w| / (2^bits - 1) (the published GPTQ's); asymmetric: (max - min) / (2^bits - 1)
              // with the range forced to hold 0, zero = round(-min / scale)
  diag_grid,  // the candidate with the least sum_i h_i (w_i - round(w_i))^2. Symmetric: factors [lo, hi] step .02 of
              // max|w| / 2^(bits-1), each with both signs. Asymmetric: the absmax range shrunk by the same factors
  loop_grid,  // the same candidates, each tried by the column loop itself on the group's live weights: the least sum
              // of e^2 over the group's columns. Only error_feedback can, where it chooses the scales of a group that
              // fits its tiles; everywhere else it means diag_grid
};
struct ScaleSearch {
  ScaleRule rule = ScaleRule::diag_grid;
  int bits = 4;
  bool symmetric = true;
  DType scale_dtype = DType::f16;  // every candidate is rounded to it before it is judged
  float lo = 0.56f, hi = 1.10f;    // factors of the grid; quality-levers: .56-1.10 at 4 bits, .40-1.10 at 3
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

// A candidate made ready for judging: its error over w is the sum of h (w - level * scale)^2, added as kSearchRun says.
FEWBIT_HD float search_error(float w, float h, float scale, float inverse, float lo, float hi) {
  const float level = round_even(clamp_to(mul_rn(w, inverse), lo, hi));
  const float d = add_rn(w, -mul_rn(level, scale));
  return mul_rn(h, mul_rn(d, d));
}

}  // namespace fewbit

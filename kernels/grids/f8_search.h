#pragma once
// The search for the scale of a block of weights on the E4M3 grid: its candidates and the error of one weight, in one
// text for the CPU and CUDA halves.
#include "kernels/grids/f8_grid.h"

namespace fewbit {

// Factors 0.76 to 2.02 in steps of 0.02.
inline constexpr int kF8Candidates = 64;
inline constexpr int kF8Plain = 12;  // the candidate with factor 1

// Candidate c for a block whose largest magnitude is `most`: the factor times most / kF8Max, rounded to `dtype`; 1 for
// a block of zeros.
FEWBIT_HD float f8_candidate(float most, int c, DType dtype) {
  if (!(most > 0)) return 1.f;
  const float factor = add_rn(1.f, mul_rn(0.02f, static_cast<float>(c - kF8Plain)));
  return stored_scale(mul_rn(factor, most / kF8Max), dtype);
}

// The error of weight w with importance h: h (w - scale * its nearest E4M3 value)^2; inverse = 1 / scale.
FEWBIT_HD float f8_error(float w, float h, float scale, float inverse) {
  const float d = add_rn(w, -mul_rn(f8_round(mul_rn(w, inverse)), scale));
  return mul_rn(h, mul_rn(d, d));
}

}  // namespace fewbit

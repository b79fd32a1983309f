#pragma once
// The search for the scale of a block on the E4M3 grid: candidates and the error of one weight. The CPU and CUDA halves
// share it word for word.
#include "kernels/grids/f8_grid.h"

namespace fewbit {

inline constexpr int kF8Candidates = 64;
inline constexpr int kF8Plain = 12;  // the candidate with factor 1

// Candidate c for a block whose largest magnitude is `most`.
FEWBIT_HD float f8_candidate(float most, int c, DType dtype) {
  if (!(most > 0)) return 1.f;
  const float factor = add_rn(1.f, mul_rn(0.02f, static_cast<float>(c - kF8Plain)));
  return stored_scale(mul_rn(factor, most / kF8Max), dtype);
}

FEWBIT_HD float f8_error(float w, float h, float scale, float inverse) {
  const float d = add_rn(w, -mul_rn(f8_round(mul_rn(w, inverse)), scale));
  return mul_rn(h, mul_rn(d, d));
}

}  // namespace fewbit

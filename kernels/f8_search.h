#pragma once
// Arithmetic of choose_f8_scales that the CPU and CUDA halves share word for word: candidates and their errors.
#include "kernels/choose_f8_scales.h"
#include "kernels/f8_grid.h"

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

// Rows and groups that are judged at once, so that the errors of all candidates stay in bounded memory: whole
// groups of rows.
struct F8Chunks {
  int64_t rows = 0, groups = 0, chunk = 0;  // rows of w, groups of columns, rows at once
  F8Chunks(const F8ScaleArgs& a, TensorView scales) : rows(a.w.rows()), groups((a.w.cols() + a.group - 1) / a.group) {
    FEWBIT_ASSERT(a.group > 0 && a.out_group > 0 && (!a.h.data || a.h.numel() == a.w.cols()));
    FEWBIT_ASSERT(scales.rows() == (rows + a.out_group - 1) / a.out_group && scales.cols() == groups);
    constexpr int64_t kBytes = int64_t{64} << 20;
    const int64_t per_block = a.out_group * groups * kF8Candidates * int64_t{sizeof(double)};
    chunk = a.out_group * (kBytes / per_block > 0 ? kBytes / per_block : 1);
  }
};

}  // namespace fewbit

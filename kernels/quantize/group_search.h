#pragma once
// search_group(): the CPU's search for the grid of one group, for choose_scales and error_feedback.
#include "kernels/grids/scale_search.h"

namespace fewbit {

namespace cpu {
// The candidates of one group side by side, so that the loop over them can use vector instructions. lo and hi are the
// bounds of the levels, inverse is 1 / scale.
struct Candidates {
  int count = 0;
  GridChoice choice[kMaxCandidates];
  float scale[kMaxCandidates], inverse[kMaxCandidates], lo[kMaxCandidates], hi[kMaxCandidates];
};
Candidates list_candidates(const float* w, int64_t n, const ScaleSearch& search);
// The grid with the least error over w[0, n), weighted by the importance h[0, n) (null: all ones).
GridChoice search_group(const float* w, const float* h, int64_t n, const ScaleSearch& search);
}  // namespace cpu

}  // namespace fewbit

#pragma once
// The scale search over one group on the CPU, all candidates side by side.
#include "kernels/grids/scale_search.h"

namespace fewbit {

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

#pragma once
// F8Chunks: the checks of choose_f8_scales, and how both of its halves cut their work.
#include "kernels/grids/f8_search.h"
#include "kernels/quantize/choose_f8_scales.h"

namespace fewbit {

// How many rows are judged at once: whole groups of rows, as many as keep the errors of all candidates within kBytes.
struct F8Chunks {
  int64_t rows = 0;    // of w
  int64_t groups = 0;  // of columns
  int64_t chunk = 0;   // rows at once
  F8Chunks(const F8ScaleArgs& a, TensorView scales) : rows(a.w.rows()), groups((a.w.cols() + a.group - 1) / a.group) {
    FEWBIT_ASSERT(a.group > 0 && a.out_group > 0 && (!a.h.data || a.h.numel() == a.w.cols()));
    FEWBIT_ASSERT(scales.rows() == (rows + a.out_group - 1) / a.out_group && scales.cols() == groups);
    constexpr int64_t kBytes = int64_t{64} << 20;
    const int64_t per_block = a.out_group * groups * kF8Candidates * int64_t{sizeof(double)};
    chunk = a.out_group * (kBytes / per_block > 0 ? kBytes / per_block : 1);
  }
};

}  // namespace fewbit

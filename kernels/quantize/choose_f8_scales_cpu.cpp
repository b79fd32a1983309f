// Scales on the E4M3 grid: the CPU half. The candidates of a group stand side by side, so that the loop over them can
// use vector instructions; errors are kept by row and added in the order of rows.
#include "kernels/quantize/choose_f8_scales.h"

#include <algorithm>
#include <vector>

#include "kernels/grids/f8_search.h"
#include "kernels/quantize/f8_chunks.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

namespace hot {

// total[c] += sum over w[0, n) of the error under candidate c; f32 over runs of kSearchRun weights, the runs in f64.
FEWBIT_HOT void f8_errors(const float* w, const float* h, int64_t n, const float* scale, const float* inverse,
                          double* total) {
  for (int64_t begin = 0; begin < n; begin += kSearchRun) {
    float run[kF8Candidates] = {};
    const int64_t end = begin + kSearchRun < n ? begin + kSearchRun : n;
    for (int64_t i = begin; i < end; ++i) {
      const float importance = h ? h[i] : 1.f;
      for (int c = 0; c < kF8Candidates; ++c) run[c] += f8_error(w[i], importance, scale[c], inverse[c]);
    }
    for (int c = 0; c < kF8Candidates; ++c) total[c] += run[c];
  }
}

}  // namespace hot

namespace {

float largest(const float* w, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(w[i]));
  return most;
}

}  // namespace

void choose_f8_scales(Exec&, const F8ScaleArgs& a, TensorView scales) {
  const F8Chunks all(a, scales);
  const int64_t in = a.w.cols(), groups = all.groups;
  const float* w = a.w.as<float>();
  const float* h = a.h.data ? a.h.as<float>() : nullptr;
  for (int64_t first = 0; first < all.rows; first += all.chunk) {
    const int64_t last = std::min(all.rows, first + all.chunk), blocks = (last - first + a.out_group - 1) / a.out_group;
    std::vector<float> most(static_cast<size_t>((last - first) * groups));  // of rows, then of blocks
    const auto width = [&](int64_t g) { return std::min(a.group, in - g * a.group); };
    const auto rows_of = [&](int64_t block) { return std::min(a.out_group, last - first - block * a.out_group); };
    parallel_for(last - first, 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t g = 0; g < groups; ++g)
          most[static_cast<size_t>(r * groups + g)] = largest(w + (first + r) * in + g * a.group, width(g));
    });
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t g = 0; g < groups; ++g) {
        float top = 0;
        for (int64_t r = 0; r < rows_of(b); ++r)
          top = std::max(top, most[static_cast<size_t>((b * a.out_group + r) * groups + g)]);
        most[static_cast<size_t>(b * groups + g)] = top;
      }
    std::vector<double> errors(a.search ? static_cast<size_t>((last - first) * groups * kF8Candidates) : 0, 0.0);
    if (a.search)
      parallel_for(last - first, 1, [&](int64_t r, int64_t) {
        for (int64_t g = 0; g < groups; ++g) {
          float scale[kF8Candidates], inverse[kF8Candidates];
          for (int c = 0; c < kF8Candidates; ++c) {
            scale[c] = f8_candidate(most[static_cast<size_t>(r / a.out_group * groups + g)], c, a.scale_dtype);
            inverse[c] = 1.f / scale[c];
          }
          hot::f8_errors(w + (first + r) * in + g * a.group, h ? h + g * a.group : nullptr, width(g), scale, inverse,
                         errors.data() + (r * groups + g) * kF8Candidates);
        }
      });
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t g = 0; g < groups; ++g) {
        int best = kF8Plain;
        if (a.search) {
          double total[kF8Candidates] = {};
          for (int64_t r = 0; r < rows_of(b); ++r)
            for (int c = 0; c < kF8Candidates; ++c)
              total[c] += errors[static_cast<size_t>(((b * a.out_group + r) * groups + g) * kF8Candidates + c)];
          best = static_cast<int>(std::min_element(total, total + kF8Candidates) - total);
        }
        scales.as<float>()[(first / a.out_group + b) * groups + g] =
            f8_candidate(most[static_cast<size_t>(b * groups + g)], best, a.scale_dtype);
      }
  }
}

}  // namespace fewbit::cpu

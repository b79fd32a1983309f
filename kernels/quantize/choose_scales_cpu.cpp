// Scales of groups of weights by search over a fixed list of candidates: the CPU half.
#include <algorithm>

#include "kernels/quantize/choose_scales.h"
#include "kernels/quantize/group_search.h"
#include "src/core/parallel.h"

namespace fewbit {

ScaleSearch default_search(int bits, bool symmetric, ScaleRule rule) {
  ScaleSearch s;
  s.rule = rule;
  s.bits = bits;
  s.symmetric = symmetric;
  s.lo = bits >= 4 ? 0.56f : 0.40f;
  return s;
}

namespace cpu {

Candidates list_candidates(const float* w, int64_t n, const ScaleSearch& search) {
  GroupRange range;
  for (int64_t i = 0; i < n; ++i) {
    range.min = std::min(range.min, w[i]);
    range.max = std::max(range.max, w[i]);
  }
  Candidates c;
  c.count = scale_candidates(search);
  FEWBIT_ASSERT(c.count >= 1 && c.count <= kMaxCandidates);
  const int max_code = (1 << search.bits) - 1;
  for (int i = 0; i < c.count; ++i) {
    c.choice[i] = scale_candidate(search, range, i);
    c.scale[i] = c.choice[i].scale;
    c.inverse[i] = 1.f / c.scale[i];
    c.lo[i] = static_cast<float>(-c.choice[i].zero);
    c.hi[i] = static_cast<float>(max_code - c.choice[i].zero);
  }
  return c;
}

GridChoice search_group(const float* w, const float* h, int64_t n, const ScaleSearch& search) {
  const Candidates c = list_candidates(w, n, search);
  if (c.count == 1) return c.choice[0];
  double total[kMaxCandidates] = {};
  for (int64_t begin = 0; begin < n; begin += kSearchRun) {
    float run[kMaxCandidates] = {};
    for (int64_t i = begin; i < std::min(n, begin + kSearchRun); ++i) {
      const float importance = h ? h[i] : 1.f;
      for (int k = 0; k < c.count; ++k)
        run[k] += search_error(w[i], importance, c.scale[k], c.inverse[k], c.lo[k], c.hi[k]);
    }
    for (int k = 0; k < c.count; ++k) total[k] += run[k];
  }
  return c.choice[std::min_element(total, total + c.count) - total];
}

void choose_scales(Exec&, ConstTensorView w, ConstTensorView h, int64_t group, const ScaleSearch& search,
                   TensorView scales, TensorView zeros) {
  const int64_t out = w.rows(), in = w.cols(), groups = (in + group - 1) / group;
  FEWBIT_ASSERT(group > 0 && scales.rows() == out && scales.cols() == groups);
  FEWBIT_ASSERT(search.symmetric || (zeros.data && zeros.shape == scales.shape));
  const float* importance = h.data ? h.as<float>() : nullptr;
  parallel_for(out, 4, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * group, count = std::min(group, in - first);
        const GridChoice best =
            search_group(w.as<float>() + o * in + first, importance ? importance + first : nullptr, count, search);
        scales.as<float>()[o * groups + g] = best.scale;
        if (!search.symmetric) zeros.as<uint8_t>()[o * groups + g] = static_cast<uint8_t>(best.zero);
      }
  });
}

}  // namespace cpu
}  // namespace fewbit

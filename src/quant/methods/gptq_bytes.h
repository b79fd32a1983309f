#pragma once
// gptq_bytes(): the memory that GPTQ of one linear takes at its peak, for plans.
#include <algorithm>

#include "kernels/quantize/factor.h"
#include "kernels/quantize/refine.h"
#include "kernels/statistics/gram_loss.h"
#include "src/quant/method.h"

namespace fewbit {

struct GptqShape {
  int64_t out = 0, in = 0;
  int64_t group = 128;  // columns that share a scale
  Effort effort = Effort::standard;
  ActOrder act_order = ActOrder::off;
  bool shifted = true;                   // the statistics hold both streams
  bool sibling = false;                  // a linear before this one left the factor of their input
  Precision precision = Precision::f32;  // of the rung that holds; a ladder that is climbed needs f64's
};

// Bytes besides the weight and the statistics' Gram matrices (4 in^2 each). With N = in^2 and W = out * in: the target
// is 4 W; then comes its f64 system (8 N), then the factor (4 N, and 8 N while an f64 one is made), which stays (on
// CUDA the system leaves it, where columns keep their order); the column loop has codes, on CUDA what is left to
// correct and its terms (8 W), and target and codes once more where columns are in another order; the losses have the
// values of one coding (4 W).
inline int64_t gptq_bytes(Device::Kind kind, const GptqShape& s) {
  const int64_t weights = s.out * s.in, square = s.in * s.in, groups = (s.in + s.group - 1) / s.group;
  const int64_t target = 4 * weights, factor = 4 * square, codes = weights + 4 * s.out * groups;
  const bool shifts = s.shifted && s.effort != Effort::reference;
  const int64_t refines =
      s.effort == Effort::standard || s.effort == Effort::best ? refine_bytes(kind, s.out, s.in, s.group) : 0;
  const int64_t aiming = shifts ? shift_bytes(kind, s.out, s.in) + (s.sibling ? factor : 0) : 0;
  const int64_t factoring = factor + factor_bytes(s.in, s.precision);
  const int64_t correcting = kind == Device::cuda ? 8 * weights + 4 * kStripCols * (s.in + s.out) : 0;
  const int64_t looping = factor + codes + correcting + (s.act_order == ActOrder::off ? 0 : 4 * weights + weights);
  const int64_t refining = factor + codes + refines;
  const int64_t losing = factor + 2 * codes + 4 * weights + gram_loss_bytes(kind, s.out, s.in);
  return std::max(target + std::max({aiming, factoring, looping, refining}), (shifts ? target : 0) + losing);
}

}  // namespace fewbit

#pragma once
// ActivationSums gathers what a transform knows of an input, from rows that come chunk by chunk. Several ranks all add
// the same rows, and share the products; finish() is collective then.
#include "src/calib/observe.h"

namespace fewbit {

// Tokens of every absorber's activation that a transform is shown one by one (ActivationStats::sample), at most.
inline constexpr int64_t kTransformSample = 4096;

class ActivationSums {
 public:
  // `rows`: how many will come, of `in` features. `beside`, `piece`: as InputSums has them.
  ActivationSums(Exec&, const Ranks&, int64_t rows, int64_t in, bool beside = false, int64_t piece = 0);
  ActivationSums(ActivationSums&&) = delete;
  void add(ConstTensorView x);
  ActivationStats finish();

 private:
  void sample(ConstTensorView x);

  Exec& ex_;
  int64_t rows_, sampled_ = 0;
  GramShare share_;
  ActivationStats stats_{};
  RowCutter cutter_;
};

}  // namespace fewbit

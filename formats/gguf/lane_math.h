#pragma once
// Arithmetic of one lane (lanes.h), written so that loops over lanes become vector instructions.
#include <span>

#include "src/core/error.h"
#include "src/core/hot.h"

namespace fewbit::gguf {

FEWBIT_HOT_INLINE float at_most(float v, float bound) { return v < bound ? v : bound; }
FEWBIT_HOT_INLINE float at_least(float v, float bound) { return v < bound ? bound : v; }

// To the nearest integer, ties to even, for |v| below 2^22: adding 1.5 * 2^23 leaves no bits for a fraction. v must
// not be a product as it comes, whose addition could be fused.
FEWBIT_HOT_INLINE float round_even(float v) { return (v + 12582912.f) - 12582912.f; }

// Sixteen levels as their steps: the level of v is the first and all steps whose middle v is above.
struct LevelSteps {
  static constexpr int kSteps = 15;
  float first = 0, middle[kSteps] = {}, step[kSteps] = {};

  LevelSteps() = default;
  explicit LevelSteps(std::span<const float> levels) : first(levels.front()) {
    FEWBIT_ASSERT(levels.size() == kSteps + 1);
    for (size_t i = 0; i < kSteps; ++i) {
      middle[i] = 0.5f * (levels[i] + levels[i + 1]);
      step[i] = levels[i + 1] - levels[i];
    }
  }
};

template <int kStep = 0>
FEWBIT_HOT_INLINE float level_at(const LevelSteps& s, float v) {
  if constexpr (kStep == LevelSteps::kSteps) {
    return s.first;
  } else {
    const float middle = s.middle[kStep], step = s.step[kStep];  // read in any case: a select, no branch
    return level_at<kStep + 1>(s, v) + (v > middle ? step : 0.f);
  }
}

// Its number, 0 … 15.
template <int kStep = 0>
FEWBIT_HOT_INLINE float code_at(const LevelSteps& s, float v) {
  if constexpr (kStep == LevelSteps::kSteps) {
    return 0;
  } else {
    const float middle = s.middle[kStep];
    return code_at<kStep + 1>(s, v) + (v > middle ? 1.f : 0.f);
  }
}

}  // namespace fewbit::gguf

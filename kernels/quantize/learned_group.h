#pragma once
// What the two halves of learned_grid share: one group of a row of a LearnedGrid, and the arithmetic of its variables.
#include "kernels/grids/integer_grid.h"
#include "kernels/quantize/learned_grid.h"

namespace fewbit {

struct LearnedGroup {
  int64_t first = 0, count = 0;  // its weights are [first, first + count) of the tensor
  float scale = 1;               // where the optimisation began
  float stored = 1;              // scale * factor, as it would be written now
  int zero = 0, max_code = 0;

  FEWBIT_HD float rounded(float level) const {
    return round_even(clamp_to(level, static_cast<float>(-zero), static_cast<float>(max_code - zero)));
  }
  FEWBIT_HD uint8_t code(float level) const { return static_cast<uint8_t>(static_cast<int>(rounded(level)) + zero); }
};

// The arrays of a LearnedGrid, for loops and kernels.
struct LearnedArrays {
  CodedArrays<false> start;
  float *level, *factor, *mean, *square;
  DType scale_dtype;

  explicit LearnedArrays(const LearnedGrid& g)
      : start(g.start, g.level.rows(), g.level.cols()),
        level(g.level.as<float>()),
        factor(g.factor.as<float>()),
        mean(g.mean.as<float>()),
        square(g.square.as<float>()),
        scale_dtype(g.scale_dtype) {
    FEWBIT_ASSERT(g.start.grid == Grid::integer && !g.start.group_of.data && g.start.out_group == 1);
    FEWBIT_ASSERT(g.factor.shape == g.start.scales.shape && g.mean.shape == g.factor.shape);
    FEWBIT_ASSERT(g.square.shape == g.factor.shape);
  }
  FEWBIT_HD int64_t groups() const { return start.out * start.groups; }  // of all rows

  // Group `at` of all rows' groups, one row after another.
  FEWBIT_HD LearnedGroup operator()(int64_t at) const {
    const int64_t row = at / start.groups;
    const int group = static_cast<int>(at - row * start.groups), begin = group * start.group, rest = start.in - begin;
    LearnedGroup g;
    g.first = start.index(row, begin);
    g.count = rest < start.group ? rest : start.group;
    g.scale = start.scale(row, group);
    g.stored = stored_scale(mul_rn(g.scale, factor[at]), scale_dtype);
    g.zero = start.zero(row, group);
    g.max_code = start.max_code;
    return g;
  }

  // The sign step of level i; `grad` is the gradient of its value.
  FEWBIT_HD void move_level(int64_t i, float grad, float rate, const LearnedGroup& g) const {
    const float slope = grad * g.stored;
    if (slope != 0) level[i] = add_rn(level[i], slope > 0 ? -rate : rate);
  }

  // Adam on factor `at`; `grad` is its gradient.
  FEWBIT_HD void move_factor(int64_t at, float grad, const LearnedStep& s) const {
    constexpr float kMean = 0.9f, kSquare = 0.999f;
    mean[at] = kMean * mean[at] + (1 - kMean) * grad;
    square[at] = kSquare * square[at] + (1 - kSquare) * grad * grad;
    const float m = mean[at] / (1 - powf(kMean, static_cast<float>(s.count)));
    const float v = square[at] / (1 - powf(kSquare, static_cast<float>(s.count)));
    if (v > 0) factor[at] -= s.factor_rate * m / sqrtf(v);
  }
};

}  // namespace fewbit

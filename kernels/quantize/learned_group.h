#pragma once
// What the two halves of learned_grid share: one (row, group) of a LearnedGrid, and the arithmetic of a
// value.
#include "kernels/grids/integer_grid.h"
#include "kernels/quantize/learned_grid.h"

namespace fewbit {

struct LearnedGroup {
  int64_t first = 0, count = 0;  // weights, from the tensor's beginning
  float scale = 1;               // where it began
  float stored = 1;              // scale * factor, as it would be written
  int zero = 0, max_code = 0;

  FEWBIT_HD float rounded(float level) const {
    return round_even(clamp_to(level, static_cast<float>(-zero), static_cast<float>(max_code - zero)));
  }
  FEWBIT_HD uint8_t code(float level) const { return static_cast<uint8_t>(static_cast<int>(rounded(level)) + zero); }
};

// Plain pointers and sizes of a LearnedGrid, for kernels.
struct LearnedView {
  float *level, *factor, *mean, *square;
  const float* scales;
  const uint8_t* zeros;
  int64_t rows, cols, groups, group;
  int bits;
  DType scale_dtype;

  explicit LearnedView(const LearnedGrid& g)
      : level(g.level.as<float>()),
        factor(g.factor.as<float>()),
        mean(g.mean.as<float>()),
        square(g.square.as<float>()),
        scales(g.scales.as<float>()),
        zeros(g.zeros.data ? g.zeros.as<uint8_t>() : nullptr),
        rows(g.level.rows()),
        cols(g.level.cols()),
        groups(g.scales.cols()),
        group(g.group),
        bits(g.bits),
        scale_dtype(g.scale_dtype) {
    FEWBIT_ASSERT(group > 0 && groups == (cols + group - 1) / group && g.scales.rows() == rows);
    FEWBIT_ASSERT(g.factor.shape == g.scales.shape && g.mean.shape == g.scales.shape);
    FEWBIT_ASSERT(g.square.shape == g.scales.shape && (!zeros || g.zeros.shape == g.scales.shape));
  }

  // The `at`-th of rows * groups.
  FEWBIT_HD LearnedGroup operator()(int64_t at) const {
    const int64_t begin = at % groups * group, rest = cols - begin;
    LearnedGroup g;
    g.first = at / groups * cols + begin;
    g.count = rest < group ? rest : group;
    g.scale = scales[at];
    g.stored = stored_scale(mul_rn(scales[at], factor[at]), scale_dtype);
    g.zero = zeros ? zeros[at] : 1 << (bits - 1);
    g.max_code = (1 << bits) - 1;
    return g;
  }

  // The sign step of one level; `grad` is the gradient of its value.
  FEWBIT_HD void move_level(int64_t i, float grad, float rate, const LearnedGroup& g) const {
    const float slope = grad * g.stored;
    if (slope != 0) level[i] = add_rn(level[i], slope > 0 ? -rate : rate);
  }

  // Adam on one factor; `grad` is the gradient of the factor.
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

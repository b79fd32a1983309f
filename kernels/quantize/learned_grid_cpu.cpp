// Variables of learned rounding: the CPU half. One thread has a group of a row.
#include "kernels/quantize/learned_grid.h"

#include <algorithm>

#include "kernels/quantize/learned_group.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

template <class F>
void for_groups(const LearnedArrays& v, F&& f) {
  parallel_for(v.groups(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) f(at, v(at));
  });
}

}  // namespace

void learned_start(Exec& ex, ConstTensorView codes, const LearnedGrid& grid) {
  FEWBIT_ASSERT(codes.shape == grid.level.shape);
  std::fill_n(grid.factor.as<float>(), grid.factor.numel(), 1.f);
  ex.zero(grid.mean);
  ex.zero(grid.square);
  const LearnedArrays v(grid);
  for_groups(v, [&](int64_t, const LearnedGroup& g) {
    for (int64_t i = g.first; i < g.first + g.count; ++i)
      v.level[i] = static_cast<float>(codes.as<uint8_t>()[i] - g.zero);
  });
}

void learned_values(Exec&, const LearnedGrid& grid, TensorView w) {
  FEWBIT_ASSERT(w.shape == grid.level.shape);
  const LearnedArrays v(grid);
  for_groups(v, [&](int64_t, const LearnedGroup& g) {
    for (int64_t i = g.first; i < g.first + g.count; ++i) w.as<float>()[i] = g.rounded(v.level[i]) * g.stored;
  });
}

void learned_codes(Exec&, const LearnedGrid& grid, TensorView codes, TensorView scales) {
  FEWBIT_ASSERT(codes.shape == grid.level.shape && scales.shape == grid.factor.shape);
  const LearnedArrays v(grid);
  for_groups(v, [&](int64_t at, const LearnedGroup& g) {
    scales.as<float>()[at] = g.stored;
    for (int64_t i = g.first; i < g.first + g.count; ++i) codes.as<uint8_t>()[i] = g.code(v.level[i]);
  });
}

void learned_step(Exec&, ConstTensorView grad, const LearnedStep& step, const LearnedGrid& grid) {
  FEWBIT_ASSERT(grad.shape == grid.level.shape && step.count >= 1);
  const LearnedArrays v(grid);
  for_groups(v, [&](int64_t at, const LearnedGroup& g) {
    double slope = 0;
    for (int64_t i = g.first; i < g.first + g.count; ++i) {
      const float d = grad.as<float>()[i];
      slope += static_cast<double>(d) * g.rounded(v.level[i]);
      v.move_level(i, d, step.level_rate, g);
    }
    v.move_factor(at, static_cast<float>(slope) * g.scale, step);
  });
}

}  // namespace fewbit::cpu

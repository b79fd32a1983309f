// Weights to codes on a given grid: the CPU half. A thread has some rows.
#include "kernels/quantize/round_to_grid.h"

#include "kernels/grids/f8_grid.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void round_to_grid(Exec&, ConstTensorView w, const MutableCodedView& view) {
  const CodedArrays<true> q(view);
  const float* weights = w.as<float>();
  parallel_for(q.out, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int i = 0; i < q.in; ++i) {
        const int g = q.group_at(i);
        const float value = weights[q.index(o, i)], scale = q.scale(q.scale_row(o), g);
        uint8_t& code = q.codes[q.index(o, i)];
        if (view.grid == Grid::f8_e4m3) {
          code = f8_code(value / scale);
          continue;
        }
        const int zero = q.zero(o, g);
        code = static_cast<uint8_t>(static_cast<int>(grid_level(value, scale, zero, q.max_code)) + zero);
      }
  });
}

}  // namespace fewbit::cpu

// Weights to codes on a given grid: the CPU half.
#include "kernels/quantize/round_to_grid.h"

#include "kernels/grids/f8_grid.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void round_to_grid(Exec&, const RoundArgs& a, TensorView codes) {
  const int64_t out = a.w.rows(), in = a.w.cols(), groups = a.scales.cols();
  FEWBIT_ASSERT(codes.rows() == out && codes.cols() == in && a.group > 0 && a.out_group > 0);
  FEWBIT_ASSERT(a.scales.rows() == (out + a.out_group - 1) / a.out_group);
  FEWBIT_ASSERT(a.grid == Grid::integer || a.grid == Grid::f8_e4m3);
  const int max_code = (1 << a.bits) - 1, mid = 1 << (a.bits - 1);
  const int32_t* group_of = a.group_of.data ? a.group_of.as<int32_t>() : nullptr;
  const uint8_t* zeros = a.zeros.data ? a.zeros.as<uint8_t>() : nullptr;
  parallel_for(out, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t i = 0; i < in; ++i) {
        const int64_t g = group_of ? group_of[i] : i / a.group;
        const float w = a.w.as<float>()[o * in + i], scale = a.scales.as<float>()[o / a.out_group * groups + g];
        uint8_t& code = codes.as<uint8_t>()[o * in + i];
        if (a.grid == Grid::f8_e4m3) {
          code = f8_code(w / scale);
          continue;
        }
        const int zero = zeros ? zeros[o * groups + g] : mid;
        code = static_cast<uint8_t>(static_cast<int>(grid_level(w, scale, zero, max_code)) + zero);
      }
  });
}

}  // namespace fewbit::cpu

// Weights to codes on a given grid: the CPU half.
#include "kernels/round_to_grid.h"

#include "kernels/integer_grid.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void round_to_grid(Exec&, const RoundArgs& a, TensorView codes) {
  const int64_t out = a.w.rows(), in = a.w.cols(), groups = a.scales.cols();
  FEWBIT_ASSERT(codes.rows() == out && codes.cols() == in && a.scales.rows() == out && a.group > 0);
  const int max_code = (1 << a.bits) - 1, mid = 1 << (a.bits - 1);
  const int32_t* group_of = a.group_of.data ? a.group_of.as<int32_t>() : nullptr;
  const uint8_t* zeros = a.zeros.data ? a.zeros.as<uint8_t>() : nullptr;
  parallel_for(out, 16, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int64_t i = 0; i < in; ++i) {
        const int64_t g = o * groups + (group_of ? group_of[i] : i / a.group);
        const int zero = zeros ? zeros[g] : mid;
        const float level = grid_level(a.w.as<float>()[o * in + i], a.scales.as<float>()[g], zero, max_code);
        codes.as<uint8_t>()[o * in + i] = static_cast<uint8_t>(static_cast<int>(level) + zero);
      }
  });
}

}  // namespace fewbit::cpu

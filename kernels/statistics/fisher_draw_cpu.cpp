// Draws of the Fisher information of logits: the CPU half, sums in f64.
#include "kernels/statistics/fisher_draw.h"

#include <algorithm>
#include <cmath>

#include "src/core/parallel.h"

namespace fewbit::cpu {

void fisher_draw(Exec&, float softcap, uint64_t seed, int64_t first_row, TensorView logits) {
  const int64_t rows = logits.rows(), vocab = logits.cols();
  FEWBIT_ASSERT(logits.dtype == DType::f32 && vocab > 0);
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* z = logits.as<float>() + r * vocab;
      const float top = *std::max_element(z, z + vocab);
      double sum = 0;
      for (int64_t c = 0; c < vocab; ++c) sum += std::exp(z[c] - top);
      const auto scale = static_cast<float>(1 / sum);
      const auto signed_root = [&](int64_t c, float p) {
        return (fisher_signs(seed, first_row + r, c / 64) >> (c % 64) & 1) != 0 ? std::sqrt(p) : -std::sqrt(p);
      };
      double mean = 0;
      for (int64_t c = 0; c < vocab; ++c) mean += signed_root(c, std::exp(z[c] - top) * scale);
      for (int64_t c = 0; c < vocab; ++c) {
        const float p = std::exp(z[c] - top) * scale, share = softcap > 0 ? z[c] / softcap : 0;
        z[c] = (signed_root(c, p) - p * static_cast<float>(mean)) * (1 - share * share);
      }
    }
  });
}

}  // namespace fewbit::cpu

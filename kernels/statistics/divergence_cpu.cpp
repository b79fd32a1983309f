// Distance of two next-token distributions: the CPU half, in f64.
#include "kernels/statistics/divergence.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int kTop = 5;

double log_sum_exp(const float* z, int64_t n) {
  const float top = *std::max_element(z, z + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(z[i]) - top);
  return top + std::log(sum);
}

// Indices of the five largest, in order; the first index wins among equals.
std::array<int64_t, kTop> largest(const float* z, int64_t n) {
  std::array<int64_t, kTop> best{};
  int held = 0;
  for (int64_t i = 0; i < n; ++i) {
    int at = held;
    while (at > 0 && z[best[at - 1]] < z[i]) --at;
    if (at == kTop) continue;
    held = std::min(held + 1, kTop);
    for (int j = held - 1; j > at; --j) best[j] = best[j - 1];
    best[at] = i;
  }
  return best;
}

}  // namespace

void divergence(Exec&, ConstTensorView base, ConstTensorView model, const DivergenceOut& out) {
  const int64_t rows = base.rows(), vocab = base.cols();
  FEWBIT_ASSERT(model.rows() == rows && model.cols() == vocab && vocab >= kTop && out.kl.numel() == rows);
  parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* a = base.as<float>() + r * vocab;
      const float* b = model.as<float>() + r * vocab;
      const double za = log_sum_exp(a, vocab), zb = log_sum_exp(b, vocab);
      double kl = 0;
      for (int64_t v = 0; v < vocab; ++v) {
        const double lp = a[v] - za;
        kl += std::exp(lp) * (lp - (b[v] - zb));
      }
      const auto ta = largest(a, vocab), tb = largest(b, vocab);
      int shared = 0;
      for (const int64_t i : ta) shared += std::find(tb.begin(), tb.end(), i) != tb.end();
      out.kl.as<double>()[r] = kl;
      out.top1.as<int32_t>()[r] = ta[0] == tb[0];
      out.top5.as<int32_t>()[r] = shared;
    }
  });
}

}  // namespace fewbit::cpu

#pragma once
// The distance of two models by their logits. Internal to src/quant/search.
#include <algorithm>
#include <numeric>

#include "kernels/exec/exec.h"
#include "kernels/statistics/divergence.h"

namespace fewbit {

// Rows whose logits, of two models in f32, take at most 256 MiB.
inline int64_t divergence_rows(int64_t rows, int64_t vocab) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  return std::min(rows, std::max<int64_t>(1, kBytes / (2 * vocab * 4)));
}

// Mean KL(base || mine) per row, nats; `base(begin, end)` and `mine` make logits f32 [end - begin, vocab], of
// divergence_rows() at a time.
template <class Base, class Mine>
double mean_divergence(Exec& ex, int64_t rows, int64_t vocab, const Base& base, const Mine& mine) {
  const int64_t step = divergence_rows(rows, vocab);
  double sum = 0;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step), n = end - begin;
    const Tensor a = base(begin, end), b = mine(begin, end);
    const Tensor kl = ex.alloc(DType::f64, {n}), top1 = ex.alloc(DType::i32, {n}), top5 = ex.alloc(DType::i32, {n});
    divergence(ex, a, b, {.kl = kl, .top1 = top1, .top5 = top5});
    const Tensor host = ex.to_host(kl);
    sum = std::accumulate(host.as<double>(), host.as<double>() + n, sum);
  }
  return sum / static_cast<double>(rows);
}

}  // namespace fewbit

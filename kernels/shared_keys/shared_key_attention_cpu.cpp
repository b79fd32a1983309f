// Attention over keys that all heads share: the CPU half. A query is a task: its keys are gathered, then two products.
#include "kernels/shared_keys/shared_key_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

// The rows of near and of far keys that the query t at position p looks at.
std::pair<std::vector<int64_t>, std::vector<int64_t>> rows_in_sight(const SharedKeys& k, const SharedKeyArgs& a,
                                                                    int64_t t, int64_t p) {
  std::pair<std::vector<int64_t>, std::vector<int64_t>> rows;
  for (int64_t j = std::max<int64_t>(0, p + 1 - a.window); j <= p; ++j) rows.first.push_back(j);
  if (!k.far.data) return rows;
  const int64_t complete = (p + 1) / a.every;
  const auto add = [&](int64_t b) { rows.second.push_back(b * a.every + a.every - 1); };
  if (!k.chosen.data) {
    for (int64_t b = 0; b < complete; ++b) add(b);
    return rows;
  }
  const int32_t* chosen = k.chosen.as<int32_t>() + t * k.chosen.cols();
  for (int64_t i = 0; i < k.chosen.cols() && chosen[i] >= 0; ++i) {
    FEWBIT_ASSERT(chosen[i] < complete);
    add(chosen[i]);
  }
  return rows;
}

}  // namespace

void shared_key_attention(Exec&, ConstTensorView q, const SharedKeys& k, ConstTensorView sinks,
                          ConstTensorView positions, const SharedKeyArgs& a, TensorView out) {
  const int64_t seqs = k.keys.shape[0], capacity = k.keys.shape[1], d = k.keys.shape[2], len = q.rows() / seqs;
  for_float_type(q.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(q.rows(), 1, [&](int64_t t, int64_t) {
      blas::use_one_thread();
      const int64_t p = positions.as<int32_t>()[t], first = t / len * capacity;
      FEWBIT_ASSERT(p >= 0 && p < capacity);
      const auto [near, far] = rows_in_sight(k, a, t, p);
      const auto n = static_cast<int64_t>(near.size() + far.size());
      std::vector<float> keys(at(n * d)), query(at(a.heads * d)), scores(at(a.heads * n)), sum(at(a.heads * d));
      float* to = keys.data();
      for (const int64_t row : near) widen(k.keys.as<T>() + (first + row) * d, to, d), to += d;
      for (const int64_t row : far) widen(k.far.as<T>() + (first + row) * d, to, d), to += d;
      widen(q.as<T>() + t * a.heads * d, query.data(), a.heads * d);
      blas::gemm(CblasNoTrans, CblasTrans, a.heads, n, d, a.scale, query.data(), d, keys.data(), d, 0.f, scores.data(),
                 n);
      for (int64_t h = 0; h < a.heads; ++h) {
        float* own = scores.data() + h * n;
        const float sink = sinks.as<float>()[h], top = std::max(sink, *std::max_element(own, own + n));
        double all = std::exp(sink - top);
        for (int64_t i = 0; i < n; ++i) all += own[i] = std::exp(own[i] - top);
        for (int64_t i = 0; i < n; ++i) own[i] = static_cast<float>(own[i] / all);
      }
      blas::gemm(CblasNoTrans, CblasNoTrans, a.heads, d, n, 1.f, scores.data(), n, keys.data(), d, 0.f, sum.data(), d);
      narrow(sum.data(), out.as<T>() + t * a.heads * d, a.heads * d);
    });
  });
}

}  // namespace fewbit::cpu

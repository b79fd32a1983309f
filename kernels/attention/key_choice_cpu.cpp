// The choice of keys of sparse attention: the CPU half. A query is a task: one product of its heads with the keys, then
// a partial sort.
#include "kernels/attention/key_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

// The positions of the n largest of the scores, then -1.
void largest(const std::vector<float>& scores, int64_t n, int32_t* to) {
  const auto keys = static_cast<int64_t>(scores.size()), taken = std::min(n, keys);
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  if (taken < keys)
    std::nth_element(order.begin(), order.begin() + taken - 1, order.end(), [&](int32_t a, int32_t b) {
      return scores[at(a)] != scores[at(b)] ? scores[at(a)] > scores[at(b)] : a < b;
    });
  std::sort(order.begin(), order.begin() + taken);
  std::copy_n(order.begin(), taken, to);
  std::fill(to + taken, to + n, -1);
}

}  // namespace

void choose_keys(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView weights, ConstTensorView positions,
                 int64_t every, TensorView chosen) {
  const int64_t seqs = k.shape[0], rows = k.shape[1], d = k.shape[2], heads = weights.cols(), len = q.rows() / seqs;
  const int32_t* where = positions.as<int32_t>();
  for (int64_t s = 0; s < seqs; ++s) {
    const int64_t last = *std::max_element(where + s * len, where + (s + 1) * len), seen = (last + 1) / every;
    FEWBIT_ASSERT(last < rows && *std::min_element(where + s * len, where + (s + 1) * len) >= 0);
    for_float_type(q.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      std::vector<float> wide(at(seen * d));
      for (int64_t j = 0; j < seen; ++j)
        widen(k.as<T>() + (s * rows + j * every + every - 1) * d, wide.data() + j * d, d);
      parallel_for(len, 1, [&](int64_t i, int64_t) {
        blas::use_one_thread();
        const int64_t t = s * len + i, n = (where[t] + 1) / every;
        std::vector<float> query(at(heads * d)), weight(at(heads)), products(at(heads * n)), scores(at(n), 0.f);
        widen(q.as<T>() + t * heads * d, query.data(), heads * d);
        widen(weights.as<T>() + t * heads, weight.data(), heads);
        if (n > 0)
          blas::gemm(CblasNoTrans, CblasTrans, heads, n, d, 1.f, query.data(), d, wide.data(), d, 0.f, products.data(),
                     n);
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t j = 0; j < n; ++j) scores[at(j)] += weight[at(h)] * std::max(0.f, products[at(h * n + j)]);
        for (float& x : scores)
          if (std::isnan(x)) x = -std::numeric_limits<float>::infinity();
        largest(scores, chosen.cols(), chosen.as<int32_t>() + t * chosen.cols());
      });
    });
  }
}

}  // namespace fewbit::cpu

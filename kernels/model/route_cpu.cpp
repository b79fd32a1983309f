// Which experts a token goes to, and the weighted sum of what they answer: the CPU half.
#include "kernels/model/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

void route_token(const float* z, std::vector<int32_t>& order, bool renormalise, int64_t top_k, int32_t* ids,
                 float* weights) {
  const auto rank = [z](int32_t e) { return std::isnan(z[e]) ? -std::numeric_limits<float>::infinity() : z[e]; };
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                    [&](int32_t a, int32_t b) { return rank(a) != rank(b) ? rank(a) > rank(b) : a < b; });
  const float max = rank(order[0]);
  double all = 0, chosen = 0;
  for (size_t e = 0; e < order.size(); ++e) all += std::exp(static_cast<double>(z[e]) - max);
  for (int64_t i = 0; i < top_k; ++i) chosen += std::exp(static_cast<double>(z[order[i]]) - max);
  for (int64_t i = 0; i < top_k; ++i) {
    ids[i] = order[i];
    // Renormalised weights are divided twice in the formula; the sum over all experts cancels.
    const double weight = std::exp(static_cast<double>(z[ids[i]]) - max) / (renormalise ? chosen : all);
    weights[i] = std::isnan(all) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(weight);
  }
}

}  // namespace

void route(Exec&, ConstTensorView logits, bool renormalise, TensorView ids, TensorView weights) {
  const int64_t tokens = logits.rows(), experts = logits.cols(), top_k = ids.cols();
  FEWBIT_ASSERT(logits.dtype == DType::f32 && ids.dtype == DType::i32 && weights.dtype == DType::f32);
  FEWBIT_ASSERT(ids.rows() == tokens && ids.shape == weights.shape && top_k >= 1 && top_k <= experts);
  parallel_for(tokens, 64, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> order(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t)
      route_token(logits.as<float>() + t * experts, order, renormalise, top_k, ids.as<int32_t>() + t * top_k,
                  weights.as<float>() + t * top_k);
  });
}

void scatter_add_rows(Exec&, ConstTensorView x, ConstTensorView rows, ConstTensorView weights, TensorView y) {
  const int64_t n = rows.numel(), cols = y.cols();
  FEWBIT_ASSERT(rows.dtype == DType::i32 && weights.dtype == DType::f32 && y.dtype == DType::f32);
  FEWBIT_ASSERT(x.rows() == n && x.cols() == cols && weights.numel() == n);
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = rows.as<int32_t>()[i];
        FEWBIT_ASSERT(row >= 0 && row < y.rows());
        axpy(weights.as<float>()[i], x.as<T>() + i * cols, y.as<float>() + row * cols, cols);
      }
    });
  });
}

}  // namespace fewbit::cpu

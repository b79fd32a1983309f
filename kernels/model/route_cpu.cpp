// Which experts a token goes to, and the weighted sum of what they answer: the CPU half.
#include "kernels/model/route.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float or_never(float x) { return std::isnan(x) ? kNever : x; }

// One token after another; z are its logits.
class Router {
 public:
  Router(const RouteRule& rule, int64_t experts)
      : rule_(rule), score_(static_cast<size_t>(experts)), choice_(score_.size()), order_(score_.size()) {}

  void route(const float* z, int64_t top_k, int32_t* ids, float* weights) {
    const bool nan = score(z);
    if (rule_.groups > 1) keep_best_groups();
    sort(order_, choice_, top_k);
    double chosen = 0;
    for (int64_t i = 0; i < top_k; ++i) chosen += score_[at(order_[at(i)])];
    for (int64_t i = 0; i < top_k; ++i) {
      ids[i] = order_[at(i)];
      const double own = rule_.expert_scale.data ? rule_.expert_scale.as<float>()[ids[i]] : 1;
      const double weight = own * score_[at(ids[i])] / (rule_.renormalise ? chosen + kTiny : 1) * rule_.scaling;
      weights[i] = nan ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(weight);
    }
  }

 private:
  static constexpr double kTiny = 1e-20;
  template <class I>
  static size_t at(I i) {
    return static_cast<size_t>(i);
  }

  // Scores, and what the choice goes by: the logits themselves where that is the same order. True where one is NaN.
  bool score(const float* z) {
    const bool softmax = rule_.score == RouteScore::softmax;
    float max = kNever;
    for (size_t e = 0; e < score_.size(); ++e) max = std::max(max, or_never(z[e]));
    double all = 0;
    bool nan = false;
    for (size_t e = 0; e < score_.size(); ++e) {
      const double scale = rule_.logit_scale;
      score_[e] = softmax ? std::exp(scale * (static_cast<double>(z[e]) - max)) : score_alone(scale * z[e]);
      nan |= std::isnan(score_[e]);
      all += score_[e];
    }
    for (size_t e = 0; e < score_.size(); ++e) {
      if (softmax) score_[e] /= all;
      choice_[e] = or_never(rule_.bias.data ? static_cast<float>(score_[e]) + rule_.bias.as<float>()[e] : z[e]);
    }
    return nan;
  }

  // Of a score that does not depend on the other experts.
  double score_alone(double z) const {
    if (rule_.score == RouteScore::given) return z;
    if (rule_.score == RouteScore::root_softplus)
      return std::sqrt(std::max(z, 0.) + std::log1p(std::exp(-std::fabs(z))));
    return 1 / (1 + std::exp(-z));
  }

  void keep_best_groups() {
    const size_t groups = at(rule_.groups), each = choice_.size() / groups;
    std::vector<float> best(groups);
    std::vector<int32_t> order(groups);
    for (size_t g = 0; g < groups; ++g) {
      // In the terms of the scores: logits order experts as scores do, but do not add up as they do.
      std::vector<float> own(each);
      for (size_t i = 0; i < each; ++i)
        own[i] = rule_.bias.data ? choice_[g * each + i] : or_never(static_cast<float>(score_[g * each + i]));
      std::partial_sort(own.begin(), own.begin() + rule_.judges, own.end(), std::greater<>());
      best[g] = rule_.judges == 1 ? own[0] : own[0] + own[1];
    }
    sort(order, best, rule_.best_groups);
    std::vector<bool> kept(groups, false);
    for (int i = 0; i < rule_.best_groups; ++i) kept[at(order[at(i)])] = true;
    for (size_t e = 0; e < choice_.size(); ++e)
      if (!kept[e / each]) choice_[e] = kNever;
  }

  static void sort(std::vector<int32_t>& order, const std::vector<float>& by, int64_t first) {
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + first, order.end(),
                      [&](int32_t a, int32_t b) { return by[at(a)] != by[at(b)] ? by[at(a)] > by[at(b)] : a < b; });
  }

  const RouteRule& rule_;
  std::vector<double> score_;
  std::vector<float> choice_;
  std::vector<int32_t> order_;
};

}  // namespace

void route(Exec&, ConstTensorView logits, const RouteRule& rule, TensorView ids, TensorView weights) {
  const int64_t tokens = logits.rows(), experts = logits.cols(), top_k = ids.cols();
  parallel_for(tokens, 64, [&](int64_t begin, int64_t end) {
    Router router(rule, experts);
    for (int64_t t = begin; t < end; ++t)
      router.route(logits.as<float>() + t * experts, top_k, ids.as<int32_t>() + t * top_k,
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

void token_route(Exec&, ConstTensorView logits, ConstTensorView table, ConstTensorView ids, const TokenRouteRule& rule,
                 TensorView weights) {
  const int64_t experts = logits.cols(), top_k = table.cols();
  for_float_type(weights.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(logits.rows(), 64, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(experts));
      for (int64_t t = begin; t < end; ++t) {
        const int64_t id = ids.as<int32_t>()[t];
        FEWBIT_ASSERT(id >= 0 && id < table.rows());
        const auto score = [&](int64_t i) {
          const double z = logits.as<float>()[t * experts + table.as<int32_t>()[id * top_k + i]];
          return std::sqrt(std::max(z, 0.) + std::log1p(std::exp(-std::fabs(z))));
        };
        double sum = 1e-20;
        for (int64_t i = 0; i < top_k; ++i) sum += score(i);
        std::fill(row.begin(), row.end(), 0.f);
        for (int64_t i = 0; i < top_k; ++i)
          row[static_cast<size_t>(table.as<int32_t>()[id * top_k + i])] +=
              static_cast<float>(score(i) / (rule.renormalise ? sum : 1) * rule.scaling);
        narrow(row.data(), weights.as<T>() + t * experts, experts);
      }
    });
  });
}

}  // namespace fewbit::cpu

#include "kernels/model/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed run_route(Exec& ex, ConstTensorView logits, int64_t top_k, const RouteRule& rule) {
  const Tensor ids = poisoned(ex, DType::i32, {logits.rows(), top_k});
  const Tensor weights = poisoned(ex, DType::f32, {logits.rows(), top_k});
  route(ex, ex.to_device(logits), rule, ids, weights);
  const Tensor i = ex.to_host(ids), w = ex.to_host(weights);
  return {{i.as<int32_t>(), i.as<int32_t>() + i.numel()}, {w.as<float>(), w.as<float>() + w.numel()}};
}

FEWBIT_DEVICE_TEST(Route, SoftmaxThenTheLargest) {
  for (const int64_t experts : {1, 4, 31, 32, 33, 128, 300})
    for (const int64_t top_k : {1, 2, 8, 40})
      for (const bool renormalise : {false, true}) {
        if (top_k > experts) continue;
        const int64_t tokens = 19;
        const Tensor logits = random_normal(DType::f32, {tokens, experts}, 3, 4.f);
        const Routed found = run_route(ex, logits, top_k, {.renormalise = renormalise});
        const std::vector<double> z = doubles(logits);
        std::vector<int32_t> ids;
        std::vector<double> weights;
        for (int64_t t = 0; t < tokens; ++t) {
          std::vector<double> p(z.begin() + t * experts, z.begin() + (t + 1) * experts);
          double all = 0, chosen = 0;
          for (double& v : p) all += v = std::exp(v);
          std::vector<int32_t> order(static_cast<size_t>(experts));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p[a] > p[b]; });
          for (int64_t i = 0; i < top_k; ++i) chosen += p[order[i]];
          for (int64_t i = 0; i < top_k; ++i) {
            ids.push_back(order[i]);
            weights.push_back(p[order[i]] / (renormalise ? chosen : all));
          }
        }
        EXPECT_EQ(found.ids, ids) << experts << " " << top_k;
        const Shape shape = {tokens, top_k};
        EXPECT_LE(
            relative_error(Tensor::host_from<float>(DType::f32, shape, found.weights), from_doubles(weights, shape)),
            tol::kF32Op)
            << experts << " " << top_k << " " << renormalise;
      }
}

double root_softplus(double z) { return std::sqrt(std::log1p(std::exp(z))); }

// Three of nine experts by the root of their softplus, with a bias that moves the choice alone; then by a table, whose
// weights route() takes as they are.
FEWBIT_DEVICE_TEST(Route, RootsOfSoftplusAndExpertsOfTheToken) {
  const int64_t tokens = 21, experts = 9, vocab = 5;
  const int top_k = 3;
  const Tensor logits = random_normal(DType::f32, {tokens, experts}, 3, 3.f),
               bias = random_normal(DType::f32, {experts}, 4, 2.f);
  const std::vector<double> z = doubles(logits), b = doubles(bias);
  const Tensor device_bias = ex.to_device(bias);
  const RouteRule rule{.score = RouteScore::root_softplus, .scaling = 1.5f, .bias = device_bias};
  const Routed found = run_route(ex, logits, top_k, rule);
  std::vector<int32_t> table(vocab * top_k), ids(tokens);
  for (int i = 0; i < vocab * top_k; ++i) table[static_cast<size_t>(i)] = (i / top_k * 2 + i % top_k) % 9;
  for (int t = 0; t < tokens; ++t) ids[static_cast<size_t>(t)] = t * 3 % vocab;
  const Tensor dense = poisoned(ex, DType::f32, {tokens, experts});
  token_route(ex, ex.to_device(logits), ex.to_device(Tensor::host_from<int32_t>(DType::i32, {vocab, top_k}, table)),
              ex.to_device(host_i32(ids)), {.renormalise = true, .scaling = 1.5f}, dense);
  const Routed again = run_route(ex, ex.to_host(dense), top_k, {.renormalise = false, .score = RouteScore::given});
  std::vector<double> expected(z.size(), 0.);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto score = [&](int64_t e) { return root_softplus(z[static_cast<size_t>(t * experts + e)]); };
    std::vector<int32_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
      return score(x) + b[static_cast<size_t>(x)] > score(y) + b[static_cast<size_t>(y)];
    });
    double sum = 0, given = 0;
    const auto meant = [&](int i) { return table[static_cast<size_t>(ids[static_cast<size_t>(t)] * top_k + i)]; };
    for (int i = 0; i < top_k; ++i) sum += score(order[static_cast<size_t>(i)]), given += score(meant(i));
    std::vector<int32_t> wanted, chosen;
    for (int i = 0; i < top_k; ++i) {
      const auto at = static_cast<size_t>(t * top_k + i);
      EXPECT_EQ(found.ids[at], order[static_cast<size_t>(i)]);
      EXPECT_NEAR(found.weights[at], 1.5 * score(found.ids[at]) / sum, 1e-5);
      expected[static_cast<size_t>(t * experts + meant(i))] = 1.5 * score(meant(i)) / given;
      wanted.push_back(meant(i)), chosen.push_back(again.ids[at]);
      EXPECT_EQ(again.weights[at], ex.to_host(dense).as<float>()[t * experts + again.ids[at]]);
    }
    std::sort(wanted.begin(), wanted.end()), std::sort(chosen.begin(), chosen.end());
    EXPECT_EQ(chosen, wanted);
  }
  EXPECT_LE(error_of(ex, dense, expected), tol::kF32Op);
}

FEWBIT_DEVICE_TEST(Route, TiesGoToTheLowerIndexAndNaNsComeLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> z = {1, 2, 2, 1, 2, -inf, nan, -inf, nan, 3, nan, 1, 0, 0, 0, 0};
  const Tensor logits = Tensor::host_from<float>(DType::f32, {4, 4}, std::span<const float>(z));
  const Routed found = run_route(ex, logits, 3, {});
  EXPECT_EQ(found.ids, (std::vector<int32_t>{1, 2, 0, 0, 1, 2, 1, 3, 0, 0, 1, 2}));
  for (size_t i = 0; i < found.weights.size(); ++i)
    EXPECT_EQ(std::isnan(found.weights[i]), i / 3 == 1 || i / 3 == 2) << i;  // the tokens with a NaN
}

// Scores by the logistic function or the softmax, a bias for the choice alone, the best groups, a factor.
FEWBIT_DEVICE_TEST(Route, ByBiasedScoresOfTheBestGroups) {
  const int64_t tokens = 23, experts = 24, top_k = 5;
  const Tensor logits = random_normal(DType::f32, {tokens, experts}, 3, 2.f);
  const Tensor bias = random_normal(DType::f32, {experts}, 4, 0.3f), on_device = ex.to_device(bias);
  const std::vector<double> z = doubles(logits), b = doubles(bias);
  for (const RouteScore score : {RouteScore::softmax, RouteScore::sigmoid})
    for (const bool biased : {false, true})
      for (const auto& [groups, best_groups, judges] :
           {std::tuple{1, 1, 2}, {4, 2, 2}, {12, 5, 2}, {4, 2, 1}, {24, 7, 1}}) {
        const RouteRule rule{.score = score,
                             .scaling = 2.5f,
                             .groups = groups,
                             .best_groups = best_groups,
                             .judges = judges,
                             .bias = biased ? on_device.view() : ConstTensorView{},
                             .logit_scale = 0.5f,
                             .expert_scale = on_device};
        const Routed found = run_route(ex, logits, top_k, rule);
        std::vector<int32_t> ids;
        std::vector<double> weights;
        for (int64_t t = 0; t < tokens; ++t) {
          std::vector<double> s(z.begin() + t * experts, z.begin() + (t + 1) * experts), c(s.size()), two;
          double all = 0, chosen = 0;
          for (double& v : s) all += std::exp(v *= 0.5);
          for (double& v : s) v = score == RouteScore::softmax ? std::exp(v) / all : 1 / (1 + std::exp(-v));
          for (size_t e = 0; e < s.size(); ++e) c[e] = s[e] + (biased ? b[e] : 0);
          const int64_t each = experts / groups;
          std::vector<int32_t> group_order(static_cast<size_t>(groups)), order(static_cast<size_t>(experts));
          for (int g = 0; g < groups; ++g) {
            std::vector<double> own(c.begin() + g * each, c.begin() + (g + 1) * each);
            std::sort(own.rbegin(), own.rend());
            two.push_back(judges == 1 ? own[0] : own[0] + own[1]);
          }
          std::iota(group_order.begin(), group_order.end(), 0);
          std::stable_sort(group_order.begin(), group_order.end(), [&](int a, int o) { return two[a] > two[o]; });
          for (int i = best_groups; i < groups; ++i)
            for (int64_t e = 0; e < each; ++e) c[static_cast<size_t>(group_order[i] * each + e)] = -1e9;
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t o) { return c[a] > c[o]; });
          for (int64_t i = 0; i < top_k; ++i) chosen += s[order[i]];
          for (int64_t i = 0; i < top_k; ++i) {
            ids.push_back(order[i]);
            weights.push_back(2.5 * s[order[i]] / chosen * b[order[i]]);
          }
        }
        EXPECT_EQ(found.ids, ids) << groups << " " << biased;
        const Shape shape = {tokens, top_k};
        EXPECT_LE(
            relative_error(Tensor::host_from<float>(DType::f32, shape, found.weights), from_doubles(weights, shape)),
            tol::kF32Op);
      }
}

FEWBIT_DEVICE_TEST(ScatterAddRows, AddsWeightedRowsWhereTheyBelong) {
  const std::vector<int32_t> rows = {6, 0, 3, 4};
  const std::vector<float> weights = {0.25f, 1.f, -2.f, 0.5f};
  for (const int64_t cols : kSizes)
    for (const DType dtype : kComputeTypes) {
      const Tensor x = random_normal(dtype, {4, cols}, 1), before = random_normal(DType::f32, {7, cols}, 2);
      const Tensor y = ex.to_device(before);
      scatter_add_rows(ex, ex.to_device(x), ex.to_device(host_i32(rows)),
                       ex.to_device(Tensor::host_from<float>(DType::f32, {4}, weights)), y);
      std::vector<double> expected = doubles(before);
      const std::vector<double> in = doubles(x);
      for (size_t i = 0; i < rows.size(); ++i)
        for (int64_t c = 0; c < cols; ++c)
          expected[static_cast<size_t>(rows[i] * cols + c)] += weights[i] * in[i * cols + c];
      EXPECT_LE(error_of(ex, y, expected), tol::kF32Op) << name_of(dtype) << " " << cols;
    }
}

}  // namespace
}  // namespace fewbit::test

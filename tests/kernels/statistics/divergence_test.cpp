#include "kernels/statistics/divergence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

struct Row {
  double kl;
  int top1, top5;
};

// The definition, in double.
Row by_hand(const float* a, const float* b, int64_t n) {
  const auto log_softmax = [n](const float* z) {
    std::vector<double> out(z, z + n);
    const double top = *std::max_element(out.begin(), out.end());
    double sum = 0;
    for (const double v : out) sum += std::exp(v - top);
    for (double& v : out) v -= top + std::log(sum);
    return out;
  };
  const auto top5 = [n](const float* z) {
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [z](int64_t i, int64_t j) { return z[i] > z[j]; });
    order.resize(5);
    return order;
  };
  const auto p = log_softmax(a), q = log_softmax(b);
  Row r{0, 0, 0};
  for (size_t v = 0; v < p.size(); ++v) r.kl += std::exp(p[v]) * (p[v] - q[v]);
  const auto ta = top5(a), tb = top5(b);
  r.top1 = ta[0] == tb[0];
  for (const int64_t i : ta) r.top5 += static_cast<int>(std::count(tb.begin(), tb.end(), i));
  return r;
}

void expect_definition(Exec& ex, int64_t rows, int64_t vocab) {
  Tensor a = random_normal(DType::f32, {rows, vocab}, 1, 3), b = clone_host(a);
  const Tensor noise = random_normal(DType::f32, {rows, vocab}, 2, 0.3f);
  for (int64_t i = 0; i < b.numel(); ++i) b.as<float>()[i] += noise.as<float>()[i];
  a.as<float>()[1] = a.as<float>()[3] = 50;  // a tie for the first place of row 0
  const Tensor kl = poisoned(ex, DType::f64, {rows}), top1 = poisoned(ex, DType::i32, {rows}),
               top5 = poisoned(ex, DType::i32, {rows});
  divergence(ex, ex.to_device(a), ex.to_device(b), {.kl = kl, .top1 = top1, .top5 = top5});
  const Tensor hk = ex.to_host(kl), h1 = ex.to_host(top1), h5 = ex.to_host(top5);
  for (int64_t r = 0; r < rows; ++r) {
    const Row expected = by_hand(a.as<float>() + r * vocab, b.as<float>() + r * vocab, vocab);
    EXPECT_NEAR(hk.as<double>()[r], expected.kl, tol::kF32Op * std::max(1.0, expected.kl)) << "row " << r;
    EXPECT_EQ(h1.as<int32_t>()[r], expected.top1) << "row " << r;
    EXPECT_EQ(h5.as<int32_t>()[r], expected.top5) << "row " << r;
  }
}

FEWBIT_DEVICE_TEST(Divergence, MatchesTheDefinition) {
  for (const int64_t vocab : {5, 33, 1000, 4097}) expect_definition(ex, 7, vocab);
  if (ex.on_cuda()) expect_definition(ex, 7, 128256);
}

FEWBIT_DEVICE_TEST(Divergence, OfAModelWithItselfIsZero) {
  const Tensor a = ex.to_device(random_normal(DType::f32, {3, 501}, 4, 5));
  const Tensor kl = ex.alloc(DType::f64, {3}), top1 = ex.alloc(DType::i32, {3}), top5 = ex.alloc(DType::i32, {3});
  divergence(ex, a, a, {.kl = kl, .top1 = top1, .top5 = top5});
  const Tensor hk = ex.to_host(kl), h1 = ex.to_host(top1), h5 = ex.to_host(top5);
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_EQ(hk.as<double>()[r], 0);
    EXPECT_EQ(h1.as<int32_t>()[r], 1);
    EXPECT_EQ(h5.as<int32_t>()[r], 5);
  }
}

}  // namespace
}  // namespace fewbit::test

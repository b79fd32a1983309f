// The norm and the router's logits of a few tokens, on both devices, against sums in double.
#include "kernels/decode/experts/router_logits.h"

#include <cmath>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Rows of one and two vectors a thread, and those that the kernel leaves to others.
FEWBIT_DEVICE_TEST(RouterLogits, AreThoseOfTheNormedTokens) {
  for (const int64_t hidden : {64, 1032, 2880, 4096, 7168, 8200, 90})
    for (const bool biased : {false, true}) {
      const int64_t experts = 33, tokens = 5;
      const Tensor x = random_normal(DType::bf16, {tokens, hidden}, 1),
                   weight = random_normal(DType::bf16, {hidden}, 2),
                   w = random_normal(DType::bf16, {experts, hidden}, 3, 0.05f),
                   bias = random_normal(DType::bf16, {experts}, 4);
      const Tensor there = ex.to_device(x), scale = ex.to_device(weight), router = ex.to_device(w),
                   biases = biased ? ex.to_device(bias) : Tensor{};
      const RowNorm norm{.weight = scale, .eps = 1e-5f, .offset = 1};
      const auto run = [&](int64_t begin, int64_t end) {
        std::pair<Tensor, Tensor> to{poisoned(ex, DType::bf16, {end - begin, hidden}),
                                     poisoned(ex, DType::f32, {end - begin, experts})};
        router_logits(ex, there.view().row_range(begin, end), norm, router, biases, to.first, to.second);
        return std::pair{ex.to_host(to.first), ex.to_host(to.second)};
      };
      const auto [normed, logits] = run(0, tokens);
      std::vector<double> rows, expected;
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<double> row = doubles(x.view().row_range(t, t + 1)), by = doubles(weight);
        double squares = 0;
        for (const double v : row) squares += v * v;
        const double inverse = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-5);
        for (size_t c = 0; c < row.size(); ++c) rows.push_back(row[c] * inverse * (by[c] + 1));
        const std::vector<double> read = doubles(normed.view().row_range(t, t + 1));
        for (int64_t e = 0; e < experts; ++e) {
          double sum = biased ? doubles(bias)[static_cast<size_t>(e)] : 0;
          const std::vector<double> of = doubles(w.view().row_range(e, e + 1));
          for (size_t c = 0; c < of.size(); ++c) sum += of[c] * read[c];
          expected.push_back(sum);
        }
      }
      EXPECT_LE(relative_error(normed, from_doubles(rows, normed.shape())), tol::kBf16Op) << hidden;
      EXPECT_LE(relative_error(logits, from_doubles(expected, logits.shape())), tol::kF32Product) << hidden;
      const auto [alone, of_it] = run(2, 3);
      EXPECT_EQ(first_difference(alone, normed.view().row_range(2, 3)), "") << hidden;
      if (hidden % 8 == 0 && hidden <= 8192) {
        EXPECT_EQ(first_difference(of_it, logits.view().row_range(2, 3)), "") << hidden;
      }
    }
}

}  // namespace
}  // namespace fewbit::test

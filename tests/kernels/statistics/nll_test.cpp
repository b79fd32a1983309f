#include "kernels/statistics/nll.h"

#include <cmath>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

FEWBIT_DEVICE_TEST(Nll, MatchesTheLogSumExp) {
  for (const int64_t vocab : kSizes)
    for (const float softcap : {0.f, 3.f}) {
      const int64_t rows = 7;
      const Tensor logits = random_normal(DType::f32, {rows, vocab}, 1, 5.f);
      std::vector<int32_t> targets;
      for (int64_t r = 0; r < rows; ++r) targets.push_back(r == 2 ? -1 : static_cast<int32_t>((r * 37) % vocab));
      const Tensor out = poisoned(ex, DType::f32, {rows});
      nll(ex, ex.to_device(logits), ex.to_device(host_i32(targets)), softcap, out);
      std::vector<double> z = doubles(logits), expected;
      if (softcap > 0)
        for (double& v : z) v = softcap * std::tanh(v / softcap);
      for (int64_t r = 0; r < rows; ++r) {
        const int32_t target = targets[static_cast<size_t>(r)];
        double sum = 0, top = -1e300;
        for (int64_t v = 0; v < vocab; ++v) top = std::max(top, z[static_cast<size_t>(r * vocab + v)]);
        for (int64_t v = 0; v < vocab; ++v) sum += std::exp(z[static_cast<size_t>(r * vocab + v)] - top);
        expected.push_back(target < 0 ? 0 : std::log(sum) + top - z[static_cast<size_t>(r * vocab + target)]);
      }
      EXPECT_LE(error_of(ex, out, expected), tol::kF32Op) << vocab << " softcap " << softcap;
    }
}

FEWBIT_DEVICE_TEST(Nll, LargeLogitsDoNotOverflow) {
  const float values[] = {1e4f, 1e4f, -1e4f};
  const Tensor out = poisoned(ex, DType::f32, {1});
  nll(ex, ex.to_device(Tensor::host_from<float>(DType::f32, {1, 3}, values)), ex.to_device(host_i32({1})), 0.f, out);
  EXPECT_LE(error_of(ex, out, {std::log(2.0)}), tol::kF32Op);
}

FEWBIT_DEVICE_TEST(CapLogits, MatchesTheFormulaInPlace) {
  for (const int64_t vocab : kSizes) {
    const Tensor logits = random_normal(DType::f32, {3, vocab}, 1, 40.f), found = ex.to_device(logits);
    cap_logits(ex, 30.f, found);
    std::vector<double> expected = doubles(logits);
    for (double& z : expected) z = 30 * std::tanh(z / 30);
    EXPECT_LE(error_of(ex, found, expected), tol::kF32Op) << vocab;
  }
}

FEWBIT_DEVICE_TEST(Argmax, TakesTheFirstAmongEquals) {
  for (const int64_t vocab : kSizes) {
    const int64_t rows = 5;
    Tensor logits = random_normal(DType::f32, {rows, vocab}, 1);
    for (int64_t r = 0; r < rows; ++r) {
      logits.as<float>()[r * vocab + (r * 11) % vocab] = 50;
      logits.as<float>()[r * vocab + vocab - 1] = 50;
    }
    const Tensor ids = poisoned(ex, DType::i32, {rows});
    argmax(ex, ex.to_device(logits), ids);
    const Tensor found = ex.to_host(ids);
    for (int64_t r = 0; r < rows; ++r)
      EXPECT_EQ(found.as<int32_t>()[r], (r * 11) % vocab) << "row " << r << " of " << vocab;
  }
}

// A row of a vocabulary that several blocks share, again and again: what they count with is left as it was.
FEWBIT_DEVICE_TEST(Argmax, OfLongRowsOneAfterAnother) {
  constexpr int64_t kVocab = 128256;
  const Tensor ids = poisoned(ex, DType::i32, {2});
  for (const int64_t rows : {1, 2, 1})
    for (const int32_t at : {0, 2047, 2048, 70000, 128255}) {
      Tensor logits = random_normal(DType::f32, {rows, kVocab}, 2);
      for (int64_t r = 0; r < rows; ++r)
        for (const int64_t i : {int64_t{at}, kVocab - 1})
          logits.as<float>()[r * kVocab + std::max<int64_t>(at, i - r)] = 50;
      argmax(ex, ex.to_device(logits), ids.view().reshaped({2, 1}).row_range(0, rows));
      const Tensor found = ex.to_host(ids);
      for (int64_t r = 0; r < rows; ++r) EXPECT_EQ(found.as<int32_t>()[r], at) << "row " << r << " of " << rows;
    }
  Tensor nothing = Tensor::host(DType::f32, {1, kVocab});
  for (int64_t i = 0; i < kVocab; ++i) nothing.as<float>()[i] = -INFINITY;
  argmax(ex, ex.to_device(nothing), ids.view().reshaped({2, 1}).row_range(0, 1));
  EXPECT_EQ(ex.to_host(ids).as<int32_t>()[0], 0);
}

FEWBIT_DEVICE_TEST(Advance, AddsToEveryPosition) {
  const Tensor values = ex.to_device(host_i32({0, 5, -3}));
  advance(ex, values, 2);
  const Tensor found = ex.to_host(values);
  EXPECT_EQ(first_difference(found, host_i32({2, 7, -1})), "");
}

}  // namespace
}  // namespace fewbit::test

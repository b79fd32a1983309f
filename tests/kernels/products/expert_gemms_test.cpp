// Products of many weights, each with rows of its own.
#include "kernels/products/expert_gemms.h"

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Weights in turn for runs of rows of these lengths, with a gap of a row behind each.
struct Problem {
  Tensor x{}, y{};
  std::vector<Tensor> weights{};
  std::vector<ExpertProduct> products{};
};
Problem problem(Exec& ex, DType dtype, int64_t in, int64_t out, const std::vector<int64_t>& lengths) {
  Problem p;
  int64_t row = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    p.weights.push_back(ex.to_device(random_normal(dtype, {out, in}, 20 + i)));
    p.products.push_back({.w = p.weights.back(), .begin = row, .end = row + lengths[i]});
    row += lengths[i] + 1;
  }
  p.x = ex.to_device(random_normal(dtype, {row, in}, 3));
  p.y = ex.alloc_zeros(dtype, {row, out});
  return p;
}

FEWBIT_DEVICE_TEST(ExpertGemms, MatchTheDoubleProduct) {
  for (const DType dtype : kComputeTypes)
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{64, 8}, {192, 136}, {768, 256}, {65, 30}}) {
      const Problem p = problem(ex, dtype, in, out, {3, 0, 128, 200, 1});
      expert_gemms(ex, p.x, p.products, p.y);
      const std::vector<double> x = doubles(ex.to_host(p.x));
      std::vector<double> expected(static_cast<size_t>(p.y.numel()), 0);
      for (size_t i = 0; i < p.products.size(); ++i) {
        const std::vector<double> w = doubles(ex.to_host(p.weights[i]));
        for (int64_t r = p.products[i].begin; r < p.products[i].end; ++r)
          for (int64_t o = 0; o < out; ++o)
            for (int64_t k = 0; k < in; ++k)
              expected[static_cast<size_t>(r * out + o)] +=
                  x[static_cast<size_t>(r * in + k)] * w[static_cast<size_t>(o * in + k)];
      }
      EXPECT_LE(error_of(ex, p.y, expected), product_tolerance(dtype)) << name_of(dtype) << " " << in << " " << out;
    }
}

// Each product alone, and its rows in two parts.
FEWBIT_DEVICE_TEST(ExpertGemms, BitsOfARowDependOnNoOther) {
  const Problem p = problem(ex, DType::bf16, 256, 200, {70, 300, 129});
  ASSERT_TRUE(takes_expert_gemms(DType::bf16, 200, 256));
  if (!ex.on_cuda()) GTEST_SKIP() << "a rule of the GPU's kernel";
  expert_gemms(ex, p.x, p.products, p.y);
  const Tensor apart = ex.alloc_zeros(DType::bf16, p.y.shape());
  for (const ExpertProduct& one : p.products) {
    const int64_t middle = (one.begin + one.end) / 2;
    const ExpertProduct parts[] = {{.w = one.w, .begin = one.begin, .end = middle},
                                   {.w = one.w, .begin = middle, .end = one.end}};
    for (const ExpertProduct& part : parts) expert_gemms(ex, p.x, std::span(&part, 1), apart);
  }
  EXPECT_EQ(doubles(ex.to_host(p.y)), doubles(ex.to_host(apart)));
}

// More products than a launch takes.
FEWBIT_DEVICE_TEST(ExpertGemms, OfManyExperts) {
  const Problem p = problem(ex, DType::bf16, 64, 16, std::vector<int64_t>(300, 2));
  expert_gemms(ex, p.x, p.products, p.y);
  const Tensor each = ex.alloc_zeros(DType::bf16, p.y.shape());
  for (const ExpertProduct& one : p.products) expert_gemms(ex, p.x, std::span(&one, 1), each);
  EXPECT_EQ(doubles(ex.to_host(p.y)), doubles(ex.to_host(each)));
}

}  // namespace
}  // namespace fewbit::test

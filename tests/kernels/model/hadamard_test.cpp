#include "kernels/model/hadamard.h"

#include <bit>
#include <cmath>

#include "src/core/half.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Entry (i, j) of the matrix of a run, from its definition: the parity of i & j.
double entry(int64_t i, int64_t j, int64_t run) {
  const double sign = std::popcount(static_cast<uint64_t>(i & j)) % 2 ? -1 : 1;
  return sign / std::sqrt(static_cast<double>(run));
}

std::vector<double> turned(const std::vector<double>& x, int64_t run) {
  std::vector<double> y(x.size(), 0.);
  for (size_t first = 0; first < x.size(); first += static_cast<size_t>(run))
    for (int64_t i = 0; i < run; ++i)
      for (int64_t j = 0; j < run; ++j)
        y[first + static_cast<size_t>(i)] += entry(i, j, run) * x[first + static_cast<size_t>(j)];
  return y;
}

FEWBIT_DEVICE_TEST(Hadamard, TurnsRunsOfQueriesAndKeys) {
  for (const auto& [head_dim, run] : {std::pair<int64_t, int64_t>{64, 64}, {80, 16}, {96, 32}, {128, 128}, {256, 256}})
    for (const DType dtype : kComputeTypes) {
      EXPECT_EQ(hadamard_run(head_dim), run);
      const Tensor q0 = random_normal(dtype, {5, 3 * head_dim}, 1), k0 = random_normal(dtype, {5, head_dim}, 2);
      const Tensor q = ex.to_device(q0), k = ex.to_device(k0);
      hadamard(ex, q, k, head_dim);
      EXPECT_LE(error_of(ex, q, turned(doubles(q0), run)), op_tolerance(dtype)) << name_of(dtype) << " " << head_dim;
      EXPECT_LE(error_of(ex, k, turned(doubles(k0), run)), op_tolerance(dtype)) << name_of(dtype) << " " << head_dim;
    }
}

// Mean square error of the scores q k^T when every key is rounded to E4M3.
double score_error(const std::vector<double>& q, const std::vector<double>& k, int64_t head_dim) {
  double sum = 0;
  for (size_t i = 0; i < q.size(); i += static_cast<size_t>(head_dim)) {
    double error = 0;
    for (size_t c = i; c < i + static_cast<size_t>(head_dim); ++c)
      error += q[c] * (f8_e4m3_to_f32(f32_to_f8_e4m3_saturated(static_cast<float>(k[c]))) - k[c]);
    sum += error * error;
  }
  return sum;
}

FEWBIT_DEVICE_TEST(Hadamard, SparesScoresTheRoundingOfSharedLargeChannels) {
  constexpr int64_t kTokens = 200, kHeadDim = 64;
  const auto with_large_channels = [&](uint64_t seed) {
    Tensor x = random_normal(DType::f32, {kTokens, kHeadDim}, seed);
    for (int64_t t = 0; t < kTokens; ++t)
      for (const int64_t c : {3, 20, 41}) x.as<float>()[t * kHeadDim + c] *= 10;
    return x;
  };
  const Tensor q0 = with_large_channels(1), k0 = with_large_channels(2);
  const Tensor q = ex.to_device(q0), k = ex.to_device(k0);
  hadamard(ex, q, k, kHeadDim);
  EXPECT_LT(2 * score_error(doubles(ex.to_host(q)), doubles(ex.to_host(k)), kHeadDim),
            score_error(doubles(q0), doubles(k0), kHeadDim));
}

}  // namespace
}  // namespace fewbit::test

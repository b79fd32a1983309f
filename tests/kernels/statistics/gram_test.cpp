#include "kernels/statistics/gram_lanes.h"

#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

Matrix product_reference(const Tensor& a, const Tensor& b) {
  const Tensor fa = to_f32(a), fb = to_f32(b);
  const int64_t m = a.cols(), n = b.cols();
  Matrix d(static_cast<size_t>(m * n), 0.0);
  for (int64_t t = 0; t < a.rows(); ++t)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        d[static_cast<size_t>(i * n + j)] += static_cast<double>(fa.as<float>()[t * m + i]) * fb.as<float>()[t * n + j];
  return d;
}

double error_against(const Tensor& got, const Matrix& want) {
  double diff = 0, norm = 0;
  for (int64_t i = 0; i < got.numel(); ++i) {
    const double d = got.as<float>()[i] - want[static_cast<size_t>(i)];
    diff += d * d;
    norm += want[static_cast<size_t>(i)] * want[static_cast<size_t>(i)];
  }
  return std::sqrt(diff / norm);
}

FEWBIT_DEVICE_TEST(Gram, SumsOuterProductsOntoWhatIsThere) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t n : {1, 33, 130, 300}) {
      const Tensor x = random_normal(dtype, {70, n}, 3), y = random_normal(dtype, {70, n}, 4);
      const Tensor g = ex.alloc_zeros(DType::f32, {n, n}), d = ex.alloc_zeros(DType::f32, {n, n});
      const Tensor dx = ex.to_device(x), dy = ex.to_device(y);
      gram(ex, dx, g);
      cross_gram(ex, dx, dy, d);
      EXPECT_LT(error_against(ex.to_host(g), product_reference(x, x)), tol::kF32Op) << n;
      EXPECT_LT(error_against(ex.to_host(d), product_reference(x, y)), tol::kF32Op) << n;
      gram(ex, dx, g);
      Matrix twice = product_reference(x, x);
      for (double& v : twice) v *= 2;
      EXPECT_LT(error_against(ex.to_host(g), twice), tol::kF32Op) << n;
    }
}

// Products of two kinds of rows, in bands too.
FEWBIT_DEVICE_TEST(Gram, CrossSumsNeedNotBeSquare) {
  const int64_t tile = gram_tile(ex.device().kind);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 40}, {130, 33}, {33, 300}, {tile + 20, 70}}) {
      const Tensor a = random_normal(dtype, {70, m}, 3), b = random_normal(dtype, {70, n}, 4);
      const Tensor whole = ex.alloc_zeros(DType::f32, {m, n}), bands = ex.alloc_zeros(DType::f32, {m, n});
      const Tensor da = ex.to_device(a), db = ex.to_device(b);
      cross_gram(ex, da, db, whole);
      EXPECT_LT(error_against(ex.to_host(whole), product_reference(a, b)), tol::kF32Op) << m << " x " << n;
      for (const RowBand r : {RowBand{tile}, RowBand{0, tile}}) cross_gram(ex, da, db, bands, r);
      EXPECT_EQ(first_difference(ex.to_host(bands), ex.to_host(whole)), "") << m << " x " << n;
    }
}

FEWBIT_DEVICE_TEST(Gram, IsSymmetricToTheBit) {
  const int64_t n = 1100;  // more than one tile on either back end
  const Tensor x = ex.to_device(random_normal(DType::bf16, {50, n}, 8));
  const Tensor g = ex.alloc_zeros(DType::f32, {n, n});
  gram(ex, x, g);
  const Tensor h = ex.to_host(g);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < i; ++j) ASSERT_EQ(h.as<float>()[i * n + j], h.as<float>()[j * n + i]);
}

FEWBIT_DEVICE_TEST(Gram, BitsDoNotDependOnHowChunksAreBatched) {
  const int64_t n = 70, chunk = gram_chunk(ex.device().kind), tokens = 2 * chunk + 11;
  const Tensor x = ex.to_device(random_normal(DType::bf16, {tokens, n}, 5));
  const Tensor whole = ex.alloc_zeros(DType::f32, {n, n}), parts = ex.alloc_zeros(DType::f32, {n, n});
  gram(ex, x, whole);
  gram(ex, x.view().row_range(0, chunk), parts);
  gram(ex, x.view().row_range(chunk, tokens), parts);
  EXPECT_EQ(first_difference(ex.to_host(whole), ex.to_host(parts)), "");
}

// What one of several processes makes of the sums has the bits of the whole.
FEWBIT_DEVICE_TEST(Gram, BandsHaveTheBitsOfTheWhole) {
  const int64_t tile = gram_tile(ex.device().kind), n = 2 * tile + 40, tokens = 130;
  const Tensor x = ex.to_device(random_normal(DType::bf16, {tokens, n}, 6)),
               y = ex.to_device(random_normal(DType::bf16, {tokens, n}, 7));
  const auto sums = [&](const std::vector<RowBand>& bands) {
    const Tensor g = ex.alloc_zeros(DType::f32, {n, n}), d = ex.alloc_zeros(DType::f32, {n, n});
    for (const RowBand b : bands) {
      add_gram_half(ex, x, g, b);
      cross_gram(ex, x, y, d, b);
    }
    fill_gram_half(ex, g);
    return std::pair(ex.to_host(g), ex.to_host(d));
  };
  const auto [g, d] = sums({{}});
  const auto [bands_g, bands_d] = sums({{2 * tile, n}, {0, tile}, {tile, 2 * tile}});
  EXPECT_EQ(first_difference(bands_g, g), "");
  EXPECT_EQ(first_difference(bands_d, d), "");
}

// Sums on several streams have the bits of one, over several chunks and whatever the bands.
FEWBIT_DEVICE_TEST(Gram, LanesHaveTheBitsOfOneStream) {
  const bool cuda = ex.on_cuda();
  const int64_t tile = gram_tile(ex.device().kind), n = cuda ? 5 * tile + 72 : 70,
                tokens = 2 * gram_chunk(ex.device().kind) + 11;
  const Tensor x = ex.to_device(random_normal(DType::bf16, {tokens, n}, 8)),
               full = ex.to_device(random_normal(DType::bf16, {tokens, n}, 9));
  const Tensor g = ex.alloc_zeros(DType::f32, {n, n}), d = ex.alloc_zeros(DType::f32, {n, n});
  add_gram_half(ex, x, g);
  fill_gram_half(ex, g);
  cross_gram(ex, full, x, d);
  for (const bool beside : {true, false}) {
    const GramLanes lanes(ex, beside);
    const Tensor by_g = ex.alloc_zeros(DType::f32, {n, n}), by_d = ex.alloc_zeros(DType::f32, {n, n});
    for (const RowBand b : {RowBand{0, tile}, RowBand{tile}}) lanes.add(x, full, by_g, by_d, b, b);
    fill_gram_half(ex, by_g);
    EXPECT_EQ(first_difference(ex.to_host(by_g), ex.to_host(g)), "");
    EXPECT_EQ(first_difference(ex.to_host(by_d), ex.to_host(d)), "");
    const Tensor alone = ex.alloc_zeros(DType::f32, {n, n});
    lanes.add(x, {}, alone, {}, {}, {});
    fill_gram_half(ex, alone);
    EXPECT_EQ(first_difference(ex.to_host(alone), ex.to_host(g)), "");
  }
}

}  // namespace
}  // namespace fewbit

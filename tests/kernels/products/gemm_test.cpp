// Dense products and the general f32 product against sums in double.
#include "kernels/products/gemm.h"

#include "kernels/products/gemm_in_terms.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

std::vector<double> product(const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& bias,
                            const ProductShape& s) {
  std::vector<double> y(static_cast<size_t>(s.rows * s.out));
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t o = 0; o < s.out; ++o) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(o)];
      for (int64_t i = 0; i < s.in; ++i)
        sum += x[static_cast<size_t>(r * s.in + i)] * w[static_cast<size_t>(o * s.in + i)];
      y[static_cast<size_t>(r * s.out + o)] = sum;
    }
  return y;
}

FEWBIT_DEVICE_TEST(Gemm, MatchesTheDoubleProduct) {
  for (const ProductShape& s : kProducts)
    for (const DType dtype : kComputeTypes)
      for (const DType y_dtype : {DType::f32, dtype})
        for (const bool with_bias : {false, true}) {
          const Tensor x = random_normal(dtype, {s.rows, s.in}, 1), w = random_normal(dtype, {s.out, s.in}, 2);
          const Tensor bias = random_normal(dtype, {s.out}, 3);
          const Tensor y = poisoned(ex, y_dtype, {s.rows, s.out}), dx = ex.to_device(x), dw = ex.to_device(w);
          const Tensor db = ex.to_device(bias);
          gemm(ex, dx, dw, with_bias ? ConstTensorView(db) : ConstTensorView{}, y);
          const std::vector<double> expected =
              product(doubles(x), doubles(w), with_bias ? doubles(bias) : std::vector<double>{}, s);
          const double limit = y_dtype == DType::f32 ? tol::kF32Product : tol::kBf16Op;
          EXPECT_LE(error_of(ex, y, expected), limit)
              << name_of(dtype) << " to " << name_of(y_dtype) << " [" << s.rows << ", " << s.in << "] -> " << s.out
              << (with_bias ? " with bias" : "");
          const Tensor library = poisoned(ex, y_dtype, {s.rows, s.out});
          const GemmProduct same{.w = dw, .bias = with_bias ? ConstTensorView(db) : ConstTensorView{}, .y = library};
          library_gemms(ex, dx, std::span(&same, 1));
          EXPECT_LE(error_of(ex, library, expected), limit)
              << "by the library, [" << s.rows << ", " << s.in << "] -> " << s.out;
        }
}

// What is there already, the product and its bias. By cuBLAS the sum of the former and the latter is rounded as well.
FEWBIT_DEVICE_TEST(Gemm, AddsTheProductAndItsBias) {
  for (const ProductShape& s : kProducts) {
    const Tensor x = random_normal(DType::bf16, {s.rows, s.in}, 1), w = random_normal(DType::bf16, {s.out, s.in}, 2);
    const Tensor bias = random_normal(DType::bf16, {s.out}, 3, 30),
                 before = random_normal(DType::bf16, {s.rows, s.out}, 4, 30);
    std::vector<double> expected = product(doubles(x), doubles(w), doubles(bias), s);
    const std::vector<double> found = doubles(before);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += found[i];
    const Tensor dx = ex.to_device(x), dw = ex.to_device(w), db = ex.to_device(bias);
    const Tensor y = ex.to_device(before), library = ex.to_device(before);
    const GemmProduct own{.w = dw, .bias = db, .y = y, .add = true},
        same{.w = dw, .bias = db, .y = library, .add = true};
    gemms(ex, dx, std::span(&own, 1));
    library_gemms(ex, dx, std::span(&same, 1));
    EXPECT_LE(error_of(ex, y, expected), 2 * tol::kBf16Op) << "[" << s.rows << ", " << s.in << "] -> " << s.out;
    EXPECT_LE(error_of(ex, library, expected), 2 * tol::kBf16Op)
        << "by the library, [" << s.rows << ", " << s.in << "]";
  }
}

// More rows of w than are split at a time, too.
FEWBIT_DEVICE_TEST(GemmInTerms, MatchesTheDoubleProduct) {
  std::vector<ProductShape> shapes(std::begin(kProducts), std::end(kProducts));
  shapes.push_back({.rows = 5, .in = 70, .out = kTermRows + 17});
  for (const ProductShape& s : shapes) {
    const Tensor x = random_normal(DType::f32, {s.rows, s.in}, 1), w = random_normal(DType::f32, {s.out, s.in}, 2);
    const Tensor y = poisoned(ex, DType::f32, {s.rows, s.out});
    gemm_in_terms(ex, ex.to_device(x), ex.to_device(w), y);
    EXPECT_LE(error_of(ex, y, product(doubles(x), doubles(w), {}, s)),
              ex.on_cuda() ? tol::kTermsProduct : tol::kF32Product)
        << "[" << s.rows << ", " << s.in << "] -> " << s.out;
  }
}

FEWBIT_DEVICE_TEST(Matmul, EveryTransposeWithGapsAlphaAndBeta) {
  struct Size {
    int64_t m, n, k;
  };
  for (const Size s : {Size{1, 1, 1}, Size{33, 31, 97}, Size{300, 600, 45}})
    for (const Trans ta : {Trans::no, Trans::yes})
      for (const Trans tb : {Trans::no, Trans::yes}) {
        const int64_t gap = 3;
        const Shape sa = ta == Trans::no ? Shape{s.m, s.k + gap} : Shape{s.k, s.m + gap};
        const Shape sb = tb == Trans::no ? Shape{s.k, s.n + gap} : Shape{s.n, s.k + gap};
        const Tensor a = random_normal(DType::f32, sa, 1), b = random_normal(DType::f32, sb, 2);
        const Tensor c = random_normal(DType::f32, {s.m, s.n + gap}, 3);
        const Tensor da = ex.to_device(a), db = ex.to_device(b), dc = ex.to_device(c);
        MatmulArgs args{.ta = ta, .tb = tb, .alpha = 0.5f, .beta = -2.f};
        args.a = {da.as<float>(), sa[0], sa[1] - gap, sa[1]};
        args.b = {db.as<float>(), sb[0], sb[1] - gap, sb[1]};
        args.c = {dc.as<float>(), s.m, s.n, s.n + gap};
        matmul(ex, args);
        std::vector<double> expected = doubles(c);
        for (int64_t i = 0; i < s.m; ++i)
          for (int64_t j = 0; j < s.n; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < s.k; ++k)
              sum +=
                  static_cast<double>(ta == Trans::no ? a.as<float>()[i * sa[1] + k] : a.as<float>()[k * sa[1] + i]) *
                  (tb == Trans::no ? b.as<float>()[k * sb[1] + j] : b.as<float>()[j * sb[1] + k]);
            double& value = expected[static_cast<size_t>(i * (s.n + gap) + j)];
            value = 0.5 * sum - 2 * value;
          }
        EXPECT_LE(error_of(ex, dc, expected), tol::kF32Product) << s.m << " " << s.n << " " << s.k;
        const Tensor after = ex.to_host(dc);
        EXPECT_EQ(after.as<float>()[s.n], c.as<float>()[s.n]) << "wrote outside its columns";
      }
}

}  // namespace
}  // namespace fewbit::test

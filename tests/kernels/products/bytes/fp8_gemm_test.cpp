// Products with E4M3 weights against sums in double, with and without FP8 tensor cores.
#include "kernels/products/bytes/fp8_gemm.h"

#include "kernels/model/cast.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

constexpr RowQuant kF8{.codes = DType::f8_e4m3};

Tensor random_f8(Shape shape, uint64_t seed) {
  Tensor t = Tensor::host(DType::f8_e4m3, shape);
  Rng rng(seed, "f8");
  for (int64_t i = 0; i < t.numel(); ++i)
    t.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(2) * 128 + rng.below(0x7f));
  return t;
}

// Besides the shapes that all products are tested with: shapes that the GPU's library takes, with rows on both sides of
// the numbers from which it is used.
constexpr ProductShape kWide[] = {{16, 128, 64},  {17, 128, 64},   {100, 1024, 48}, {300, 96, 112},  {40, 100, 45},
                                  {20, 4096, 64}, {20, 14336, 32}, {257, 4096, 32}, {260, 14336, 16}};

void matches(Exec& ex, const ProductShape& s, DType dtype, DType y_dtype, bool with_bias, const RowQuant& quant) {
  const Tensor x = random_normal(dtype, {s.rows, s.in}, 1), bias = random_normal(dtype, {s.out}, 3);
  const Tensor w = random_f8({s.out, s.in}, 2), scales = Tensor::host(DType::f32, {s.out});
  for (int64_t o = 0; o < s.out; ++o) scales.as<float>()[o] = 0.001f * static_cast<float>(1 + o % 7);
  Exec host = Exec::cpu();
  const Tensor rounded = Tensor::host(DType::f32, {s.rows, s.in});
  if (quant.codes == DType::f16)
    cast(host, x, rounded);
  else
    round_rows(host, x, quant, rounded);
  const std::vector<double> values = doubles(rounded), offset = doubles(bias);
  std::vector<double> weight(static_cast<size_t>(s.out * s.in)), expected(static_cast<size_t>(s.rows * s.out));
  for (int64_t i = 0; i < s.out * s.in; ++i)
    weight[static_cast<size_t>(i)] =
        static_cast<double>(f8_e4m3_to_f32(w.as<uint8_t>()[i])) * scales.as<float>()[i / s.in];
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t o = 0; o < s.out; ++o) {
      double sum = with_bias ? offset[static_cast<size_t>(o)] : 0;
      for (int64_t i = 0; i < s.in; ++i)
        sum += values[static_cast<size_t>(r * s.in + i)] * weight[static_cast<size_t>(o * s.in + i)];
      expected[static_cast<size_t>(r * s.out + o)] = sum;
    }
  const Tensor dx = ex.to_device(x), dw = ex.to_device(w), ds = ex.to_device(scales), db = ex.to_device(bias);
  const Tensor y = poisoned(ex, y_dtype, {s.rows, s.out});
  fp8_gemm(ex, dx, quant, {.codes = dw, .scales = ds}, with_bias ? db.view() : ConstTensorView{}, y);
  const bool bf16_weight =
      quant.codes == DType::f16 && dtype == DType::bf16;  // code * scale is rounded to bf16 for a dense product
  EXPECT_LE(error_of(ex, y, expected), y_dtype == DType::f32 && !bf16_weight ? tol::kF8Product : tol::kBf16Op)
      << name_of(dtype) << " to " << name_of(y_dtype) << " [" << s.rows << ", " << s.in << "] -> " << s.out;
}

void every_shape(Exec& ex) {
  for (const DType dtype : kComputeTypes)
    for (const DType y_dtype : {DType::f32, dtype})
      for (const bool with_bias : {false, true}) {
        for (const RowQuant& quant : {kF8, kUnrounded}) {
          for (const ProductShape& s : kProducts) matches(ex, s, dtype, y_dtype, with_bias, quant);
          for (const ProductShape& s : kWide) matches(ex, s, dtype, y_dtype, with_bias, quant);
        }
      }
}

FEWBIT_DEVICE_TEST(Fp8Gemm, MatchesTheDoubleProduct) { every_shape(ex); }

TEST(Fp8Gemm, OneRowKeepsANanOfTheWeight) {
  Exec ex = Exec::cpu();
  const Tensor x = random_normal(DType::f32, {1, 128}, 1), w = random_f8({3, 128}, 2),
               scales = Tensor::host(DType::f32, {3});
  for (int64_t o = 0; o < 3; ++o) scales.as<float>()[o] = 0.01f;
  w.as<uint8_t>()[128 + 77] = 0xff;
  const Tensor y = poisoned(ex, DType::f32, {1, 3});
  fp8_gemm(ex, x, kF8, {.codes = w, .scales = scales}, ConstTensorView{}, y);
  EXPECT_TRUE(std::isfinite(y.as<float>()[0]));
  EXPECT_TRUE(std::isnan(y.as<float>()[1]));
  EXPECT_TRUE(std::isfinite(y.as<float>()[2]));
}

#ifdef FEWBIT_HAS_CUDA
TEST(Fp8Gemm, CudaWithoutFp8TensorCoresToo) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  cuda::force_sm80_path(ex, true);
  EXPECT_FALSE(has_fp8_products(ex));
  every_shape(ex);
}

// Few enough to end soon under compute-sanitizer.
TEST(Fp8Gemm, CudaSmallProducts) {
  FEWBIT_NEEDS_GPU();
  for (const bool sm80 : {false, true}) {
    Exec ex = Exec::cuda(0);
    cuda::force_sm80_path(ex, sm80);
    for (const RowQuant& quant : {kF8, kUnrounded})
      for (const ProductShape& s : {ProductShape{5, 128, 64}, ProductShape{17, 128, 64}, ProductShape{40, 100, 45}})
        matches(ex, s, DType::bf16, DType::bf16, true, quant);
  }
}
#endif

}  // namespace
}  // namespace fewbit::test

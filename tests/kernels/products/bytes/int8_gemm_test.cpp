// Products with int8 weights against exact sums; CUDA has the bits of the CPU.
#include "kernels/products/bytes/int8_gemm.h"

#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

Tensor random_int8(Shape shape, uint64_t seed) {
  Tensor t = Tensor::host(DType::i8, shape);
  Rng rng(seed, "int8");
  for (int64_t i = 0; i < t.numel(); ++i)
    t.as<int8_t>()[i] = static_cast<int8_t>(static_cast<int>(rng.below(256)) - 128);
  return t;
}

// Besides the shapes that all products are tested with: shapes that the GPU's library takes, with rows on both sides of
// the number from which it is used.
constexpr ProductShape kWide[] = {{16, 128, 64}, {17, 128, 64}, {100, 1024, 48}, {300, 96, 112}, {40, 100, 45}};

void matches(Exec& ex, const ProductShape& s, DType dtype, DType y_dtype, bool with_bias) {
  const Tensor x = random_normal(dtype, {s.rows, s.in}, 1), bias = random_normal(dtype, {s.out}, 3);
  const Tensor w = random_int8({s.out, s.in}, 2), scales = Tensor::host(DType::f32, {s.out});
  for (int64_t o = 0; o < s.out; ++o) scales.as<float>()[o] = 0.001f * static_cast<float>(1 + o % 7);
  Exec host = Exec::cpu();
  const Tensor codes = Tensor::host(DType::i8, {s.rows, s.in}), x_scales = Tensor::host(DType::f32, {s.rows});
  quantize_rows(host, x, {}, codes, x_scales);
  std::vector<double> expected(static_cast<size_t>(s.rows * s.out));
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t o = 0; o < s.out; ++o) {
      int64_t sum = 0;
      for (int64_t i = 0; i < s.in; ++i) sum += codes.as<int8_t>()[r * s.in + i] * w.as<int8_t>()[o * s.in + i];
      expected[static_cast<size_t>(r * s.out + o)] =
          static_cast<double>(sum) * x_scales.as<float>()[r] * scales.as<float>()[o] +
          (with_bias ? doubles(bias)[static_cast<size_t>(o)] : 0);
    }
  const Tensor dx = ex.to_device(x), dw = ex.to_device(w), ds = ex.to_device(scales), db = ex.to_device(bias);
  const Tensor y = poisoned(ex, y_dtype, {s.rows, s.out});
  int8_gemm(ex, dx, {}, {.codes = dw, .scales = ds}, with_bias ? db.view() : ConstTensorView{}, y);
  EXPECT_LE(error_of(ex, y, expected), y_dtype == DType::f32 ? tol::kF32Op : tol::kBf16Op)
      << name_of(dtype) << " to " << name_of(y_dtype) << " [" << s.rows << ", " << s.in << "] -> " << s.out;
}

FEWBIT_DEVICE_TEST(Int8Gemm, MatchesTheExactProduct) {
  for (const DType dtype : kComputeTypes)
    for (const DType y_dtype : {DType::f32, dtype})
      for (const bool with_bias : {false, true}) {
        for (const ProductShape& s : kProducts) matches(ex, s, dtype, y_dtype, with_bias);
        for (const ProductShape& s : kWide) matches(ex, s, dtype, y_dtype, with_bias);
      }
}

TEST(Int8Gemm, CudaGivesTheBitsOfTheCpu) {
  FEWBIT_NEEDS_GPU();
  Exec gpu = Exec::cuda(0), host = Exec::cpu();
  for (const ProductShape& s : kWide) {
    const Tensor x = random_normal(DType::bf16, {s.rows, s.in}, 1), w = random_int8({s.out, s.in}, 2);
    const Tensor scales = random_normal(DType::f32, {s.out}, 4), bias = random_normal(DType::bf16, {s.out}, 5);
    const auto run = [&](Exec& ex) {
      const Tensor y = poisoned(ex, DType::bf16, {s.rows, s.out});
      const Tensor dx = ex.to_device(x), dw = ex.to_device(w), ds = ex.to_device(scales), db = ex.to_device(bias);
      int8_gemm(ex, dx, {}, {.codes = dw, .scales = ds}, db, y);
      return ex.to_host(y);
    };
    EXPECT_EQ(first_difference(run(gpu), run(host)), "") << s.rows << " " << s.in << " " << s.out;
  }
}

}  // namespace
}  // namespace fewbit::test

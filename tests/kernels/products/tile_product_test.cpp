// The matrix unit's products: a row of y has the same bits alone and among others.
#include "kernels/cpu/tile_product.h"

#include <cstring>

#include "kernels/products/bytes/fp8_gemm.h"
#include "kernels/products/gemm.h"
#include "kernels/products/row_gemm.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Calls product(x, y) with all rows at once and with every row alone, and with rows in passes of other sizes.
template <class Product>
void expect_rows_alike(int64_t out, int64_t in, const Product& product, const std::string& what) {
  Exec ex = Exec::cpu();
  const Tensor x = random_normal(DType::bf16, {85, in}, 3);
  const Tensor all = poisoned(ex, DType::f32, {85, out});
  product(ex, x, all.view());
  for (const int64_t count : {1, 2, 5, 8, 9, 16, 17, 33}) {
    const int64_t rows = std::min<int64_t>(count, 85 - 37);
    const Tensor some = poisoned(ex, DType::f32, {rows, out});
    product(ex, x.view().row_range(37, 37 + rows), some.view());
    EXPECT_EQ(std::memcmp(some.as<float>(), all.as<float>() + 37 * out, static_cast<size_t>(rows * out) * 4), 0)
        << what << " [" << out << ", " << in << "], " << rows << " rows";
  }
}

Tensor random_bytes(DType dtype, Shape shape, uint64_t below) {
  Rng rng(static_cast<uint64_t>(shape[1]), "bytes");
  Tensor t = Tensor::host(dtype, shape);
  for (int64_t i = 0; i < t.numel(); ++i) t.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(below));
  return t;
}

class TileProduct : public testing::Test {
  void SetUp() override {
    if (!cpu::has_tiles()) GTEST_SKIP() << "this CPU has no AMX-BF16, or FEWBIT_AMX=0";
  }
};

TEST_F(TileProduct, DenseRowsDoNotDependOnTheirNeighbours) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{96, 256}, {45, 96}, {16, 32}}) {
    const Tensor w = random_normal(DType::bf16, {out, in}, 1), bias = random_normal(DType::bf16, {out}, 2);
    expect_rows_alike(
        out, in, [&](Exec& ex, ConstTensorView x, TensorView y) { cpu::gemm(ex, x, w, bias, y); }, "bf16");
  }
}

TEST_F(TileProduct, PackedRowsDoNotDependOnTheirNeighbours) {
  for (const int bits : {3, 4, 8})
    for (const auto& [in, group] : {std::pair<int64_t, int64_t>{256, 128}, {384, 384}, {160, 32}}) {
      const int64_t out = 70, groups = in / group;
      const Tensor codes = random_bytes(DType::u8, {out, bits <= 4 ? in / 2 : in}, bits == 3 ? 8 : 256);
      const Tensor scales = random_normal(DType::f32, {out, groups}, 5);
      const Tensor zeros = random_bytes(DType::u8, {out, groups}, uint64_t{1} << bits);
      const RowPackedView w{
          .codes = codes, .scales = scales, .zeros = zeros, .group_of = {}, .bits = bits, .in = in, .group = group};
      expect_rows_alike(
          out, in, [&](Exec& ex, ConstTensorView x, TensorView y) { cpu::row_gemm(ex, x, w, {}, y); },
          std::to_string(bits) + " bits");
    }
}

TEST_F(TileProduct, Fp8RowsDoNotDependOnTheirNeighbours) {
  const Tensor codes = random_bytes(DType::f8_e4m3, {50, 192}, 0x7f), scales = random_normal(DType::f32, {50}, 5);
  for (const RowQuant& q : {kUnrounded, RowQuant{.codes = DType::f8_e4m3}})
    expect_rows_alike(
        50, 192,
        [&](Exec& ex, ConstTensorView x, TensorView y) {
          cpu::fp8_gemm(ex, x, q, {.codes = codes, .scales = scales}, {}, y);
        },
        "fp8");
}

}  // namespace
}  // namespace fewbit::test

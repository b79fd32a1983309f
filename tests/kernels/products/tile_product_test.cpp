// Products in bf16 by AMX or AVX-512: a row of y has the same bits alone and among others.
#include "kernels/cpu/tile_product.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/tile_matmul.h"
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
    if (!cpu::has_tiles()) GTEST_SKIP() << "this CPU has no products of bf16, or FEWBIT_BF16=0";
  }
};

TEST_F(TileProduct, DenseRowsDoNotDependOnTheirNeighbours) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{96, 256}, {45, 96}, {16, 32}}) {
    const Tensor w = random_normal(DType::bf16, {out, in}, 1), bias = random_normal(DType::bf16, {out}, 2);
    expect_rows_alike(
        out, in, [&](Exec& ex, ConstTensorView x, TensorView y) { cpu::gemm(ex, x, w, bias, y); }, "bf16");
  }
}

TEST_F(TileProduct, RowsOfLongPassesHaveTheBitsOfShortOnes) {
  Exec ex = Exec::cpu();
  const int64_t out = 45, in = 64;
  const Tensor w = random_normal(DType::bf16, {out, in}, 1), x = random_normal(DType::bf16, {520, in}, 3);
  for (const int64_t rows : {253, 256, 520}) {
    const Tensor all = poisoned(ex, DType::f32, {rows, out});
    cpu::gemm(ex, x.view().row_range(0, rows), w, {}, all.view());
    for (const int64_t first : {0, 125, 240}) {
      const Tensor some = poisoned(ex, DType::f32, {13, out});
      cpu::gemm(ex, x.view().row_range(first, first + 13), w, {}, some.view());
      EXPECT_EQ(first_difference(some, clone_host(all.view().row_range(first, first + 13))), "") << rows << " rows";
    }
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

// y = x W^T of values that row by row come from a weight, against sums in double; with row scales, a bias, and outputs
// that fill no block.
TEST_F(TileProduct, MatchesTheDefinition) {
  Exec ex = Exec::cpu();
  for (const auto& [bits, in, group] :
       {std::array<int64_t, 3>{4, 256, 128}, {4, 96, 32}, {3, 128, 128}, {8, 160, 32}, {8, 64, 64}, {0, 96, 96}}) {
    const int64_t out = 45, groups = in / group;
    const Tensor codes = random_bytes(DType::u8, {out, bits == 8 ? in : in / 2}, bits == 3 ? 8 : 256);
    const Tensor scales = random_normal(DType::f32, {out, groups}, 5), dense = random_normal(DType::bf16, {out, in}, 1);
    const Tensor zeros = random_bytes(DType::u8, {out, groups}, 8), bias = random_normal(DType::bf16, {out}, 2);
    for (const bool has_zeros : {false, true}) {
      const RowPackedView w{.codes = codes,
                            .scales = scales,
                            .zeros = has_zeros ? zeros.view() : TensorView{},
                            .group_of = {},
                            .bits = static_cast<int>(bits),
                            .in = in,
                            .group = group};
      const auto value = [&](int64_t o, int64_t i) {
        if (bits == 0) return static_cast<double>(dense.as<bf16>()[o * in + i]);
        const int code =
            bits == 8 ? codes.as<uint8_t>()[o * in + i] : codes.as<uint8_t>()[(o * in + i) / 2] >> (i % 2 * 4) & 15;
        const int zero = has_zeros ? zeros.as<uint8_t>()[o * groups + i / group] : 1 << (bits - 1);
        return static_cast<double>(code - zero) * static_cast<double>(scales.as<float>()[o * groups + i / group]);
      };
      for (const int64_t rows : {1, 3, 8, 9, 50}) {
        const Tensor x = random_normal(DType::bf16, {rows, in}, 3), y = poisoned(ex, DType::f32, {rows, out});
        bits == 0 ? cpu::gemm(ex, x, dense, bias, y) : cpu::row_gemm(ex, x, w, bias, y);
        double error = 0, norm = 0;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t o = 0; o < out; ++o) {
            double want = static_cast<double>(bias.as<bf16>()[o]);
            for (int64_t i = 0; i < in; ++i) want += value(o, i) * static_cast<double>(x.as<bf16>()[r * in + i]);
            error += std::pow(y.as<float>()[r * out + o] - want, 2);
            norm += want * want;
          }
        EXPECT_LE(std::sqrt(error / norm), tol::kF32Op) << bits << " bits, " << in << " columns, " << rows << " rows";
      }
    }
  }
}

// C = A B and C = B^T B with ends that fill no tile, and parts of B's rows and columns.
TEST_F(TileProduct, MatmulMatchesTheDefinition) {
  for (const auto& [m, k, n] : {std::array<int64_t, 3>{1, 3, 5}, {16, 32, 32}, {70, 45, 33}, {47, 200, 100}}) {
    const int64_t tiles = cpu::whole_tiles(k), panels = cpu::whole_tiles(n), ld = tiles * cpu::kTileDepth;
    const Tensor a = random_normal(DType::bf16, {m, ld}, 1), b = random_normal(DType::bf16, {k, n}, 2);
    const Tensor room = Tensor::host(DType::bf16, {2, cpu::right_values(k, n)});
    auto* packed = room.view().as<uint16_t>();
    uint16_t* turned = packed + cpu::right_values(k, n);
    const cpu::RightTiles right{.k = k, .n = n, .data = packed};
    cpu::pack_right(b.as<bf16>(), n, k, n, 0, panels, packed);
    cpu::transpose_right(right, 0, panels, turned);
    const auto expect_product = [&](const cpu::LeftRows& left, int64_t rows, const auto& at, cpu::TileRange range) {
      const int64_t ldc = (range.p1 - range.p0) * cpu::kPanelCols, first = range.p0 * cpu::kPanelCols;
      const int64_t c0 = range.t0 * cpu::kTileDepth, c1 = std::min(k, range.t1 * cpu::kTileDepth);
      std::vector<float> c(static_cast<size_t>(rows * ldc), 9.f);
      cpu::tile_matmul(left, rows, right, range, c.data(), ldc);
      double error = 0, norm = 0;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = first; j < std::min(n, first + ldc); ++j) {
          double want = 0;
          for (int64_t t = c0; t < c1; ++t) want += at(i, t) * static_cast<double>(b.as<bf16>()[t * n + j]);
          error += std::pow(c[static_cast<size_t>(i * ldc + j - first)] - want, 2);
          norm += want * want;
        }
      EXPECT_LE(std::sqrt(error / norm), tol::kF32Op) << m << " " << k << " " << n;
    };
    const auto of_a = [&](int64_t i, int64_t t) { return static_cast<double>(a.as<bf16>()[i * ld + t]); };
    const auto of_b = [&](int64_t i, int64_t t) { return static_cast<double>(b.as<bf16>()[t * n + i]); };
    expect_product(cpu::left_rows(a.as<bf16>(), ld), m, of_a, {0, panels, 0, tiles});
    expect_product(cpu::transposed_rows(right, turned), n, of_b, {panels - 1, panels, 0, tiles});
    const auto later = [&](int64_t i, int64_t t) { return of_a(i, t - (tiles - 1) * cpu::kTileDepth); };
    expect_product(cpu::left_rows(a.as<bf16>(), ld), m, later, {0, panels, tiles - 1, tiles});
  }
}

}  // namespace
}  // namespace fewbit::test

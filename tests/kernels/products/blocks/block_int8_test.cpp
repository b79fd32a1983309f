// Products of int8 with blocks: the loops against the plain one bit for bit, and that against sums in double.
#include "kernels/products/blocks/block_int8.h"

#include <cmath>

#include "kernels/products/blocks/int8_dot.h"
#include "kernels/products/bytes/quantize_rows.h"
#include "src/core/parallel.h"
#include "tests/kernels/op_test.h"
#include "tests/kernels/products/blocks/random_blocks.h"

namespace fewbit::test {
namespace {

using cpu::Int8Loops;

// The forms that int8 is multiplied with.
std::map<std::string, BlockForm> whole_forms() {
  std::map<std::string, BlockForm> whole = forms();
  std::erase_if(whole, [](const auto& f) { return *cpu::refuses_int8(f.second) != 0; });
  return whole;
}

TEST(BlockInt8, TakesTheFormsWithWholeLevels) {
  std::string names;
  for (const auto& [name, f] : whole_forms()) names += name + ", ";
  EXPECT_EQ(names,
            "int4 g128, int4 g64 with zeros, int8 g128, mxfp4, q2_k, q4_0, q4_1, q4_k, q5_0, q5_k, q6_k, q8_0, ");
}

TEST(BlockInt8, EveryFormEqualsTheProductOfTheRoundedRows) {
  Exec ex = Exec::cpu();
  for (const auto& [name, f] : whole_forms())
    for (const int64_t out : {1, 45, 97}) {
      const Blocks b = random_blocks(f, out, 768);
      const std::vector<double> w = doubles(b.values);
      const Tensor bias = random_normal(DType::bf16, {out}, 2);
      const std::vector<double> d = doubles(bias);
      for (const int64_t rows : {1, 3, 9}) {
        const Tensor x = random_normal(DType::bf16, {rows, b.in}, 1);
        const Tensor codes = Tensor::host(DType::i8, {rows, b.in}),
                     scales = Tensor::host(DType::f32, {rows, b.in / 32});
        quantize_rows(ex, x, {.group = 32}, codes, scales);
        std::vector<double> expected;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t o = 0; o < out; ++o) {
            double sum = d[static_cast<size_t>(o)];
            for (int64_t i = 0; i < b.in; ++i)
              sum += double{scales.as<float>()[(r * b.in + i) / 32]} * codes.as<int8_t>()[r * b.in + i] *
                     w[static_cast<size_t>(o * b.in + i)];
            expected.push_back(sum);
          }
        for (const DType dtype : kComputeTypes) {
          const Tensor y = poisoned(ex, dtype, {rows, out});
          cpu::block_int8_gemm(ex, x, b.view(), bias, y, Int8Loops::plain);
          EXPECT_LE(error_of(ex, y, expected), product_tolerance(dtype))
              << name << " [" << out << ", 768] rows " << rows;
        }
      }
    }
}

TEST(BlockInt8, TheLoopsGiveTheBitsOfThePlainOne) {
  std::vector<Int8Loops> loops;
  if (cpu::has_wide_int8_dots()) loops.push_back(Int8Loops::avx2);
  if (cpu::has_int8_dots()) loops.push_back(Int8Loops::avx512);
  if (loops.empty()) GTEST_SKIP() << "neither AVX2 nor AVX512-VNNI here";
  Exec ex = Exec::cpu();
  for (const auto& [name, f] : whole_forms())
    for (const int64_t out : {1, 32, 97}) {
      const Blocks b = random_blocks(f, out, 768);
      for (const int64_t rows : {1, 2, 3, 4, 7, 300}) {
        Tensor x = random_normal(DType::bf16, {rows, b.in}, 1);
        for (int64_t i = 0; i < 64; ++i) x.as<bf16>()[i] = i < 32 ? 0.f : 1e-39f;  // a part of zeros, and of almost
        const Tensor plain = poisoned(ex, DType::f32, {rows, out});
        cpu::block_int8_gemm(ex, x, b.view(), {}, plain, Int8Loops::plain);
        for (const Int8Loops l : loops) {
          const Tensor fast = poisoned(ex, DType::f32, {rows, out});
          cpu::block_int8_gemm(ex, x, b.view(), {}, fast, l);
          EXPECT_EQ(first_difference(plain, fast), "")
              << name << " [" << out << ", 768] rows " << rows << " loops " << static_cast<int>(l);
        }
      }
    }
}

// The loop in AVX-512 takes rows beyond its first tile through a part of the columns at a time: whole blocks.
TEST(BlockInt8, PartsOfWideRowsAddUpAsThePlainLoopAddsThem) {
  if (!cpu::has_wide_int8_dots()) GTEST_SKIP() << "neither AVX2 nor AVX512-VNNI here";
  Exec ex = Exec::cpu();
  std::map<std::string, BlockForm> some = whole_forms();
  std::erase_if(some, [](const auto& f) { return f.first != "q4_1" && f.first != "q6_k" && f.first != "int8 g128"; });
  for (const int columns : {192, 256})
    some["int4 with zeros, " + std::to_string(columns)] = form(4, 32, columns, BlockScale::wide, true, -8);
  for (const auto& [name, f] : some) {
    const Blocks b = random_blocks(f, 40, 2304);
    for (const int64_t rows : {4, 13}) {
      const Tensor x = random_normal(DType::bf16, {rows, b.in}, 1);
      const Tensor plain = poisoned(ex, DType::f32, {rows, b.out}), fast = poisoned(ex, DType::f32, {rows, b.out});
      cpu::block_int8_gemm(ex, x, b.view(), {}, plain, Int8Loops::plain);
      cpu::block_int8_gemm(ex, x, b.view(), {}, fast);
      EXPECT_EQ(first_difference(plain, fast), "") << name << " rows " << rows;
    }
  }
}

TEST(BlockInt8, ARowHasTheSameBitsAmongAnyOthers) {
  Exec ex = Exec::cpu();
  for (const auto& [name, f] : whole_forms()) {
    const Blocks b = random_blocks(f, 45, 512);
    const Tensor all = random_normal(DType::bf16, {300, b.in}, 1);
    const Tensor y = poisoned(ex, DType::f32, {300, b.out});
    cpu::block_int8_gemm(ex, all, b.view(), {}, y);
    for (const int64_t first : {0, 7, 255, 288})
      for (const int64_t rows : {1, 2, 4, 7, 12}) {
        const Tensor part = poisoned(ex, DType::f32, {rows, b.out});
        cpu::block_int8_gemm(ex, all.view().row_range(first, first + rows), b.view(), {}, part);
        EXPECT_EQ(first_difference(part, clone_host(y.view().row_range(first, first + rows))), "")
            << name << " rows " << first << " to " << first + rows;
      }
  }
}

TEST(BlockInt8, WhatIsNoNumberShows) {
  Exec ex = Exec::cpu();
  const Blocks b = random_blocks(forms().at("q4_k"), 45, 512);
  for (const float bad : {NAN, INFINITY}) {
    Tensor x = random_normal(DType::bf16, {3, b.in}, 1);
    x.as<bf16>()[b.in + 70] = bad;
    for (const Int8Loops loops : {Int8Loops::plain, cpu::int8_loops()}) {
      const Tensor y = poisoned(ex, DType::f32, {3, b.out});
      cpu::block_int8_gemm(ex, x, b.view(), {}, y, loops);
      for (int64_t o = 0; o < b.out; ++o) {
        EXPECT_TRUE(std::isfinite(y.as<float>()[o]) && std::isfinite(y.as<float>()[2 * b.out + o])) << o;
        EXPECT_TRUE(std::isnan(y.as<float>()[b.out + o])) << o;
      }
    }
  }
}

}  // namespace
}  // namespace fewbit::test

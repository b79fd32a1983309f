// Products with blocks of GGUF against the product of their values, in every form, by every loop.
#include "kernels/products/blocks/block_gemm.h"

#include <cstring>

#include "kernels/products/blocks/block_dot.h"
#include "src/core/parallel.h"
#include "tests/kernels/op_test.h"
#include "tests/kernels/products/blocks/random_blocks.h"

namespace fewbit::test {
namespace {

using cpu::BlockLoops;

std::vector<BlockLoops> all_loops(const BlockForm& f) {
  std::vector<BlockLoops> loops{BlockLoops::plain};
  for (const BlockLoops l : {BlockLoops::avx2, BlockLoops::avx512})
    if (cpu::block_loops() >= l && takes(l, f)) loops.push_back(l);
  return loops;
}

TEST(BlockGemm, EveryFormEqualsTheProductOfItsValues) {
  Exec ex = Exec::cpu();
  for (const auto& [name, f] : forms())
    for (const int64_t out : {1, 32, 45, 97}) {
      const Blocks b = random_blocks(f, out, 768);
      const std::vector<double> w = doubles(b.values);
      const Tensor bias = random_normal(DType::bf16, {out}, 2);
      const std::vector<double> d = doubles(bias);
      for (const int64_t rows : {1, 2, 3, 5, 8, 9, 12, 31, 64}) {
        const Tensor x = random_normal(DType::bf16, {rows, b.in}, 1);
        const std::vector<double> a = doubles(x);
        std::vector<double> expected;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t o = 0; o < out; ++o) {
            double sum = d[static_cast<size_t>(o)];
            for (int64_t i = 0; i < b.in; ++i)
              sum += a[static_cast<size_t>(r * b.in + i)] * w[static_cast<size_t>(o * b.in + i)];
            expected.push_back(sum);
          }
        for (const BlockLoops loops : all_loops(f))
          for (const DType dtype : kComputeTypes) {
            const Tensor y = poisoned(ex, dtype, {rows, out});
            cpu::block_gemm(ex, x, b.view(), bias, y, loops);
            EXPECT_LE(error_of(ex, y, expected), product_tolerance(dtype))
                << name << " [" << out << ", 768] rows " << rows << " loops " << static_cast<int>(loops);
          }
      }
    }
}

// What a pass of many sequences promises: a row does not know what is beside it.
TEST(BlockGemm, ARowHasTheSameBitsAmongAnyOthers) {
  Exec ex = Exec::cpu();
  for (const auto& [name, f] : forms()) {
    const Blocks b = random_blocks(f, 45, 512);
    const Tensor all = random_normal(DType::bf16, {500, b.in}, 1);
    for (const BlockLoops loops : all_loops(f)) {
      const Tensor y = poisoned(ex, DType::f32, {500, b.out});
      cpu::block_gemm(ex, all, b.view(), {}, y, loops);
      for (const int64_t first : {0, 7, 488})
        for (const int64_t rows : {1, 2, 4, 7, 8, 11, 12}) {
          const Tensor part = poisoned(ex, DType::f32, {rows, b.out});
          cpu::block_gemm(ex, all.view().row_range(first, first + rows), b.view(), {}, part, loops);
          EXPECT_EQ(first_difference(part, clone_host(y.view().row_range(first, first + rows))), "")
              << name << " rows " << first << " to " << first + rows << " loops " << static_cast<int>(loops);
        }
    }
  }
}

TEST(BlockGemm, RowsAreTheValues) {
  Exec ex = Exec::cpu();
  for (const auto& [name, f] : forms()) {
    const Blocks b = random_blocks(f, 45, 512);
    std::vector<int32_t> ids{44, 0, 31, 32, 16, 15, 44};
    const Tensor rows = poisoned(ex, DType::f32, {std::ssize(ids), b.in});
    cpu::block_rows(ex, host_i32(ids), b.view(), 2.f, rows);
    for (size_t i = 0; i < ids.size(); ++i)
      for (int64_t c = 0; c < b.in; ++c)
        ASSERT_EQ(rows.as<float>()[static_cast<int64_t>(i) * b.in + c], 2 * b.values.as<float>()[ids[i] * b.in + c])
            << name << " row " << ids[i] << " column " << c;
  }
}

TEST(BlockGemm, ScalesOfTheFastLoopsAreThePlainOnes) {
  std::vector<cpu::MakeScales> loops;
  if (cpu::has_wide_scales()) loops.push_back(cpu::wide_scales);
  if (cpu::has_block_dots()) loops.push_back(cpu::dot_scales);
  if (loops.empty()) GTEST_SKIP() << "neither AVX2 nor AVX512-BF16 here";
  for (const auto& [name, f] : forms()) {
    const Blocks b = random_blocks(f, 32, 512);
    const auto n = static_cast<size_t>(b.in / f.group * kStripOuts);
    std::vector<float> scales(n), minima(n);
    cpu::strip_scales(f, b.in, b.view().strip(0), scales.data(), minima.data());
    for (const cpu::MakeScales make : loops) {
      std::vector<float> fast(n), fast_minima(n);
      make(f, b.in, b.view().strip(0), fast.data(), f.minima ? fast_minima.data() : nullptr);
      EXPECT_EQ(std::memcmp(scales.data(), fast.data(), n * 4), 0) << name;
      EXPECT_EQ(std::memcmp(minima.data(), fast_minima.data(), n * 4), 0) << name;
    }
  }
}

}  // namespace
}  // namespace fewbit::test

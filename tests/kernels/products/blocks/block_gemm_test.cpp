// Products with blocks of GGUF against the product of their values, in every form, by every loop.
#include "kernels/products/blocks/block_gemm.h"

#include <cstring>
#include <map>

#include "kernels/products/blocks/block_dot.h"
#include "src/core/parallel.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

using cpu::BlockLoops;

BlockForm form(int bits, int group, int columns, BlockScale scale, bool minima, float first, bool uneven = false) {
  BlockForm f{.bits = bits, .group = group, .columns = columns, .scale = scale, .minima = minima};
  for (size_t i = 0; bits < 8 && i < size_t{1} << bits; ++i)
    f.levels[i] = uneven ? static_cast<float>(static_cast<int>(i * i) - 100) : first + static_cast<float>(i);
  return f;
}

const std::map<std::string, BlockForm>& forms() {
  static const std::map<std::string, BlockForm> all{
      {"q4_0", form(4, 32, 32, BlockScale::alone, false, -8)},
      {"q4_1", form(4, 32, 32, BlockScale::alone, true, 0)},
      {"q5_0", form(5, 32, 32, BlockScale::alone, false, -16)},
      {"q8_0", form(8, 32, 32, BlockScale::alone, false, 0)},
      {"q2_k", form(2, 16, 256, BlockScale::nibbles, true, 0)},
      {"q3_k", form(3, 16, 256, BlockScale::bytes, false, -4)},
      {"q4_k", form(4, 32, 256, BlockScale::bytes, true, 0)},
      {"q5_k", form(5, 32, 256, BlockScale::bytes, true, 0)},
      {"q6_k", form(6, 16, 256, BlockScale::bytes, false, -32)},
      {"mxfp4", form(4, 32, 32, BlockScale::power, false, -8)},
      {"iq4_nl", form(4, 32, 32, BlockScale::alone, false, 0, true)},
      {"iq4_xs", form(4, 32, 256, BlockScale::bytes, false, 0, true)},
  };
  return all;
}

// A weight of random blocks, with what they stand for.
struct Blocks {
  BlockForm form;
  Tensor strips, values;  // values: f32 [out, in]
  int64_t out, in;
  BlockView view() const { return {.strips = strips, .form = &form, .out = out, .in = in}; }
};

Blocks random_blocks(const BlockForm& f, int64_t out, int64_t in) {
  Blocks b{.form = f,
           .strips = Tensor::host_zeros(DType::u8, {(out + kStripOuts - 1) / kStripOuts, f.strip_bytes(in)}),
           .values = Tensor::host(DType::f32, {out, in}),
           .out = out,
           .in = in};
  Rng rng(static_cast<uint64_t>(out * 10 + f.bits), "blocks");
  const bool apart = f.scale == BlockScale::bytes || f.scale == BlockScale::nibbles;
  for (int64_t o = 0; o < out; ++o)
    for (int64_t t = 0; t < in / f.columns; ++t) {
      BlockContent c;
      c.d = f.scale == BlockScale::power ? static_cast<uint16_t>(t == 0 ? 0 : 120 + rng.below(10))
                                         : f32_to_f16(static_cast<float>(rng.uniform() - 0.5) / 100);
      c.m = f32_to_f16(static_cast<float>(rng.uniform() - 0.5) / 100);
      for (size_t g = 0; g < 16; ++g) {
        c.scale[g] = static_cast<int16_t>(f.minima ? rng.below(16) : rng.below(256));
        if (!f.minima) c.scale[g] = static_cast<int16_t>(c.scale[g] - 128);
        c.min[g] = static_cast<int16_t>(rng.below(f.scale == BlockScale::nibbles ? 16 : 64));
      }
      const float d = f.scale == BlockScale::power ? f8_e8m0_to_f32(static_cast<uint8_t>(c.d)) : f16_to_f32(c.d);
      for (int64_t i = 0; i < f.columns; ++i) {
        const auto at = static_cast<size_t>(i), g = static_cast<size_t>(i / f.group);
        c.codes[at] = static_cast<uint8_t>(rng.below(uint64_t{1} << f.bits));
        const float level = f.bits == 8 ? static_cast<float>(static_cast<int8_t>(c.codes[at])) : f.levels[c.codes[at]];
        const float scale = apart ? d * static_cast<float>(c.scale[g]) : d;
        const float min = !f.minima ? 0 : f16_to_f32(c.m) * (apart ? static_cast<float>(c.min[g]) : 1.f);
        b.values.as<float>()[o * in + t * f.columns + i] = std::fma(scale, level, min);
      }
      put_block(f, in, c, t, o % kStripOuts, b.strips.as<uint8_t>() + o / kStripOuts * b.strips.cols());
    }
  return b;
}

std::vector<BlockLoops> all_loops() {
  std::vector<BlockLoops> loops{BlockLoops::plain};
  for (const BlockLoops l : {BlockLoops::avx2, BlockLoops::avx512})
    if (cpu::block_loops() >= l) loops.push_back(l);
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
        for (const BlockLoops loops : all_loops())
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
    for (const BlockLoops loops : all_loops()) {
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
  if (!cpu::has_block_dots()) GTEST_SKIP() << "no AVX512-BF16 here";
  for (const auto& [name, f] : forms()) {
    const Blocks b = random_blocks(f, 32, 512);
    const auto n = static_cast<size_t>(b.in / f.group * kStripOuts);
    std::vector<float> scales(n), minima(n), fast(n), fast_minima(n);
    cpu::strip_scales(f, b.in, b.view().strip(0), scales.data(), minima.data());
    cpu::dot_scales(f, b.in, b.view().strip(0), fast.data(), f.minima ? fast_minima.data() : nullptr);
    EXPECT_EQ(std::memcmp(scales.data(), fast.data(), n * 4), 0) << name;
    EXPECT_EQ(std::memcmp(minima.data(), fast_minima.data(), n * 4), 0) << name;
  }
}

}  // namespace
}  // namespace fewbit::test

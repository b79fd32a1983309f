#include "kernels/choice/kernel_choice.h"

#include <gtest/gtest.h>

#include <fstream>

#include "kernels/choice/skinny_shape.h"
#include "tests/support/paths.h"

namespace fewbit {
namespace {

constexpr GpuTraits kA100{80, 108, 166912}, kH200{90, 132, 232448}, k4090{89, 128, 101376};

Kernel packed(int64_t rows, const GpuTraits& gpu, int bits = 4, int64_t group = 128, bool zeros = false) {
  return choose_kernel({.op = ChoiceOp::packed,
                        .bits = bits,
                        .group = group,
                        .zeros = zeros,
                        .rows = rows,
                        .in = 4096,
                        .out = 4096},
                       gpu)
      .kernel;
}
Kernel bytes(int64_t rows, const GpuTraits& gpu, DType codes, int64_t in = 4096, int64_t out = 4096) {
  return choose_kernel({.op = ChoiceOp::bytes, .codes = codes, .rows = rows, .in = in, .out = out}, gpu).kernel;
}
Kernel attention(int64_t tokens, bool over_cache, const GpuTraits& gpu, int64_t head_dim = 128,
                 DType cache = DType::bf16) {
  return choose_kernel({.op = ChoiceOp::attention,
                        .weight = cache,
                        .rows = tokens,
                        .over_cache = over_cache,
                        .heads = 32,
                        .kv_heads = 8,
                        .head_dim = head_dim},
                       gpu)
      .kernel;
}

TEST(KernelChoice, PackedWeightsByRows) {
  EXPECT_EQ(packed(1, kH200), Kernel::marlin_limbs);
  EXPECT_EQ(packed(1, kH200, 4, 128, true), Kernel::marlin_rows);
  EXPECT_EQ(packed(2, kH200), Kernel::marlin_rows);
  EXPECT_EQ(packed(16, kH200), Kernel::marlin_rows);
  EXPECT_EQ(packed(17, kH200), Kernel::marlin_wide);
  EXPECT_EQ(packed(2048, kH200), Kernel::marlin_wide);
  EXPECT_EQ(packed(2049, kH200), Kernel::marlin_dequantized);
  EXPECT_EQ(packed(17, kA100), Kernel::marlin_rows);
  EXPECT_EQ(packed(64, kA100), Kernel::marlin_rows);
  EXPECT_EQ(packed(65, kA100), Kernel::marlin_dequantized);
}

TEST(KernelChoice, FineGroupsAndEightBits) {
  EXPECT_EQ(packed(1, kH200, 4, 32), Kernel::marlin_stream);
  EXPECT_EQ(packed(1, kH200, 4, 0), Kernel::marlin_limbs);
  EXPECT_EQ(packed(16, kH200, 8), Kernel::marlin_stream);
  EXPECT_EQ(packed(17, kH200, 8), Kernel::marlin_wide);
  EXPECT_EQ(packed(2048, kH200, 8), Kernel::marlin_wide);
  EXPECT_EQ(packed(2049, kH200, 8), Kernel::marlin_dequantized);
  EXPECT_EQ(packed(64, kA100, 8), Kernel::marlin_stream);
  EXPECT_EQ(packed(65, kA100, 8), Kernel::marlin_dequantized);
}

TEST(KernelChoice, WideNeedsTensorMaps) {
  KernelProblem p{.op = ChoiceOp::packed, .rows = 64, .in = 4096, .out = 4096};
  EXPECT_EQ(choose_kernel(p, kH200).kernel, Kernel::marlin_wide);
  p.tensor_maps = false;
  EXPECT_EQ(choose_kernel(p, kH200).kernel, Kernel::marlin_rows);
}

TEST(KernelChoice, BytesByRowsShapeAndGpu) {
  for (const DType codes : {DType::i8, DType::f8_e4m3}) {
    EXPECT_EQ(bytes(1, kH200, codes), Kernel::skinny);
    EXPECT_EQ(bytes(16, kH200, codes), Kernel::skinny);
    EXPECT_EQ(bytes(17, kH200, codes), Kernel::library_codes);
    EXPECT_EQ(bytes(16, kH200, codes, 28672), Kernel::library_codes) << "several launches: the library is quicker";
    EXPECT_EQ(bytes(4, kH200, codes, 1000), Kernel::few_byte_rows) << "no steps of 64 bytes";
  }
  EXPECT_EQ(bytes(17, kA100, DType::f8_e4m3), Kernel::widened_codes);
  EXPECT_EQ(bytes(17, k4090, DType::f8_e4m3), Kernel::library_codes);
  EXPECT_EQ(bytes(8, kH200, DType::f16), Kernel::skinny);
  EXPECT_EQ(bytes(9, kH200, DType::f16), Kernel::two_term_codes);
  EXPECT_EQ(bytes(512, kH200, DType::f16), Kernel::two_term_codes);
  EXPECT_EQ(bytes(513, kH200, DType::f16), Kernel::dequantized_codes);
  EXPECT_EQ(bytes(17, kA100, DType::f16), Kernel::dequantized_codes);
}

TEST(KernelChoice, CodesThatAreMadeAlreadyDoNotGoToTheKernelThatMakesThem) {
  KernelProblem p{.op = ChoiceOp::bytes, .codes = DType::i8, .x_is_codes = true, .rows = 4, .in = 4096, .out = 4096};
  EXPECT_EQ(choose_kernel(p, kH200).kernel, Kernel::few_byte_rows);
}

TEST(KernelChoice, DenseBf16OfOneAndTwoRows) {
  KernelProblem p{.op = ChoiceOp::dense, .rows = 2, .in = 4096, .out = 4096};
  EXPECT_EQ(choose_kernel(p, kH200).kernel, Kernel::skinny);
  p.rows = 3;
  EXPECT_EQ(choose_kernel(p, kH200).kernel, Kernel::library_dense);
  p.rows = 1, p.aligned = false;
  EXPECT_EQ(choose_kernel(p, kH200).kernel, Kernel::library_dense);
  p.aligned = true, p.x = DType::f32;
  EXPECT_EQ(choose_kernel(p, kH200).kernel, Kernel::library_dense);
}

TEST(KernelChoice, Attention) {
  EXPECT_EQ(attention(1, true, kH200), Kernel::attention_decode);
  EXPECT_EQ(attention(16, true, kH200), Kernel::attention_decode) << "16 tokens of 4 query heads a kv head";
  EXPECT_EQ(attention(17, true, kH200), Kernel::attention_flash);
  EXPECT_EQ(attention(65, true, kH200), Kernel::attention_wide);
  EXPECT_EQ(attention(65, true, kH200, 128, DType::f8_e4m3), Kernel::attention_flash);
  EXPECT_EQ(attention(1, true, kH200, 128, DType::u8), Kernel::attention_decode);
  EXPECT_EQ(attention(17, true, kH200, 128, DType::u8), Kernel::attention_widened) << "more than 64 query rows";
  EXPECT_EQ(attention(1, true, kH200, 80, DType::u8), Kernel::attention_widened) << "groups of 64 of no such width";
  EXPECT_EQ(attention(65, false, kH200, 96), Kernel::attention_flash);
  EXPECT_EQ(attention(65, false, kA100), Kernel::attention_flash);
  EXPECT_EQ(attention(65, false, kH200, 100), Kernel::attention_plain);
  EXPECT_EQ(attention(1, true, kH200, 72, DType::i8), Kernel::attention_plain) << "codes come 16 at a time";
}

// A rule that nothing reaches would be a kernel that nobody launches.
TEST(KernelChoice, EveryRuleIsReached) {
  std::vector<int> taken(kernel_rules().size());
  const auto ask = [&](KernelProblem p) {
    for (const GpuTraits& gpu : {kA100, kH200, k4090})
      for (const int64_t rows : {1, 4, 16, 32, 600, 4096}) {
        p.rows = rows;
        ++taken[static_cast<size_t>(&choose_kernel(p, gpu) - kernel_rules().data())];
      }
  };
  for (const int bits : {4, 8}) ask({.op = ChoiceOp::packed, .bits = bits, .in = 4096, .out = 4096});
  for (const DType codes : {DType::i8, DType::f8_e4m3, DType::f16})
    for (const int64_t in : {4096, 1000}) ask({.op = ChoiceOp::bytes, .codes = codes, .in = in, .out = 4096});
  ask({.op = ChoiceOp::dense, .in = 4096, .out = 4096});
  for (const int64_t head_dim : {128, 100})
    ask({.op = ChoiceOp::attention, .over_cache = true, .heads = 32, .kv_heads = 8, .head_dim = head_dim});
  ask({.op = ChoiceOp::attention, .weight = DType::u8, .over_cache = true, .heads = 32, .kv_heads = 8, .head_dim = 80});
  for (size_t i = 0; i < taken.size(); ++i) EXPECT_GT(taken[i], 0) << kernel_rules()[i].name;
}

TEST(KernelChoice, FilesExist) {
  for (const KernelRule& r : kernel_rules())
    EXPECT_TRUE(std::ifstream(test::in_source("kernels/") + r.file).good()) << r.file;
}

// The largest k that 16 rows of codes find room for in one launch on an H200, by hand: 227 KiB less 80 KiB of rings,
// less the sums (16 rows x 2 buffers x 16 warps x 20 x 4 bytes = 40 KiB), less 1 KiB, over 16 rows: 6,784 bytes a row
// with its padding of 64.
TEST(SkinnyShape, RoomForX) {
  EXPECT_EQ(skinny_k_splits(kH200, {DType::i8, DType::i8}, 16, 6720), 1);
  EXPECT_EQ(skinny_k_splits(kH200, {DType::i8, DType::i8}, 16, 6784), 2);
  EXPECT_EQ(skinny_k_splits(kH200, {DType::i8, DType::i8}, 17, 4096), 0);
  EXPECT_EQ(skinny_k_splits(kH200, {DType::bf16, DType::bf16}, 2, 480), 0);
}

}  // namespace
}  // namespace fewbit

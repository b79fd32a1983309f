// The values of MXFP4's codes, on both devices.
#include "kernels/products/fp4_values.h"

#include <cmath>

#include "kernels/grids/fp4_grid.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Every code at every place of a word, under every scale that is taken.
FEWBIT_DEVICE_TEST(Fp4Values, OfEveryCodeAndScale) {
  constexpr int64_t kScales = kMostFp4Scale + 1, kRows = 144, kBlocks = 18, kIn = kBlocks * kFp4Block;
  const Tensor codes = Tensor::host(DType::u8, {kRows, kIn}), scales = Tensor::host(DType::f32, {kRows, kBlocks});
  const auto scale_at = [](int64_t row, int64_t block) { return static_cast<int>((row + block) % kScales) - 127; };
  const auto code_at = [](int64_t i) { return static_cast<uint8_t>((i % 16 + i / 16) & 15); };
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kIn; ++i) codes.as<uint8_t>()[row * kIn + i] = code_at(row + i);
    for (int64_t b = 0; b < kBlocks; ++b) scales.as<float>()[row * kBlocks + b] = std::ldexp(1.f, scale_at(row, b));
  }
  const Tensor tiles = ex.to_device(fp4_tiles(codes, scales).value());
  const Tensor w = poisoned(ex, DType::bf16, {kRows, kIn});
  fp4_values(ex, {.tiles = tiles, .in = kIn}, w);
  const Tensor found = ex.to_host(w);
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t i = 0; i < kIn; ++i) {
      const int scale = scale_at(row, i / kFp4Block);
      const double value = std::ldexp(static_cast<double>(e2m1_value(code_at(row + i))), scale);
      ASSERT_EQ(static_cast<double>(static_cast<float>(found.as<bf16>()[row * kIn + i])), value)
          << "scale " << scale << ", input " << i;
    }
}

TEST(Fp4Tiles, AreZerosBehindTheLastBlock) {
  // So many that their memory is kept for the next of the size.
  constexpr int64_t kIn = 5 * kFp4Block, kOut = 512 * kFp4TileOuts;
  const Tensor codes = Tensor::host(DType::u8, {kOut, kIn}), scales = Tensor::host(DType::f32, {kOut, 5});
  std::fill_n(codes.as<uint8_t>(), codes.numel(), uint8_t{15});
  std::fill_n(scales.as<float>(), scales.numel(), 1.f);
  Exec host = Exec::cpu();
  poisoned(host, DType::f32, {kOut / kFp4TileOuts, fp4_tile_words(kIn)});  // memory that the tiles get
  const Tensor tiles = fp4_tiles(codes, scales).value();
  const auto* bytes = static_cast<const uint8_t*>(tiles.view().data);
  for (int64_t o = 0; o < kOut; ++o)
    for (int64_t b = 0; b < 8; ++b) {
      const Fp4Place place = fp4_place_of(o, b, kIn);
      ASSERT_EQ(bytes[place.scale], b < 5 ? 127 : 0) << o << ", " << b;
      for (int w = 0; w < kFp4BlockWords; ++w)
        ASSERT_EQ(tiles.as<uint32_t>()[place.words + w], b < 5 ? 0xffffffffu : 0u) << o << ", " << b;
    }
}

TEST(Fp4Tiles, RefuseScalesThatNoProductMakesExact) {
  const Tensor codes = Tensor::host_zeros(DType::u8, {16, kFp4Block}), scales = Tensor::host(DType::f32, {16, 1});
  std::fill_n(scales.as<float>(), 16, 2.f);
  EXPECT_TRUE(fp4_tiles(codes, scales));
  scales.as<float>()[7] = 4;
  EXPECT_FALSE(fp4_tiles(codes, scales));
}

// Every code comes back from every place, whatever lies beside it.
TEST(Fp4Words, HoldEveryCodeAtEveryPlace) {
  for (int i = 0; i < kFp4WordCodes; ++i)
    for (int code = 0; code < 16; ++code)
      for (const uint32_t other : {0, 15}) {
        uint32_t word = 0;
        for (int pair = 0; pair < kFp4WordCodes / 2; ++pair) {
          const uint32_t low = 2 * pair == i ? code : other, high = 2 * pair + 1 == i ? code : other;
          word |= kFp4WordParts[pair][low | high << 4];
        }
        for (int o = 0; o < kFp4WordCodes; ++o) ASSERT_EQ(fp4_code(word, o), o == i ? code : other) << "place " << o;
      }
}

}  // namespace
}  // namespace fewbit::test

// The values of MXFP4's codes, on both devices.
#include "kernels/products/fp4_values.h"

#include <cmath>

#include "kernels/grids/fp4_grid.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Every code at every place of a word, under every scale that is taken.
FEWBIT_DEVICE_TEST(Fp4Values, OfEveryCodeAndScale) {
  constexpr int64_t kScales = kMostFp4Scale + 1, kBlocks = 16, kIn = kBlocks * kFp4Block;
  const Tensor words = Tensor::host_zeros(DType::u32, {kScales, kIn / kFp4WordCodes}),
               scales = Tensor::host(DType::u8, {kScales, kBlocks});
  const auto code_at = [](int64_t i) { return static_cast<uint8_t>((i % 16 + i / 16) & 15); };
  for (int64_t row = 0; row < kScales; ++row) {
    for (int64_t i = 0; i < kIn; i += 2)
      words.as<uint32_t>()[(row * kIn + i) / kFp4WordCodes] |=
          kFp4WordParts[i % kFp4WordCodes / 2][code_at(i) | code_at(i + 1) << 4];
    for (int64_t b = 0; b < kBlocks; ++b)
      scales.as<uint8_t>()[row * kBlocks + b] = static_cast<uint8_t>((row + b) % kScales);
  }
  const Tensor on_device = ex.to_device(words), own_scales = ex.to_device(scales);
  const Tensor w = poisoned(ex, DType::bf16, {kScales, kIn});
  fp4_values(ex, {.words = on_device, .scales = own_scales}, w);
  const Tensor found = ex.to_host(w);
  for (int64_t row = 0; row < kScales; ++row)
    for (int64_t i = 0; i < kIn; ++i) {
      const int scale = scales.as<uint8_t>()[row * kBlocks + i / kFp4Block];
      const double value = std::ldexp(static_cast<double>(e2m1_value(code_at(i))), scale - 127);
      ASSERT_EQ(static_cast<double>(static_cast<float>(found.as<bf16>()[row * kIn + i])), value)
          << "scale " << scale << ", input " << i;
    }
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

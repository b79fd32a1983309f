// What is not finite is found in every type, at every place and at any address.
#include "src/core/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "src/core/half.h"

namespace fewbit::test {
namespace {

TEST(Finite, AgreesWithTheValueOfEveryPattern) {
  for (int v = 0; v < 65536; ++v) {
    const auto bits = static_cast<uint16_t>(v);
    EXPECT_EQ(first_not_finite(DType::f16, &bits, 1) < 0, std::isfinite(f16_to_f32(bits))) << v;
    EXPECT_EQ(first_not_finite(DType::bf16, &bits, 1) < 0, std::isfinite(static_cast<float>(bf16(bits, 0)))) << v;
  }
  for (int v = 0; v < 256; ++v) {
    const auto bits = static_cast<uint8_t>(v);
    EXPECT_EQ(first_not_finite(DType::f8_e4m3, &bits, 1) < 0, std::isfinite(f8_e4m3_to_f32(bits))) << v;
    EXPECT_EQ(first_not_finite(DType::f8_e5m2, &bits, 1) < 0, std::isfinite(f8_e5m2_to_f32(bits))) << v;
    EXPECT_EQ(first_not_finite(DType::f8_e8m0, &bits, 1) < 0, std::isfinite(f8_e8m0_to_f32(bits))) << v;
    EXPECT_EQ(first_not_finite(DType::u8, &bits, 1), -1) << v;
  }
}

template <class T>
void expect_found(DType dtype, T bad) {
  constexpr int64_t kCount = 3000;
  std::vector<uint8_t> room(kCount * sizeof(T) + 1);
  for (int offset = 0; offset < 2; ++offset)
    for (const int64_t at : {0, 1, 1023, 1024, 2047, 2999}) {
      std::fill(room.begin(), room.end(), uint8_t{0});
      std::memcpy(room.data() + offset + at * static_cast<int64_t>(sizeof(T)), &bad, sizeof bad);
      EXPECT_EQ(first_not_finite(dtype, room.data() + offset, kCount), at) << name_of(dtype);
      EXPECT_EQ(first_not_finite(dtype, room.data() + offset, at), -1) << name_of(dtype);
    }
}

TEST(Finite, FindsTheFirstAnywhere) {
  for (const double bad : {std::nan(""), -std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    expect_found(DType::f64, bad);
    expect_found(DType::f32, static_cast<float>(bad));
    expect_found(DType::bf16, bf16(static_cast<float>(bad)).bits);
  }
  expect_found(DType::f16, uint16_t{0xfc00});
  expect_found(DType::f8_e4m3, uint8_t{0xff});
  expect_found(DType::f8_e5m2, uint8_t{0x7c});
}

}  // namespace
}  // namespace fewbit::test

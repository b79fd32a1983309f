// Small floats, exhaustively: every value survives the way through f32, every tie goes to even, and FP8
// agrees with another library's casts.
#include "src/core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/support.h"

namespace fewbit::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(F16, EveryValueSurvivesF32) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = f16_to_f32(static_cast<uint16_t>(h));
    if ((h & 0x7fff) > 0x7c00) {
      ASSERT_TRUE(std::isnan(f)) << h;
      ASSERT_GT(f32_to_f16(f) & 0x7fff, 0x7c00) << h;
    } else {
      ASSERT_EQ(f32_to_f16(f), h);
    }
  }
}

TEST(F16, KnownValues) {
  EXPECT_EQ(f16_to_f32(0x3c00), 1.f);
  EXPECT_EQ(f16_to_f32(0xc000), -2.f);
  EXPECT_EQ(f16_to_f32(0x7bff), 65504.f);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x0400), 0x1p-14f);
  EXPECT_EQ(f16_to_f32(0x7c00), kInf);
}

// Between neighbours h and h + 1: the middle goes to the even one, anything beside it to the nearer.
TEST(F16, TiesGoToEven) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const float low = f16_to_f32(static_cast<uint16_t>(h)), high = f16_to_f32(static_cast<uint16_t>(h + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(f32_to_f16(middle), h + (h & 1)) << h;
    ASSERT_EQ(f32_to_f16(-middle), (h + (h & 1)) | 0x8000) << h;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.f)), h) << h;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, kInf)), h + 1) << h;
  }
}

TEST(F16, Overflow) {
  EXPECT_EQ(f32_to_f16(65520.f), 0x7c00);
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.f, 0.f)), 0x7bff);
  EXPECT_EQ(f32_to_f16(-kInf), 0xfc00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Bf16, EveryValueSurvivesF32) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = bf16(static_cast<uint16_t>(h), 0);
    if ((h & 0x7fff) > 0x7f80)
      ASSERT_TRUE(std::isnan(f) && std::isnan(static_cast<float>(bf16(f)))) << h;
    else
      ASSERT_EQ(bf16(f).bits, h);
  }
}

TEST(Bf16, TiesGoToEven) {
  for (uint32_t h = 0; h < 0x7f80; ++h) {
    const float middle = std::bit_cast<float>(h << 16 | 0x8000u);
    ASSERT_EQ(bf16(middle).bits, h + (h & 1)) << h;
    ASSERT_EQ(bf16(std::bit_cast<float>(h << 16 | 0x7fffu)).bits, h) << h;
    ASSERT_EQ(bf16(std::bit_cast<float>(h << 16 | 0x8001u)).bits, h + 1) << h;
  }
}

TEST(Bf16, ANanOfLowBitsStaysANan) {
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0xffffffffu)))));
}

TEST(F8, EveryValueSurvivesF32) {
  for (int v = 0; v < 256; ++v) {
    const auto byte = static_cast<uint8_t>(v);
    const float a = f8_e4m3_to_f32(byte), b = f8_e5m2_to_f32(byte);
    if (std::isnan(a)) {
      EXPECT_EQ(v & 0x7f, 0x7f);
      EXPECT_TRUE(std::isnan(f8_e4m3_to_f32(f32_to_f8_e4m3_saturated(a))));
    } else {
      EXPECT_EQ(f32_to_f8_e4m3_saturated(a), byte);
      EXPECT_EQ(f32_to_f8_e4m3_torch(a), byte);
    }
    if (std::isnan(b))
      EXPECT_TRUE(std::isnan(f8_e5m2_to_f32(f32_to_f8_e5m2(b)))) << v;
    else
      EXPECT_EQ(f32_to_f8_e5m2(b), byte);
  }
}

// Codes of positive values below `top` in order of value; the middle between two goes to the even code.
template <class Narrow, class Widen>
void ties_go_to_even(const Narrow& narrow, const Widen& widen, int top) {
  for (int v = 0; v < top; ++v) {
    const float low = widen(static_cast<uint8_t>(v)), high = widen(static_cast<uint8_t>(v + 1));
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(narrow(middle), v + (v & 1)) << v;
    EXPECT_EQ(narrow(-middle), (v + (v & 1)) | 0x80) << v;
    EXPECT_EQ(narrow(std::nextafter(middle, 0.f)), v) << v;
    EXPECT_EQ(narrow(std::nextafter(middle, kInf)), v + 1) << v;
  }
}

TEST(F8, TiesGoToEven) {
  ties_go_to_even(f32_to_f8_e4m3_saturated, f8_e4m3_to_f32, 0x7e);
  ties_go_to_even(f32_to_f8_e4m3_torch, f8_e4m3_to_f32, 0x7e);
  ties_go_to_even(f32_to_f8_e5m2, f8_e5m2_to_f32, 0x7b);
}

TEST(F8, AboveTheRange) {
  EXPECT_EQ(f32_to_f8_e4m3_saturated(1e30f), 0x7e);
  EXPECT_EQ(f32_to_f8_e4m3_saturated(-kInf), 0xfe);
  EXPECT_EQ(f32_to_f8_e4m3_torch(464.f), 0x7e);  // a tie between 448 and the 480 that does not exist
  EXPECT_EQ(f32_to_f8_e4m3_torch(465.f), 0x7f);
  EXPECT_EQ(f32_to_f8_e4m3_torch(kNan) & 0x7f, 0x7f);
  EXPECT_EQ(f32_to_f8_e5m2(kInf), 0x7c);
  EXPECT_EQ(f32_to_f8_e5m2(61440.f), 0x7c);  // the tie above 57344 goes to the even, infinity
  EXPECT_EQ(f32_to_f8_e5m2(std::nextafter(61440.f, 0.f)), 0x7b);
}

constexpr const char* kPacking = "goldens/packing_reference.safetensors";

TEST(F8Golden, Decode) {
  FEWBIT_NEEDS_REFERENCE(kPacking);
  const Golden g(kPacking);
  const Tensor a = g.get("fp8.decode.e4m3fn"), b = g.get("fp8.decode.e5m2");
  ASSERT_EQ(a.numel(), 256);
  for (int v = 0; v < 256; ++v) {
    const float got_a = f8_e4m3_to_f32(static_cast<uint8_t>(v)), got_b = f8_e5m2_to_f32(static_cast<uint8_t>(v));
    if (std::isnan(a.as<float>()[v]))
      EXPECT_TRUE(std::isnan(got_a)) << v;
    else
      EXPECT_EQ(got_a, a.as<float>()[v]) << v;
    if (std::isnan(b.as<float>()[v]))
      EXPECT_TRUE(std::isnan(got_b)) << v;
    else
      EXPECT_EQ(got_b, b.as<float>()[v]) << v;
  }
}

TEST(F8Golden, Casts) {
  FEWBIT_NEEDS_REFERENCE(kPacking);
  const Golden g(kPacking);
  const Tensor input = g.get("fp8.input");
  const auto narrowed = [&](uint8_t (*narrow)(float)) {
    Tensor t = Tensor::host(DType::u8, input.shape());
    for (int64_t i = 0; i < input.numel(); ++i) t.as<uint8_t>()[i] = narrow(input.as<float>()[i]);
    return t;
  };
  EXPECT_EQ(first_difference(narrowed(f32_to_f8_e4m3_saturated), g.get("fp8.e4m3fn_saturated")), "");
  EXPECT_EQ(first_difference(narrowed(f32_to_f8_e4m3_torch), g.get("fp8.e4m3fn_torch")), "");
  EXPECT_EQ(first_difference(narrowed(f32_to_f8_e5m2), g.get("fp8.e5m2_torch")), "");
}

// Both published rules (compressed-tensors, ModelOpt) are these thresholds; ties go to the even index.
TEST(E2m1, RoundsToTheNearestTiesToEven) {
  const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 16; ++code) {
    EXPECT_EQ(f4_e2m1_to_f32(code), code & 8 ? -values[code & 7] : values[code & 7]);
    EXPECT_EQ(f32_to_f4_e2m1(f4_e2m1_to_f32(code)), code);
  }
  for (uint8_t low = 0; low < 7; ++low) {
    const float middle = (values[low] + values[low + 1]) / 2;
    const auto even = static_cast<uint8_t>(low + (low & 1));
    EXPECT_EQ(f32_to_f4_e2m1(middle), even) << middle;
    EXPECT_EQ(f32_to_f4_e2m1(-middle), even | 8) << middle;
    EXPECT_EQ(f32_to_f4_e2m1(std::nextafter(middle, 0.f)), low) << middle;
    EXPECT_EQ(f32_to_f4_e2m1(std::nextafter(middle, kInf)), low + 1) << middle;
  }
  EXPECT_EQ(f32_to_f4_e2m1(1e30f), 7);
  EXPECT_EQ(f32_to_f4_e2m1(-kInf), 15);
  EXPECT_EQ(f32_to_f4_e2m1(kNan), 0);
}

TEST(E8m0, EveryPowerOfTwoSurvives) {
  for (int v = 0; v < 255; ++v) ASSERT_EQ(f32_to_f8_e8m0(f8_e8m0_to_f32(static_cast<uint8_t>(v))), v) << v;
  EXPECT_TRUE(std::isnan(f8_e8m0_to_f32(255)));
  EXPECT_EQ(f32_to_f8_e8m0(kNan), 255);
  EXPECT_EQ(f8_e8m0_to_f32(127), 1.f);
  EXPECT_EQ(f8_e8m0_to_f32(f32_to_f8_e8m0(1.41f)), 1.f);  // below sqrt(2)
  EXPECT_EQ(f8_e8m0_to_f32(f32_to_f8_e8m0(-1.42f)), 2.f);
  EXPECT_EQ(f32_to_f8_e8m0(0.f), 0);
  EXPECT_EQ(f32_to_f8_e8m0(kInf), 254);
}

}  // namespace
}  // namespace fewbit::test

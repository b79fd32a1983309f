#include "kernels/model/cast.h"

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

FEWBIT_DEVICE_TEST(Cast, EveryPairMatchesTheHostConversions) {
  for (const int64_t n : kSizes) {
    const Tensor source = random_normal(DType::f32, {n}, 7, 30.f);  // some above what f8_e4m3 rounds finely
    for (const DType from : {DType::f32, DType::f16, DType::bf16})
      for (const DType to : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3}) {
        const Tensor x = ex.alloc(from, {n});
        cast(ex, ex.to_device(source), x);
        const Tensor y = poisoned(ex, to, {n});
        cast(ex, x, y);
        const Tensor hx = to_f32(ex.to_host(x));
        Tensor expected = Tensor::host(to, {n});
        for (int64_t i = 0; i < n; ++i) {
          const float v = hx.as<float>()[i];
          if (to == DType::f32) expected.as<float>()[i] = v;
          if (to == DType::f16) expected.as<f16>()[i] = v;
          if (to == DType::bf16) expected.as<bf16>()[i] = v;
          if (to == DType::f8_e4m3) expected.as<uint8_t>()[i] = f32_to_f8_e4m3_saturated(v);
        }
        EXPECT_EQ(first_difference(ex.to_host(y), expected), "") << name_of(from) << " to " << name_of(to) << ", " << n;
      }
  }
}

FEWBIT_DEVICE_TEST(Cast, WidensAll256ValuesOfBothEightBitFloats) {
  for (const DType from : {DType::f8_e4m3, DType::f8_e5m2}) {
    Tensor x = Tensor::host(from, {256}), expected = Tensor::host(DType::f32, {256});
    for (int i = 0; i < 256; ++i) {
      x.as<uint8_t>()[i] = static_cast<uint8_t>(i);
      expected.as<float>()[i] =
          from == DType::f8_e4m3 ? f8_e4m3_to_f32(static_cast<uint8_t>(i)) : f8_e5m2_to_f32(static_cast<uint8_t>(i));
    }
    const Tensor y = poisoned(ex, DType::f32, {256});
    cast(ex, ex.to_device(x), y);
    const Tensor found = ex.to_host(y);
    for (int i = 0; i < 256; ++i) {
      const float a = found.as<float>()[i], b = expected.as<float>()[i];
      EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b)))
          << name_of(from) << " byte " << i << ": " << a << " for " << b;
    }
  }
}

FEWBIT_DEVICE_TEST(Cast, NarrowingRoundsToEvenAndSaturates) {
  const float values[] = {1.00390625f, 1.01171875f, -1.00390625f, 1000.f, -1000.f, 0.f};
  Tensor x = Tensor::host_from<float>(DType::f32, {6}, values);
  const Tensor b = poisoned(ex, DType::bf16, {6}), f8 = poisoned(ex, DType::f8_e4m3, {6});
  cast(ex, ex.to_device(x), b);
  cast(ex, ex.to_device(x), f8);
  const Tensor hb = ex.to_host(b), h8 = ex.to_host(f8);
  EXPECT_EQ(static_cast<float>(hb.as<bf16>()[0]), 1.f);        // a tie, down to even
  EXPECT_EQ(static_cast<float>(hb.as<bf16>()[1]), 1.015625f);  // a tie, up to even
  EXPECT_EQ(static_cast<float>(hb.as<bf16>()[2]), -1.f);
  EXPECT_EQ(f8_e4m3_to_f32(h8.as<uint8_t>()[3]), 448.f);
  EXPECT_EQ(f8_e4m3_to_f32(h8.as<uint8_t>()[4]), -448.f);
}

}  // namespace
}  // namespace fewbit::test

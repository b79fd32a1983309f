// The neutral form: every broken invariant is named, and values are what the formula says.
#include "src/core/quantized_linear.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

#include "src/core/half.h"

namespace fewbit::test {
namespace {

template <class T>
Tensor host(DType dtype, Shape shape, const std::vector<T>& values) {
  return Tensor::host_from<T>(dtype, shape, values);
}

// 2 x 4, two groups of 2, asymmetric 4 bit.
QuantizedLinear small() {
  QuantizedLinear q;
  q.spec = {.bits = 4, .group = 2, .symmetric = false};
  q.codes = host<uint8_t>(DType::u8, {2, 4}, {0, 15, 8, 7, 1, 2, 3, 4});
  q.scales = host<float>(DType::f32, {2, 2}, {0.5f, 2.f, -1.f, 0.25f});
  q.zeros = host<uint8_t>(DType::u8, {2, 2}, {1, 8, 0, 15});
  return q;
}

void expect_values(const QuantizedLinear& q, const std::vector<float>& expected) {
  ASSERT_EQ(check(q), "");
  const Tensor w = dequantize_reference(q);
  ASSERT_EQ(w.numel(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(w.as<float>()[i], expected[i]) << i;
}

TEST(Dequantize, Asymmetric) { expect_values(small(), {-0.5f, 7.f, 0.f, -2.f, -1.f, -2.f, -3.f, -2.75f}); }

TEST(Dequantize, SymmetricTakesTheMiddle) {
  QuantizedLinear q = small();
  q.spec.symmetric = true;
  q.zeros.reset();
  expect_values(q, {-4.f, 3.5f, 0.f, -2.f, 7.f, 6.f, -1.25f, -1.f});
}

TEST(Dequantize, GroupOfSaysWhichScale) {
  QuantizedLinear q = small();
  q.group_of = host<int32_t>(DType::i32, {4}, {1, 0, 0, 1});
  expect_values(q, {-16.f, 7.f, 3.5f, -2.f, -3.5f, -2.f, -3.f, -2.75f});
}

TEST(Dequantize, WholeRowGroup) {
  QuantizedLinear q = small();
  q.spec.group = -1;
  q.scales = host<float>(DType::f32, {2, 1}, {0.5f, 2.f});
  q.zeros = host<uint8_t>(DType::u8, {2, 1}, {1, 2});
  expect_values(q, {-0.5f, 7.f, 3.5f, 3.f, -2.f, 0.f, 2.f, 4.f});
}

TEST(Dequantize, Fp8TakesTheValueOfTheCode) {
  QuantizedLinear q;
  q.spec = {.grid = Grid::f8_e4m3, .bits = 8, .group = -1, .scale_dtype = DType::f32, .out_group = 2};
  q.codes = host<uint8_t>(DType::u8, {2, 2}, {0x38, 0xb8, 0x7e, 0x00});  // 1, -1, 448, 0
  q.scales = host<float>(DType::f32, {1, 1}, {3.f});
  expect_values(q, {3.f, -3.f, 1344.f, 0.f});
}

// 1 x 16 and 1 x 32: codes 0 to 15, then again.
QuantizedLinear fp4(const QuantSpec& spec, float scale) {
  QuantizedLinear q;
  q.spec = spec;
  q.codes = Tensor::host(DType::u8, {1, spec.group});
  for (int64_t i = 0; i < spec.group; ++i) q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(i % 16);
  q.scales = host<float>(DType::f32, {1, 1}, {scale});
  if (spec.two_level()) q.global_scale = 0.25;
  return q;
}

TEST(Dequantize, Fp4TakesTheValueOfTheCodeAndBothScales) {
  const QuantizedLinear nv = fp4(kNvfp4, 448.f);
  EXPECT_EQ(nv.spec.str(), "nvfp4");
  EXPECT_EQ(nv.spec.bits_per_weight(64), 4.5);
  const std::vector<float> values = {0, 56, 112, 168, 224, 336, 448, 672};
  std::vector<float> expected = values;
  for (float v : values) expected.push_back(-v);
  expect_values(nv, expected);
  const QuantizedLinear mx = fp4(kMxfp4, 0.5f);
  EXPECT_EQ(mx.spec.str(), "mxfp4");
  EXPECT_EQ(mx.spec.bits_per_weight(64), 4.25);
  ASSERT_EQ(check(mx), "");
  EXPECT_EQ(dequantize_reference(mx).as<float>()[31], -3.f);
}

TEST(QuantizedLinear, ScalesOfFourBitFloatsAreChecked) {
  const auto says = [](QuantizedLinear q, const std::function<void(QuantizedLinear&)>& breaks) {
    breaks(q);
    return check(q);
  };
  const QuantizedLinear nv = fp4(kNvfp4, 448.f), mx = fp4(kMxfp4, 0.5f);
  const auto no_global = [](QuantizedLinear& q) { q.global_scale.reset(); };
  const auto three = [](QuantizedLinear& q) { *q.scales.as<float>() = 3.f; };
  const auto not_e4m3 = [](QuantizedLinear& q) { *q.scales.as<float>() = 447.f; };
  const auto negative = [](QuantizedLinear& q) { *q.scales.as<float>() = -1.f; };
  EXPECT_EQ(says(clone(nv), no_global), "the global scale is missing");
  EXPECT_NE(says(clone(nv), [](QuantizedLinear& q) { q.global_scale = 0; }).find("the global scale is 0"),
            std::string::npos);
  EXPECT_NE(says(clone(mx), [](QuantizedLinear& q) { q.global_scale = 1; }).find("one level"), std::string::npos);
  EXPECT_EQ(says(clone(nv), three), "");
  EXPECT_EQ(says(clone(nv), not_e4m3), "scale 0 is not representable in f8_e4m3");
  EXPECT_EQ(says(clone(nv), negative), "scale 0 is not representable in f8_e4m3");
  EXPECT_EQ(says(clone(mx), three), "scale 0 is not representable in f8_e8m0");
  EXPECT_NE(says(clone(nv), [](QuantizedLinear& q) { q.codes.as<uint8_t>()[3] = 16; }).find("element 3"),
            std::string::npos);
  EXPECT_EQ(representable_scale(0.f, DType::f8_e4m3), 0x1p-9f);
  EXPECT_EQ(representable_scale(1e9f, DType::f8_e4m3), 448.f);
  EXPECT_EQ(representable_scale(3.f, DType::f8_e8m0), 4.f);
}

struct Broken {
  const char* name;
  std::function<void(QuantizedLinear&)> breaks;
  const char* says;
};
void PrintTo(const Broken& b, std::ostream* out) { *out << b.name; }

class QuantizedLinearCheck : public testing::TestWithParam<Broken> {};

TEST_P(QuantizedLinearCheck, NamesWhatIsBroken) {
  QuantizedLinear q = small();
  ASSERT_EQ(check(q), "");
  GetParam().breaks(q);
  EXPECT_NE(check(q).find(GetParam().says), std::string::npos) << "said: \"" << check(q) << "\"";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, QuantizedLinearCheck,
    testing::Values(
        Broken{"CodesNotAMatrix", [](auto& q) { q.codes = Tensor::host_zeros(DType::u8, {8}); }, "not a matrix"},
        Broken{"ScaleShape",
               [](auto& q) {
                 q.scales = Tensor::host_zeros(DType::f32, {2, 3});
               },
               "[2, 3]"},
        Broken{"CodeType",
               [](auto& q) {
                 q.codes = Tensor::host_zeros(DType::i8, {2, 4});
               },
               "u8"},
        Broken{"ScaleType",
               [](auto& q) {
                 q.scales = Tensor::host_zeros(DType::i32, {2, 2});
               },
               "f32"},
        Broken{"ZerosMissing", [](auto& q) { q.zeros.reset(); }, "lacks zero points"},
        Broken{"ZerosOfSymmetric", [](auto& q) { q.spec.symmetric = true; }, "carries zero points"},
        Broken{"ZeroShape",
               [](auto& q) {
                 q.zeros = Tensor::host_zeros(DType::u8, {2, 1});
               },
               "[2, 1]"},
        Broken{"CodeTooLarge", [](auto& q) { q.codes.template as<uint8_t>()[5] = 16; }, "element 5"},
        Broken{"ZeroTooLarge", [](auto& q) { q.zeros->template as<uint8_t>()[0] = 16; }, "zero point"},
        Broken{"InfiniteScale",
               [](auto& q) { q.scales.template as<float>()[2] = std::numeric_limits<float>::infinity(); },
               "scale 2 is not finite"},
        Broken{"ScaleNotF16", [](auto& q) { q.scales.template as<float>()[1] = 0.1f; },
               "scale 1 is not representable in f16"},
        Broken{"ScaleNotBf16",
               [](auto& q) {
                 q.spec.scale_dtype = DType::bf16;
                 q.scales.template as<float>()[3] = 0.1f;
               },
               "scale 3 is not representable in bf16"},
        Broken{"Fp8NotANumber",
               [](auto& q) {
                 q.spec.grid = Grid::f8_e4m3;
                 q.codes.template as<uint8_t>()[6] = 0xff;
               },
               "element 6 is not a number"},
        Broken{"StaticScaleMissing", [](auto& q) { q.spec.activations = ActQuant::tensor; }, "lack their scale"},
        Broken{"StaticScaleOfDynamic", [](auto& q) { q.input_scale = 1.f; }, "not static carry a scale"},
        Broken{"StaticScaleZero",
               [](auto& q) {
                 q.spec.activations = ActQuant::tensor;
                 q.input_scale = 0.f;
               },
               "scale of the activations"},
        Broken{"GroupShape", [](auto& q) { q.group_of = Tensor::host_zeros(DType::i32, {3}); }, "[3]"},
        Broken{"GroupOutOfRange",
               [](auto& q) {
                 q.group_of = host<int32_t>(DType::i32, {4}, {0, 0, 2, 1});
               },
               "group index 2"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(QuantizedLinearDeath, ValidateStopsTheProcess) {
  QuantizedLinear q = small();
  validate(q);
  q.zeros.reset();
  EXPECT_DEATH(validate(q), "lacks zero points");
}

TEST(QuantizedLinear, CloneIsEqualAndItsOwn) {
  const QuantizedLinear q = small();
  const QuantizedLinear c = clone(q);
  EXPECT_EQ(content_hash(c), content_hash(q));
  EXPECT_NE(c.codes.view().data, q.codes.view().data);
  c.codes.as<uint8_t>()[0] ^= 1;
  EXPECT_NE(content_hash(c), content_hash(q));
  QuantizedLinear scaled = clone(q);
  scaled.input_scale = 0.5f;
  EXPECT_NE(content_hash(scaled), content_hash(q));
}

TEST(GroupOrder, PutsTheColumnsOfAGroupSideBySide) {
  QuantizedLinear q = small();
  EXPECT_FALSE(group_order(q));
  q.group_of = host<int32_t>(DType::i32, {4}, {1, 0, 1, 0});
  const std::optional<Tensor> order = group_order(q);
  ASSERT_TRUE(order);
  const std::vector<int32_t> found(order->as<int32_t>(), order->as<int32_t>() + 4);
  EXPECT_EQ(found, (std::vector<int32_t>{1, 3, 0, 2}));
  const std::optional<OrderedLinear> ordered = in_group_order(q);
  ASSERT_TRUE(ordered);
  EXPECT_FALSE(ordered->linear.group_of);
  EXPECT_EQ(std::vector<int32_t>(ordered->order.as<int32_t>(), ordered->order.as<int32_t>() + 4), found);
  const Tensor before = dequantize_reference(q), after = dequantize_reference(ordered->linear);
  for (size_t o = 0; o < 2; ++o)
    for (size_t i = 0; i < 4; ++i)
      EXPECT_EQ(after.as<float>()[o * 4 + i], before.as<float>()[o * 4 + static_cast<size_t>(found[i])]) << o << i;
  q.group_of = host<int32_t>(DType::i32, {4}, {1, 1, 1, 0});
  EXPECT_FALSE(group_order(q) || in_group_order(q)) << "a group of three columns and one of one";
}

TEST(RepresentableScale, KeepsTheSignAndIsNeverZero) {
  for (DType d : {DType::f16, DType::bf16, DType::f32})
    for (float s : {0.f, -0.f, 1e-30f, -1e-42f, 0.1f, -0.1f, 1e6f}) {
      const float r = representable_scale(s, d);
      EXPECT_TRUE(std::isfinite(r) && r != 0) << s;
      EXPECT_EQ(std::signbit(r), std::signbit(s)) << s;
      EXPECT_EQ(representable_scale(r, d), r) << s;
    }
  EXPECT_EQ(representable_scale(0.1f, DType::f16), round_to_f16(0.1f));
  EXPECT_EQ(representable_scale(1e6f, DType::f16), 65504.f);
}

TEST(QuantSpec, CountsAndWords) {
  const QuantSpec s = {.bits = 4, .group = 128};
  EXPECT_EQ(s.str(), "int4 g128 sym");
  EXPECT_EQ(s.groups(300), 3);  // the last group is short
  EXPECT_EQ(s.bits_per_weight(256), 4.125);
  const QuantSpec row = {.bits = 8, .group = -1, .symmetric = false};
  EXPECT_EQ(row.str(), "int8 gch asym");
  EXPECT_EQ(row.groups(300), 1);
  EXPECT_EQ(row.bits_per_weight(24), 9.0);  // 16 + 8 bits over 24 weights
  const QuantSpec fp8 = {.grid = Grid::f8_e4m3, .bits = 8, .group = -1};
  EXPECT_EQ(fp8.str(), "fp8 gch");
}

}  // namespace
}  // namespace fewbit::test

// Codes on a grid that has all of their values: over every pair of specs the values stay to the bit.
#include "formats/finer_grid.h"

#include "tests/formats/packing_fixture.h"

namespace fewbit::test {
namespace {

TEST(FinerGrid, ValuesStayToTheBit) {
  int held = 0, changed = 0;
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{192, 160}, {96, 128}, {33, 64}})
    for (const QuantSpec& from : all_specs(out)) {
      const QuantizedLinear q = random_linear(from, out, in, Order::consecutive);
      for (const QuantSpec& to : all_specs(out)) {
        if (to.two_level() != from.two_level() || !has_grid(to, from, out, in)) continue;
        QuantizedLinear finer = on_finer_grid(q, to);
        if (to.activations == ActQuant::tensor && !finer.input_scale) finer.input_scale = 1;  // calibrated by the run
        ASSERT_EQ(check(finer), "") << from.str() << " to " << to.str();
        ASSERT_EQ(first_difference(dequantize_reference(finer), dequantize_reference(q)), "")
            << from.str() << " to " << to.str();
        ++held;
        changed += !(finer.scales.shape() == q.scales.shape());
      }
    }
  EXPECT_GT(held, 500);
  EXPECT_GT(changed, 100);
}

TEST(FinerGrid, WhatLosesIsNotHeld) {
  const QuantSpec block{.grid = Grid::f8_e4m3, .bits = 8, .group = 128, .scale_dtype = DType::f32, .out_group = 128};
  QuantSpec other = block;
  EXPECT_TRUE(has_grid(other, block, 200, 300));
  other.group = 64;
  EXPECT_TRUE(has_grid(other, block, 200, 300));
  other.group = 96;  // a group that reaches over the end of another
  EXPECT_FALSE(has_grid(other, block, 200, 300));
  other.group = -1;
  EXPECT_FALSE(has_grid(other, block, 200, 300));
  other = block;
  other.scale_dtype = DType::bf16;
  EXPECT_FALSE(has_grid(other, block, 200, 300));
  EXPECT_FALSE(has_grid({.bits = 8}, {.bits = 4}, 64, 128));
  EXPECT_FALSE(has_grid({}, {.symmetric = false}, 64, 128));
  EXPECT_FALSE(has_grid(kMxfp4, kNvfp4, 64, 128));
}

TEST(FinerGrid, PowersOfTwoUnderAGlobalScale) {
  EXPECT_EQ(exact_global(0x1p-9f, 0x1p8f), 1);
  EXPECT_EQ(exact_global(0x1p-10f, 0x1p8f), 0);
  EXPECT_EQ(exact_global(0x1p-100f, 0x1p-90f), 0x1p-98);
  EXPECT_EQ(exact_global(0x1p-127f, 0x1p-120f), 0);  // the global scale would be no normal f32
  QuantizedLinear q = random_linear(kMxfp4, 64, 128, Order::consecutive);
  for (int64_t i = 0; i < q.scales.numel(); ++i)
    q.scales.as<float>()[i] = std::ldexp(1.f, static_cast<int>(i % 18) - 30);
  const QuantizedLinear nv = on_finer_grid(q, kNvfp4, exact_global(0x1p-30f, 0x1p-13f));
  EXPECT_EQ(check(nv), "");
  EXPECT_EQ(first_difference(dequantize_reference(nv), dequantize_reference(q)), "");
}

}  // namespace
}  // namespace fewbit::test

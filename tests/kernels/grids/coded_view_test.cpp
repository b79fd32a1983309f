#include "kernels/grids/coded_view.h"

#include "src/core/half.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

Tensor bytes(Shape shape, std::vector<uint8_t> v) { return Tensor::host_from<uint8_t>(DType::u8, shape, v); }
Tensor floats(Shape shape, std::vector<float> v) { return Tensor::host_from<float>(DType::f32, shape, v); }

// The index arithmetic against the readable truth, with everything that a coded linear can have.
TEST(CodedView, ValuesAreThoseOfTheNeutralForm) {
  for (const bool symmetric : {true, false})
    for (const bool scattered : {true, false}) {
      QuantizedLinear q{.spec = {.bits = 3, .group = 2, .symmetric = symmetric}};
      q.codes = bytes({2, 5}, {0, 1, 2, 3, 4, 5, 6, 7, 0, 1});
      q.scales = floats({2, 3}, {0.5f, -1.f, 2.f, 0.25f, 4.f, 8.f});
      if (!symmetric) q.zeros = bytes({2, 3}, {1, 2, 3, 4, 5, 6});
      if (scattered) q.group_of = Tensor::host_from<int32_t>(DType::i32, {5}, std::vector<int32_t>{2, 0, 1, 0, 2});
      const MutableCodedView view{.codes = q.codes,
                                  .scales = q.scales,
                                  .zeros = q.zeros ? q.zeros->view() : TensorView{},
                                  .group_of = q.group_of ? q.group_of->view() : ConstTensorView{},
                                  .bits = 3,
                                  .group = 2};
      const CodedArrays<true> writable(view);
      const CodedArrays<false> constant(read_only(view));
      const Tensor truth = dequantize_reference(q);
      for (int64_t o = 0; o < 2; ++o)
        for (int i = 0; i < 5; ++i) {
          EXPECT_EQ(writable.value(o, i), truth.as<float>()[o * 5 + i]) << o << " " << i;
          EXPECT_EQ(constant.value(o, i), truth.as<float>()[o * 5 + i]) << o << " " << i;
        }
    }
}

TEST(CodedView, OutputsCanShareScalesAndCodesCanStandForLevels) {
  const Tensor codes = bytes({3, 2}, {0x38, 0x40, 0xb8, 0x38, 0x40, 0x40}), scales = floats({2, 1}, {1.f, 10.f});
  Tensor levels = Tensor::host(DType::f32, {256});
  for (int c = 0; c < 256; ++c) levels.as<float>()[c] = f8_e4m3_to_f32(static_cast<uint8_t>(c));
  const CodedArrays<false> q(CodedView{.codes = codes,
                                       .scales = scales,
                                       .levels = levels,
                                       .grid = Grid::f8_e4m3,
                                       .bits = 8,
                                       .group = 2,
                                       .out_group = 2});
  const float want[3][2] = {{1.f, 2.f}, {-1.f, 1.f}, {20.f, 20.f}};
  for (int64_t o = 0; o < 3; ++o)
    for (int i = 0; i < 2; ++i) EXPECT_EQ(q.value(o, i), want[o][i]) << o << " " << i;
}

}  // namespace
}  // namespace fewbit::test

#include "kernels/quantize/round_to_grid.h"

#include "kernels/products/dequantize.h"
#include "src/core/half.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

FEWBIT_DEVICE_TEST(RoundToGrid, RoundsTiesToEvenAndClamps) {
  const Tensor w =
      ex.to_device(host_tensor<float>(DType::f32, {1, 8}, {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 100.f, -100.f, 6.6f}));
  const Tensor scales = ex.to_device(host_tensor<float>(DType::f32, {1, 1}, {1.f}));
  const Tensor codes = poisoned(ex, DType::u8, {1, 8});
  round_to_grid(ex, w, {.codes = codes, .scales = scales, .bits = 4, .group = 8});
  const Tensor got = ex.to_host(codes);
  const std::vector<uint8_t> want = {8, 10, 10, 8, 6, 15, 0, 15};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got.as<uint8_t>()[i], want[i]) << i;
}

// Any valid codes, made values and rounded again, are themselves: both ops agree on every convention.
FEWBIT_DEVICE_TEST(RoundToGrid, InvertsDequantize) {
  for (const int bits : {2, 3, 4, 5, 6, 7, 8})
    for (const bool symmetric : {true, false})
      for (const bool scattered : {true, false}) {
        const int64_t out = 33, in = 131, group = 32, groups = 5;
        const Tensor codes = random_codes({out, in}, 1 << bits, 1);
        Tensor scales = random_normal(DType::f32, {out, groups}, 2, 0.1f);
        for (int64_t i = 0; i < scales.numel(); ++i)
          scales.as<float>()[i] = representable_scale(scales.as<float>()[i], DType::f16);
        const Tensor zeros = random_codes({out, groups}, 1 << bits, 3);
        Tensor group_of = Tensor::host(DType::i32, {in});
        for (int64_t i = 0; i < in; ++i) group_of.as<int32_t>()[i] = static_cast<int32_t>(i * 7 % groups);
        const Tensor dc = ex.to_device(codes), ds = ex.to_device(scales), dz = ex.to_device(zeros),
                     dg = ex.to_device(group_of);
        const TensorView z = symmetric ? TensorView{} : dz.view();
        const ConstTensorView g = scattered ? dg.view() : ConstTensorView{};
        const Tensor w = poisoned(ex, DType::f32, {out, in}), back = poisoned(ex, DType::u8, {out, in});
        dequantize(ex, {.codes = dc, .scales = ds, .zeros = z, .group_of = g, .bits = bits, .group = group}, w);
        round_to_grid(ex, w, {.codes = back, .scales = ds, .zeros = z, .group_of = g, .bits = bits, .group = group});
        EXPECT_EQ(first_difference(ex.to_host(back), codes), "") << bits;
      }
}

FEWBIT_DEVICE_TEST(Dequantize, MatchesTheReadableTruthAndRoundsToBf16Once) {
  QuantizedLinear q;
  q.spec = {.bits = 4, .group = 48, .symmetric = false};
  q.codes = random_codes({9, 100}, 16, 4);
  q.scales = random_normal(DType::f32, {9, 3}, 5, 0.2f);
  for (int64_t i = 0; i < q.scales.numel(); ++i)
    q.scales.as<float>()[i] = representable_scale(q.scales.as<float>()[i], DType::f16);
  q.zeros = random_codes({9, 3}, 16, 6);
  const Tensor c = ex.to_device(q.codes), s = ex.to_device(q.scales), z = ex.to_device(*q.zeros);
  const CodedView view{.codes = c, .scales = s, .zeros = z, .bits = 4, .group = 48};
  const Tensor f32 = poisoned(ex, DType::f32, {9, 100}), half = poisoned(ex, DType::bf16, {9, 100});
  dequantize(ex, view, f32);
  dequantize(ex, view, half);
  const Tensor truth = dequantize_reference(q), got = ex.to_host(half);
  EXPECT_EQ(first_difference(ex.to_host(f32), truth), "");
  for (int64_t i = 0; i < truth.numel(); ++i) EXPECT_EQ(got.as<bf16>()[i].bits, bf16(truth.as<float>()[i]).bits);
}

}  // namespace
}  // namespace fewbit

#include "kernels/quantize/choose_f8_scales.h"

#include <cmath>

#include "kernels/products/dequantize.h"
#include "kernels/quantize/round_to_grid.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

struct F8Case {
  int64_t out, in, out_group, group;
};
// Per output; per output with groups; blocks with short last ones; one of all.
constexpr F8Case kF8Cases[] = {{7, 200, 1, 200}, {33, 131, 1, 64}, {200, 300, 128, 128}, {45, 97, 45, 97}};

Tensor chosen(Exec& ex, const F8Case& c, const Tensor& w, const Tensor& h, bool search, DType dtype = DType::f32) {
  const Tensor s = poisoned(ex, DType::f32, {(c.out + c.out_group - 1) / c.out_group, (c.in + c.group - 1) / c.group});
  const Tensor dw = ex.to_device(w), dh = ex.to_device(h);
  choose_f8_scales(
      ex, {.w = dw, .h = dh, .group = c.group, .out_group = c.out_group, .scale_dtype = dtype, .search = search}, s);
  return ex.to_host(s);
}

// sum h (w - Q(w))^2 under the scales.
double weighted_error(Exec& ex, const F8Case& c, const Tensor& w, const Tensor& h, const Tensor& scales) {
  const Tensor ds = ex.to_device(scales), codes = poisoned(ex, DType::u8, {c.out, c.in});
  const Tensor back = poisoned(ex, DType::f32, {c.out, c.in});
  round_to_grid(
      ex, ex.to_device(w),
      {.codes = codes, .scales = ds, .grid = Grid::f8_e4m3, .bits = 8, .group = c.group, .out_group = c.out_group});
  const Tensor levels = ex.to_device(code_levels(Grid::f8_e4m3));
  dequantize(ex,
             {.codes = codes,
              .scales = ds,
              .levels = levels,
              .grid = Grid::f8_e4m3,
              .bits = 8,
              .group = c.group,
              .out_group = c.out_group},
             back);
  const Tensor q = ex.to_host(back);
  double sum = 0;
  for (int64_t i = 0; i < w.numel(); ++i) {
    const double d = static_cast<double>(w.as<float>()[i]) - q.as<float>()[i];
    sum += h.as<float>()[i % c.in] * d * d;
  }
  return sum;
}

FEWBIT_DEVICE_TEST(ChooseF8Scales, PlainIsTheLargestOverTheLargestCode) {
  for (const F8Case& c : kF8Cases) {
    const Tensor w = random_normal(DType::f32, {c.out, c.in}, 1), ones = random_normal(DType::f32, {c.in}, 2);
    const Tensor s = chosen(ex, c, w, ones, false);
    for (int64_t b = 0; b < s.rows(); ++b)
      for (int64_t g = 0; g < s.cols(); ++g) {
        float most = 0;
        for (int64_t o = b * c.out_group; o < std::min(c.out, (b + 1) * c.out_group); ++o)
          for (int64_t i = g * c.group; i < std::min(c.in, (g + 1) * c.group); ++i)
            most = std::max(most, std::fabs(w.as<float>()[o * c.in + i]));
        EXPECT_FLOAT_EQ(s.as<float>()[b * s.cols() + g], most / 448.f) << b << " " << g;
      }
  }
}

FEWBIT_DEVICE_TEST(ChooseF8Scales, TheSearchNeverLosesAndIsRepresentable) {
  for (const F8Case& c : kF8Cases)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Tensor w = random_normal(DType::f32, {c.out, c.in}, 3);
      Tensor h = random_normal(DType::f32, {c.in}, 4);
      for (int64_t i = 0; i < c.in; ++i) h.as<float>()[i] *= h.as<float>()[i];
      const Tensor plain = chosen(ex, c, w, h, false, dtype), searched = chosen(ex, c, w, h, true, dtype);
      EXPECT_LT(weighted_error(ex, c, w, h, searched), weighted_error(ex, c, w, h, plain)) << c.out;
      for (int64_t i = 0; i < searched.numel(); ++i)
        EXPECT_EQ(searched.as<float>()[i], representable_scale(searched.as<float>()[i], dtype));
    }
}

FEWBIT_DEVICE_TEST(ChooseF8Scales, ZerosGetOne) {
  const F8Case c{3, 40, 1, 40};
  const Tensor s = chosen(ex, c, Tensor::host_zeros(DType::f32, {3, 40}), random_normal(DType::f32, {40}, 1), true);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(s.as<float>()[i], 1.f);
}

TEST(ChooseF8Scales, CudaChoosesAsTheCpu) {
  FEWBIT_NEEDS_GPU();
  Exec gpu = Exec::cuda(0), cpu = Exec::cpu();
  for (const F8Case& c : kF8Cases) {
    const Tensor w = random_normal(DType::f32, {c.out, c.in}, 5);
    Tensor h = random_normal(DType::f32, {c.in}, 6);
    for (int64_t i = 0; i < c.in; ++i) h.as<float>()[i] *= h.as<float>()[i];
    EXPECT_EQ(first_difference(chosen(gpu, c, w, h, true), chosen(cpu, c, w, h, true)), "") << c.out << " " << c.in;
  }
}

// Every E4M3 code but NaN, made a value and rounded again, is itself.
FEWBIT_DEVICE_TEST(RoundToGrid, InvertsDequantizeOnTheE4m3Grid) {
  for (const F8Case& c : kF8Cases) {
    Tensor codes = random_codes({c.out, c.in}, 256, 7);
    for (int64_t i = 0; i < codes.numel(); ++i) {
      uint8_t& code = codes.as<uint8_t>()[i];
      if ((code & 0x7f) == 0x7f) code ^= 1;
    }
    const Tensor scales =
        random_normal(DType::f32, {(c.out + c.out_group - 1) / c.out_group, (c.in + c.group - 1) / c.group}, 8);
    for (int64_t i = 0; i < scales.numel(); ++i) scales.as<float>()[i] = 0.5f + std::fabs(scales.as<float>()[i]);
    QuantizedLinear q;
    q.spec = {
        .grid = Grid::f8_e4m3,
        .bits = 8,
        .group = c.group,
        .scale_dtype = DType::f32,
        .out_group = c.out_group,
    };
    q.codes = clone_host(codes);
    q.scales = clone_host(scales);
    const Tensor dc = ex.to_device(codes), ds = ex.to_device(scales);
    const Tensor w = poisoned(ex, DType::f32, {c.out, c.in}), back = poisoned(ex, DType::u8, {c.out, c.in});
    const Tensor levels = ex.to_device(code_levels(Grid::f8_e4m3));
    dequantize(ex,
               {.codes = dc,
                .scales = ds,
                .levels = levels,
                .grid = Grid::f8_e4m3,
                .bits = 8,
                .group = c.group,
                .out_group = c.out_group},
               w);
    EXPECT_EQ(first_difference(ex.to_host(w), dequantize_reference(q)), "");
    round_to_grid(
        ex, w,
        {.codes = back, .scales = ds, .grid = Grid::f8_e4m3, .bits = 8, .group = c.group, .out_group = c.out_group});
    EXPECT_EQ(first_difference(ex.to_host(back), codes), "");
  }
}

}  // namespace
}  // namespace fewbit

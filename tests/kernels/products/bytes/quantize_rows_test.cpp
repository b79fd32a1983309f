// Rows as 8-bit codes: nearest codes, scales, NaN, and the same bits on the CPU and the GPU.
#include "kernels/products/bytes/quantize_rows.h"

#include <algorithm>
#include <bit>

#include "kernels/grids/f8_grid.h"
#include "kernels/products/gemm.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

constexpr RowQuant kQuants[] = {{.codes = DType::i8},
                                {.codes = DType::f8_e4m3},
                                {.codes = DType::i8, .fixed = 0.01f},
                                {.codes = DType::f8_e4m3, .fixed = 0.001f}};

TEST(F8Grid, IsTheHostsConversionForEveryCodeAndBetween) {
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    const float value = f8_e4m3_to_f32(code);
    EXPECT_EQ(std::isnan(f8_value(code)), std::isnan(value));
    if (std::isnan(value)) continue;
    EXPECT_EQ(f8_value(code), value) << c;
    EXPECT_EQ(f8_code(value), code);
    for (const float x :
         {value * 1.0625f, value * 1.03f, std::nextafter(value * 1.0625f, 1e9f), value * 0.97f, value + 0x1p-10f})
      EXPECT_EQ(f8_code(x), f32_to_f8_e4m3_saturated(x)) << x;
  }
  EXPECT_EQ(f8_code(1e30f), 0x7e);
  EXPECT_EQ(f8_code(-INFINITY), 0xfe);
  EXPECT_EQ(f8_code(NAN) & 0x7f, 0x7f);
}

double code_value(ConstTensorView codes, int64_t i) {
  return codes.dtype == DType::i8 ? codes.as<int8_t>()[i] : f8_e4m3_to_f32(codes.as<uint8_t>()[i]);
}

FEWBIT_DEVICE_TEST(QuantizeRows, NearestCodesUnderTheRowsOwnScale) {
  for (const MatrixShape& s : kMatrices)
    for (const DType dtype : kComputeTypes)
      for (const RowQuant& q : kQuants) {
        const Tensor x = random_normal(dtype, {s.rows, s.cols}, 1);
        const Tensor codes = poisoned(ex, q.codes, {s.rows, s.cols}), scales = poisoned(ex, DType::f32, {s.rows});
        const Tensor rounded = poisoned(ex, DType::f32, {s.rows, s.cols}), dx = ex.to_device(x);
        quantize_rows(ex, dx, q, codes, scales);
        round_rows(ex, dx, q, rounded);
        const Tensor c = ex.to_host(codes), f = ex.to_host(scales), r = ex.to_host(rounded);
        const std::vector<double> values = doubles(x);
        const double top = q.codes == DType::i8 ? 127 : 448;
        for (int64_t row = 0; row < s.rows; ++row) {
          double most = 0;
          for (int64_t i = 0; i < s.cols; ++i)
            most = std::max(most, std::fabs(values[static_cast<size_t>(row * s.cols + i)]));
          const double scale = f.as<float>()[row];
          EXPECT_NEAR(scale, q.fixed > 0 ? q.fixed : most / top, tol::kF32Op * scale);
          for (int64_t i = 0; i < s.cols; ++i) {
            const double v = code_value(c, row * s.cols + i) * scale,
                         x_i = values[static_cast<size_t>(row * s.cols + i)];
            EXPECT_NEAR(r.as<float>()[row * s.cols + i], v, tol::kF32Op * std::fabs(v)) << "the same values both ways";
            const double reach = q.codes == DType::i8 ? 127 * scale : 448 * scale;
            const double bounded = std::clamp(x_i, -reach - (q.codes == DType::i8 ? scale : 0), reach);
            // Half a step: of int8 one scale, of E4M3 an eighth of the value's power of two.
            const double step = q.codes == DType::i8 ? scale : std::max(std::fabs(bounded) / 8, scale * 0x1p-9);
            EXPECT_LE(std::fabs(v - bounded), 0.5001 * step) << name_of(q.codes) << " " << x_i;
          }
        }
      }
}

// f16 under a power of two: the values themselves, however large or small.
FEWBIT_DEVICE_TEST(QuantizeRows, UnroundedRowsKeepTheirValues) {
  Tensor x = random_normal(DType::bf16, {7, 97}, 6);
  const float factors[] = {1, 3e38f / 8, 1e-38f, 1e-30f, 0, 1e9f, 1};
  for (int64_t r = 0; r < 7; ++r)
    for (int64_t i = 0; i < 97; ++i)
      x.as<bf16>()[r * 97 + i] = static_cast<float>(x.as<bf16>()[r * 97 + i]) * factors[r];
  x.as<bf16>()[6 * 97 + 3] = -INFINITY;
  const Tensor codes = poisoned(ex, DType::f16, {7, 97}), scales = poisoned(ex, DType::f32, {7});
  quantize_rows(ex, ex.to_device(x), kUnrounded, codes, scales);
  const Tensor c = ex.to_host(codes), s = ex.to_host(scales);
  for (int64_t r = 0; r < 7; ++r) {
    const float scale = s.as<float>()[r];
    if (r == 6) {
      EXPECT_TRUE(std::isinf(scale)) << "an infinity stays visible";
      continue;
    }
    int exponent = 0;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5f) << "a power of two";
    for (int64_t i = 0; i < 97; ++i)
      EXPECT_EQ(static_cast<float>(c.as<f16>()[r * 97 + i]) * scale, static_cast<float>(x.as<bf16>()[r * 97 + i])) << r;
  }
}

// Groups that do not divide the columns: the last is short, and each is rounded as if it stood alone.
FEWBIT_DEVICE_TEST(QuantizeRows, TheLastGroupMayBeShort) {
  constexpr int64_t kRows = 3, kIn = 160, kGroup = 128;
  for (const DType codes_type : {DType::i8, DType::f8_e4m3}) {
    const RowQuant whole{.codes = codes_type}, grouped{.codes = codes_type, .group = kGroup};
    const Tensor x = random_normal(DType::f32, {kRows, kIn}, 4);
    const Tensor codes = poisoned(ex, codes_type, {kRows, kIn}), scales = poisoned(ex, DType::f32, {kRows, 2});
    const Tensor rounded = poisoned(ex, DType::f32, {kRows, kIn});
    quantize_rows(ex, ex.to_device(x), grouped, codes, scales);
    round_rows(ex, ex.to_device(x), grouped, rounded);
    const Tensor c = ex.to_host(codes), s = ex.to_host(scales), r = ex.to_host(rounded);
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t g = 0; g < 2; ++g) {
        const int64_t at = row * kIn + g * kGroup, n = g == 0 ? kGroup : kIn - kGroup;
        Tensor part = Tensor::host(DType::f32, {1, n});
        std::copy_n(x.as<float>() + at, n, part.as<float>());
        const Tensor own = poisoned(ex, codes_type, {1, n}), scale = poisoned(ex, DType::f32, {1});
        const Tensor values = poisoned(ex, DType::f32, {1, n});
        quantize_rows(ex, ex.to_device(part), whole, own, scale);
        round_rows(ex, ex.to_device(part), whole, values);
        const Tensor oc = ex.to_host(own), ov = ex.to_host(values);
        EXPECT_EQ(s.as<float>()[row * 2 + g], *ex.to_host(scale).as<float>());
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(c.as<uint8_t>()[at + i], oc.as<uint8_t>()[i]) << row << " " << g << " " << i;
          ASSERT_EQ(r.as<float>()[at + i], ov.as<float>()[i]) << row << " " << g << " " << i;
        }
      }
  }
}

// Int4 levels under max|x| / 7.5 or a share of that, also of rows that are turned by Hadamard matrices, rounded and
// turned back.
FEWBIT_DEVICE_TEST(QuantizeRows, Int4AndTurnedRows) {
  constexpr int64_t kRows = 5, kIn = 96;
  struct Case {
    int64_t run;
    int bits;
    uint8_t reach;
  };
  for (const Case& c : {Case{0, 4, 100}, Case{0, 4, 80}, Case{32, 4, 100}, Case{32, 4, 80}, Case{32, 8, 100}}) {
    const int64_t run = c.run;
    const int bits = c.bits;
    const RowQuant q{.codes = DType::i8, .reach = c.reach, .bits = bits, .turn = run};
    Tensor x = random_normal(DType::f32, {kRows, kIn}, 11);
    for (int64_t i = 0; i < kIn; ++i) x.as<float>()[2 * kIn + i] = 0;
    const auto turned = [&](std::vector<double> row) {
      std::vector<double> out(row);
      for (int64_t i = 0; run > 0 && i < kIn; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < run; ++j)
          sum += (std::popcount(static_cast<uint64_t>((i % run) & j)) % 2 ? -1 : 1) *
                 row[static_cast<size_t>(i / run * run + j)];
        out[static_cast<size_t>(i)] = sum / std::sqrt(static_cast<double>(run));
      }
      return out;
    };
    // The largest magnitude lies on a tie, 7.5 steps: above zero both neighbours are the highest level.
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<double> there = turned({x.as<float>() + r * kIn, x.as<float>() + (r + 1) * kIn});
      const auto [low, high] = std::minmax_element(there.begin(), there.end());
      for (int64_t i = 0; - *low > *high && i < kIn; ++i) x.as<float>()[r * kIn + i] *= -1;
    }
    const Tensor y = poisoned(ex, DType::f32, {kRows, kIn});
    round_rows(ex, ex.to_device(x), q, y);
    const Tensor found = ex.to_host(y);
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<double> row(x.as<float>() + r * kIn, x.as<float>() + (r + 1) * kIn), codes = turned(row);
      double most = 0, far = 0;
      for (const double v : codes) most = std::max(most, std::fabs(v));
      const double step = most == 0 ? 1 : c.reach / 100.0 * most / (bits == 4 ? 7.5 : 127);
      const double lowest = bits == 4 ? -8 : -128;
      for (double& v : codes) v = std::clamp(std::nearbyint(v / step), lowest, -lowest - 1) * step;
      const std::vector<double> expected = turned(codes);
      for (int64_t i = 0; i < kIn; ++i)
        far = std::max(far, std::fabs(expected[static_cast<size_t>(i)] - found.as<float>()[r * kIn + i]));
      EXPECT_LE(far, run > 0 ? tol::kF32Product * most : tol::kF32Op * most) << run << " " << bits << " row " << r;
    }
  }
}

FEWBIT_DEVICE_TEST(QuantizeRows, ZerosNaNsAndGroups) {
  const int64_t in = 256;
  Tensor x = Tensor::host_zeros(DType::f32, {3, in});
  x.as<float>()[in + 7] = NAN;
  x.as<float>()[2 * in + 200] = 127.f;
  const Tensor codes = poisoned(ex, DType::i8, {3, in}), scales = poisoned(ex, DType::f32, {3, 2});
  quantize_rows(ex, ex.to_device(x), {.codes = DType::i8, .group = 128}, codes, scales);
  const Tensor s = ex.to_host(scales), c = ex.to_host(codes);
  EXPECT_EQ(s.as<float>()[0], 1.f) << "a group of zeros";
  EXPECT_TRUE(std::isnan(s.as<float>()[2])) << "a NaN stays visible";
  EXPECT_EQ(s.as<float>()[3], 1.f) << "in its group alone";
  EXPECT_EQ(s.as<float>()[5], 1.f);
  EXPECT_EQ(c.as<int8_t>()[2 * in + 200], 127);
  const Tensor fixed = poisoned(ex, DType::f32, {3});
  quantize_rows(ex, ex.to_device(x), {.codes = DType::i8, .fixed = 0.5f}, codes, fixed);
  EXPECT_TRUE(std::isnan(ex.to_host(fixed).as<float>()[1])) << "static scales hide no NaN either";
  EXPECT_EQ(ex.to_host(codes).as<int8_t>()[2 * in + 200], 127) << "saturates";
}

constexpr RowQuant kFp4Quants[] = {
    {.codes = DType::u8, .fixed = 0x1p-9f, .group = 16, .scales = DType::f8_e4m3},  // reaches to 5.25 only
    {.codes = DType::u8, .fixed = 0.00037f, .group = 16, .scales = DType::f8_e4m3},
    {.codes = DType::u8, .group = 32, .scales = DType::f8_e8m0},
};

// The nearest of E2M1's values, and how far the next one is.
double fp4_error(double x) {
  double least = 100;
  for (const double v : {0., .5, 1., 1.5, 2., 3., 4., 6.}) least = std::min(least, std::fabs(std::fabs(x) - v));
  return least;
}

FEWBIT_DEVICE_TEST(QuantizeRows, Fp4TakesTheNearestValueUnderTheScaleOfItsGroup) {
  for (const DType dtype : kComputeTypes)
    for (const RowQuant& q : kFp4Quants) {
      const int64_t rows = 5, in = 80;  // of 32 the last group has 16
      const Tensor x = random_normal(dtype, {rows, in}, 1), y = poisoned(ex, DType::f32, {rows, in});
      round_rows(ex, ex.to_device(x), q, y);
      const Tensor found = ex.to_host(y);
      const std::vector<double> values = doubles(x);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t first = 0; first < in; first += q.group) {
          const int64_t at = r * in + first, n = std::min(q.group, in - first);
          double most = 0;
          for (int64_t i = at; i < at + n; ++i) most = std::max(most, std::fabs(values[static_cast<size_t>(i)]));
          double scale = std::exp2(std::floor(std::log2(most / 1.75)) - 1);  // max|x| / scale in [3.5, 7)
          if (q.scales == DType::f8_e4m3) {
            const auto group = static_cast<float>(most / 6 / static_cast<double>(q.fixed));
            scale = static_cast<double>(f8_e4m3_to_f32(f32_to_f8_e4m3_saturated(group)) * q.fixed);
          }
          for (int64_t i = at; i < at + n; ++i) {
            const double v = found.as<float>()[i] / scale, t = values[static_cast<size_t>(i)] / scale;
            EXPECT_LT(fp4_error(v), 1e-6) << "a value of E2M1";
            EXPECT_NEAR(v, t, (std::fabs(t) > 6 ? std::fabs(t) - 6 : fp4_error(t)) + 1e-5) << "and the nearest";
          }
        }
    }
}

FEWBIT_DEVICE_TEST(QuantizeRows, Fp4OfZerosAndOfWhatIsNoNumber) {
  for (const RowQuant& q : kFp4Quants) {
    Tensor x = Tensor::host_zeros(DType::f32, {3, 64});
    x.as<float>()[64 + 3] = NAN;
    x.as<float>()[2 * 64 + 40] = INFINITY;
    const Tensor y = poisoned(ex, DType::f32, {3, 64});
    round_rows(ex, ex.to_device(x), q, y);
    const Tensor found = ex.to_host(y);
    for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(found.as<float>()[i], 0.f);
    EXPECT_TRUE(std::isnan(found.as<float>()[64 + 3]));
    EXPECT_FALSE(std::isfinite(found.as<float>()[2 * 64 + 40]));
  }
}

TEST(QuantizeRows, CudaGivesTheFp4ValuesOfTheCpu) {
  FEWBIT_NEEDS_GPU();
  Exec gpu = Exec::cuda(0), host = Exec::cpu();
  for (const DType dtype : kComputeTypes)
    for (const RowQuant& q : kFp4Quants) {
      const Tensor x = random_normal(dtype, {37, 1040}, 4), a = poisoned(gpu, dtype, {37, 1040}),
                   b = poisoned(host, dtype, {37, 1040});
      round_rows(gpu, gpu.to_device(x), q, a);
      round_rows(host, x, q, b);
      EXPECT_EQ(first_difference(gpu.to_host(a), b), "");
    }
}

FEWBIT_DEVICE_TEST(QuantizeRows, RoundedGemmIsTheProductOfTheRoundedRows) {
  for (const DType dtype : kComputeTypes) {
    const Tensor x = random_normal(dtype, {9, 64}, 1), w = random_normal(dtype, {45, 64}, 2),
                 bias = random_normal(dtype, {45}, 3);
    const Tensor dx = ex.to_device(x), dw = ex.to_device(w), db = ex.to_device(bias);
    const Tensor rounded = poisoned(ex, dtype, {9, 64}), y = poisoned(ex, dtype, {9, 45}),
                 truth = poisoned(ex, dtype, {9, 45});
    round_rows(ex, dx, kQuants[1], rounded);
    gemm(ex, rounded, dw, db, truth);
    rounded_gemm(ex, dx, kQuants[1], dw, db, y);
    EXPECT_EQ(first_difference(ex.to_host(y), ex.to_host(truth)), "");
  }
}

FEWBIT_DEVICE_TEST(QuantizeRows, RoundedGemmWithAnF32WeightRoundsOnce) {
  const Tensor x = random_normal(DType::bf16, {9, 64}, 1), w = random_normal(DType::f32, {45, 64}, 2);
  const Tensor bias = random_normal(DType::f32, {45}, 3);
  const Tensor dx = ex.to_device(x), dw = ex.to_device(w), db = ex.to_device(bias);
  const Tensor rounded = poisoned(ex, DType::f32, {9, 64}), truth = poisoned(ex, DType::f32, {9, 45});
  const Tensor y = poisoned(ex, DType::bf16, {9, 45});
  round_rows(ex, dx, kQuants[0], rounded);
  gemm(ex, rounded, dw, db, truth);
  rounded_gemm(ex, dx, kQuants[0], dw, db, y);
  const Tensor sums = ex.to_host(truth), found = ex.to_host(y);
  for (int64_t i = 0; i < sums.numel(); ++i) EXPECT_EQ(found.as<bf16>()[i].bits, bf16(sums.as<float>()[i]).bits) << i;
}

TEST(QuantizeRows, CudaGivesTheBitsOfTheCpu) {
  FEWBIT_NEEDS_GPU();
  Exec gpu = Exec::cuda(0), host = Exec::cpu();
  std::vector<RowQuant> quants = {std::begin(kQuants), std::end(kQuants)};
  quants.push_back(kUnrounded);
  for (const DType dtype : kComputeTypes)
    for (const RowQuant& q : quants)
      for (const int64_t in :
           {97, 4104, 14336, 40960}) {  // value by value; in eights, in registers; more than registers hold
        const Tensor x = random_normal(dtype, {5, in}, 4);
        const auto codes_of = [&](Exec& ex, Tensor& scales) {
          const Tensor codes = poisoned(ex, q.codes, {5, in});
          const Tensor s = poisoned(ex, DType::f32, {5});
          quantize_rows(ex, ex.to_device(x), q, codes, s);
          scales = ex.to_host(s);
          return ex.to_host(codes);
        };
        Tensor a, b;
        EXPECT_EQ(first_difference(codes_of(gpu, a), codes_of(host, b)), "");
        EXPECT_EQ(first_difference(a, b), "");
      }
}

TEST(QuantizeRows, CudaGivesTheInt4ValuesOfTheCpu) {
  FEWBIT_NEEDS_GPU();
  Exec gpu = Exec::cuda(0), host = Exec::cpu();
  for (const DType dtype : kComputeTypes)
    for (const uint8_t reach : {uint8_t{100}, uint8_t{80}, uint8_t{35}})
      for (const int64_t turn : {0, 128, 1024}) {
        const RowQuant q{.codes = DType::i8, .reach = reach, .bits = 4, .turn = turn};
        const Tensor x = random_normal(dtype, {7, 3072}, 6);
        const auto values = [&](Exec& ex) {
          const Tensor y = poisoned(ex, dtype, {7, 3072});
          round_rows(ex, ex.to_device(x), q, y);
          return ex.to_host(y);
        };
        EXPECT_EQ(first_difference(values(gpu), values(host)), "") << static_cast<int>(reach) << " " << turn;
      }
}

}  // namespace
}  // namespace fewbit::test

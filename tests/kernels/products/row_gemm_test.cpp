// Products with the CPU's own layout of integer weights against the dequantized product.
#include "kernels/products/row_gemm.h"

#include "src/core/quantized_linear.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct Case {
  int bits;
  int64_t out, in, group;
  bool zeros, scattered;  // zeros: one for each group; scattered: columns belong to groups by a table
};

struct Packed {
  Tensor codes, scales, zeros, group_of, values;  // values: f32 [out, in], what the layout stands for
};

Packed pack(const Case& c) {
  Packed p;
  Rng rng(static_cast<uint64_t>(c.bits * 1000 + c.in), "row_gemm");
  const int64_t groups = (c.in + c.group - 1) / c.group, bytes = c.bits <= 4 ? (c.in + 1) / 2 : c.in;
  p.codes = Tensor::host_zeros(DType::u8, {c.out, bytes});
  p.scales = Tensor::host(DType::f32, {c.out, groups});
  for (int64_t i = 0; i < p.scales.numel(); ++i) p.scales.as<float>()[i] = static_cast<float>(0.01 + rng.uniform());
  if (c.zeros) {
    p.zeros = Tensor::host(DType::u8, {c.out, groups});
    for (int64_t i = 0; i < p.zeros.numel(); ++i)
      p.zeros.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(uint64_t{1} << c.bits));
  }
  if (c.scattered) {
    p.group_of = Tensor::host(DType::i32, {c.in});
    for (int64_t i = 0; i < c.in; ++i) p.group_of.as<int32_t>()[i] = static_cast<int32_t>((i * 7) % groups);
  }
  p.values = Tensor::host(DType::f32, {c.out, c.in});
  for (int64_t o = 0; o < c.out; ++o)
    for (int64_t i = 0; i < c.in; ++i) {
      const auto code = static_cast<uint8_t>(rng.below(uint64_t{1} << c.bits));
      if (c.bits <= 4)
        p.codes.as<uint8_t>()[o * bytes + i / 2] |= static_cast<uint8_t>(code << (i % 2 * 4));
      else
        p.codes.as<uint8_t>()[o * bytes + i] = code;
      const int64_t g = c.scattered ? p.group_of.as<int32_t>()[i] : i / c.group;
      const int zero = c.zeros ? p.zeros.as<uint8_t>()[o * groups + g] : 1 << (c.bits - 1);
      p.values.as<float>()[o * c.in + i] = static_cast<float>(code - zero) * p.scales.as<float>()[o * groups + g];
    }
  return p;
}

void compare(Exec& ex, const Case& c, const Packed& p, int64_t rows, DType dtype) {
  const Tensor x = random_normal(dtype, {rows, c.in}, 1), bias = random_normal(dtype, {c.out}, 2);
  const Tensor y = poisoned(ex, dtype, {rows, c.out});
  const RowPackedView w{.codes = p.codes,
                        .scales = p.scales,
                        .zeros = p.zeros,
                        .group_of = p.group_of,
                        .bits = c.bits,
                        .in = c.in,
                        .group = c.group};
  cpu::row_gemm(ex, x, w, bias, y);
  const std::vector<double> a = doubles(x), b = doubles(p.values), d = doubles(bias);
  std::vector<double> expected;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < c.out; ++o) {
      double sum = d[static_cast<size_t>(o)];
      for (int64_t i = 0; i < c.in; ++i)
        sum += a[static_cast<size_t>(r * c.in + i)] * b[static_cast<size_t>(o * c.in + i)];
      expected.push_back(sum);
    }
  EXPECT_LE(error_of(ex, y, expected), product_tolerance(dtype))
      << c.bits << " bits [" << c.out << ", " << c.in << "] group " << c.group << " rows " << rows
      << (c.zeros ? " zeros" : "") << (c.scattered ? " scattered" : "");
}

TEST(RowGemm, EveryLayoutEqualsTheDequantizedProduct) {
  Exec ex = Exec::cpu();
  for (const int bits : {2, 3, 4, 5, 8})
    for (const bool zeros : {false, true})
      for (const bool scattered : {false, true})
        for (const Case& c : {Case{bits, 33, 256, 128, zeros, scattered}, Case{bits, 6, 384, 384, zeros, scattered},
                              Case{bits, 45, 97, 32, zeros, scattered}, Case{bits, 9, 320, 64, zeros, scattered},
                              Case{bits, 7, 31, 31, zeros, scattered}, Case{bits, 5, 33, 11, zeros, scattered},
                              Case{bits, 1, 1, 1, zeros, scattered}}) {
          const Packed p = pack(c);
          for (const int64_t rows : {1, 3, 8, 9, 33})
            for (const DType dtype : kComputeTypes) compare(ex, c, p, rows, dtype);
        }
}

}  // namespace
}  // namespace fewbit::test

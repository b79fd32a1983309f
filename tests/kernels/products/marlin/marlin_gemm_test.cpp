// The Marlin product on both devices, against products of the dequantized weight in double.
#include "kernels/products/marlin/marlin_gemm.h"

#include "formats/packing.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Random codes, scales (f16) and, where asymmetric, zeros.
QuantizedLinear random_linear(const QuantSpec& spec, int64_t out, int64_t in, uint64_t seed) {
  QuantizedLinear q;
  q.spec = spec;
  Rng rng(seed, "codes");
  q.codes = Tensor::host(DType::u8, {out, in});
  for (int64_t i = 0; i < out * in; ++i)
    q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(uint64_t{1} << spec.bits));
  q.scales = Tensor::host(DType::f32, {out, spec.groups(in)});
  for (int64_t i = 0; i < q.scales.numel(); ++i)
    q.scales.as<float>()[i] =
        round_to_f16(static_cast<float>(0.001 + 0.01 * rng.uniform()) * (i % 5 == 0 ? -1.f : 1.f));
  if (!spec.symmetric) {
    q.zeros = Tensor::host(DType::u8, {out, spec.groups(in)});
    for (int64_t i = 0; i < q.zeros->numel(); ++i)
      q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(rng.below(uint64_t{1} << spec.bits));
  }
  return q;
}

struct OnDevice {
  Tensor b, s, z;
  MarlinView view(const QuantizedLinear& q) const {
    return {.b = b, .s = s, .z = z, .bits = q.spec.bits, .out = q.out(), .in = q.in()};
  }
};
OnDevice upload(Exec& ex, const QuantizedLinear& q) {
  OnDevice d;
  for (const NamedTensor& t : packing_marlin.pack("w", q).tensors) {
    if (t.name == "w.B") d.b = ex.to_device(t.tensor);
    if (t.name == "w.s") d.s = ex.to_device(t.tensor);
    if (t.name == "w.z") d.z = ex.to_device(t.tensor);
  }
  return d;
}

std::vector<double> product(const Tensor& x, const Tensor& w, const Tensor& bias) {
  const std::vector<double> a = doubles(x), b = doubles(w), c = doubles(bias);
  std::vector<double> y;
  const int64_t in = x.cols();
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t o = 0; o < w.rows(); ++o) {
      double sum = c[static_cast<size_t>(o)];
      for (int64_t i = 0; i < in; ++i) sum += a[static_cast<size_t>(r * in + i)] * b[static_cast<size_t>(o * in + i)];
      y.push_back(sum);
    }
  return y;
}

std::vector<QuantizedLinear> linears() {
  std::vector<QuantizedLinear> out;
  for (const int bits : {4, 8})
    for (const bool symmetric : {true, false}) {
      for (const int64_t group : {32, 64, 128, -1})
        out.push_back(random_linear({.bits = bits, .group = group, .symmetric = symmetric}, 192, 256, 5));
      out.push_back(random_linear({.bits = bits, .group = -1, .symmetric = symmetric}, 64, 48, 6));
    }
  return out;
}

FEWBIT_DEVICE_TEST(MarlinGemm, EveryRowCountEqualsTheDequantizedProduct) {
  std::vector<int64_t> row_counts = {33, 64, 65, 100, 129};
  for (int64_t r = 1; r <= 17; ++r) row_counts.push_back(r);
  for (const QuantizedLinear& q : linears()) {
    const Tensor w = dequantize_reference(q), bias = random_normal(DType::bf16, {q.out()}, 3, 0.1f);
    const OnDevice d = upload(ex, q);
    const Tensor db = ex.to_device(bias);
    for (const int64_t rows : row_counts) {
      const Tensor x = random_normal(DType::bf16, {rows, q.in()}, static_cast<uint64_t>(rows));
      const std::vector<double> expected = product(x, w, bias);
      for (const DType y_dtype : {DType::bf16, DType::f32}) {
        const Tensor y = poisoned(ex, y_dtype, {rows, q.out()});
        marlin_gemm(ex, ex.to_device(x), d.view(q), db, y);
        EXPECT_LE(error_of(ex, y, expected), tol::kBf16Op)
            << q.spec.str() << " rows " << rows << " to " << name_of(y_dtype);
      }
    }
  }
}

FEWBIT_DEVICE_TEST(MarlinGemm, TwoRunsGiveTheSameBits) {
  const QuantizedLinear q = random_linear({.bits = 4, .group = 128}, 512, 1024, 9);
  const OnDevice d = upload(ex, q);
  for (const int64_t rows : {1, 5, 16, 40, 150}) {
    const Tensor x = ex.to_device(random_normal(DType::bf16, {rows, q.in()}, 2));
    const Tensor a = poisoned(ex, DType::f32, {rows, q.out()}), b = poisoned(ex, DType::f32, {rows, q.out()});
    marlin_gemm(ex, x, d.view(q), {}, a);
    marlin_gemm(ex, x, d.view(q), {}, b);
    EXPECT_EQ(first_difference(ex.to_host(a), ex.to_host(b)), "") << rows;
  }
}

FEWBIT_DEVICE_TEST(MarlinGemm, SeveralAtOnceEqualOneAfterAnother) {
  std::vector<QuantizedLinear> q;
  for (const int64_t out : {192, 64, 320}) q.push_back(random_linear({.bits = 4, .group = 64}, out, 512, 7));
  q.push_back(random_linear({.bits = 8, .group = 64}, 128, 512, 8));  // other bits: a launch of its own
  std::vector<OnDevice> d;
  for (const QuantizedLinear& l : q) d.push_back(upload(ex, l));
  const Tensor bias = random_normal(DType::bf16, {64}, 3, 0.1f), db = ex.to_device(bias);
  for (const int64_t rows : {1, 11, 40, 70}) {
    const Tensor x = random_normal(DType::bf16, {rows, 512}, 4);
    std::vector<Tensor> y;
    std::vector<MarlinProduct> products;
    for (size_t i = 0; i < q.size(); ++i) {
      y.push_back(poisoned(ex, DType::bf16, {rows, q[i].out()}));
      products.push_back({.w = d[i].view(q[i]), .y = y[i]});
      if (i == 1) products[i].bias = db;
    }
    marlin_gemms(ex, ex.to_device(x), products);
    for (size_t i = 0; i < q.size(); ++i) {
      const Tensor none = Tensor::host_zeros(DType::bf16, {q[i].out()});
      const std::vector<double> expected = product(x, dequantize_reference(q[i]), i == 1 ? bias : none);
      EXPECT_LE(error_of(ex, y[i], expected), tol::kBf16Op) << i << " rows " << rows;
    }
  }
}

FEWBIT_DEVICE_TEST(MarlinGemm, AddsToWhatIsThere) {
  for (const int64_t in : {512, 2048}) {  // k of the longer one is split
    const QuantizedLinear q = random_linear({.bits = 4, .group = 128}, 192, in, 12);
    const OnDevice d = upload(ex, q);
    for (const int64_t rows : {1, 9, 40, 70, 200}) {
      const Tensor x = random_normal(DType::bf16, {rows, in}, 4), before = random_normal(DType::bf16, {rows, 192}, 5);
      std::vector<double> expected = product(x, dequantize_reference(q), Tensor::host_zeros(DType::bf16, {192}));
      const std::vector<double> base = doubles(before);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += base[i];
      const Tensor y = ex.to_device(before);
      const MarlinProduct added{.w = d.view(q), .y = y, .add = true};
      marlin_gemms(ex, ex.to_device(x), std::span(&added, 1));
      EXPECT_LE(error_of(ex, y, expected), tol::kBf16Op) << rows << " x " << in;
    }
  }
}

FEWBIT_DEVICE_TEST(MarlinDequantize, GivesTheReferenceValues) {
  for (const QuantizedLinear& q : linears()) {
    const Tensor expected = dequantize_reference(q), rounded = Tensor::host(DType::bf16, expected.shape());
    for (int64_t i = 0; i < expected.numel(); ++i) rounded.as<bf16>()[i] = expected.as<float>()[i];
    const OnDevice d = upload(ex, q);
    const Tensor f = poisoned(ex, DType::f32, expected.shape()), b = poisoned(ex, DType::bf16, expected.shape());
    marlin_dequantize(ex, d.view(q), f);
    marlin_dequantize(ex, d.view(q), b);
    EXPECT_EQ(first_difference(ex.to_host(f), expected), "") << q.spec.str();
    EXPECT_EQ(first_difference(ex.to_host(b), rounded), "") << q.spec.str();
  }
}

TEST(MarlinGemm, TheCpuTwinTakesF32) {
  Exec ex = Exec::cpu();
  for (const QuantizedLinear& q : linears())
    for (const int64_t rows : {3, 40}) {
      const Tensor x = random_normal(DType::f32, {rows, q.in()}, 1), bias = random_normal(DType::f32, {q.out()}, 3);
      const Tensor y = poisoned(ex, DType::f32, {rows, q.out()});
      cpu::marlin_gemm(ex, x, upload(ex, q).view(q), bias, y);
      EXPECT_LE(error_of(ex, y, product(x, dequantize_reference(q), bias)), tol::kF32Product) << q.spec.str();
    }
}

}  // namespace
}  // namespace fewbit::test

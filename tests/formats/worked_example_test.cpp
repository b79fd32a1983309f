// The worked examples of docs/formats: the hex is computed here and must stand in the page, and where a
// published vector exists it is spelled out as well.
#include <cstdio>
#include <fstream>
#include <iterator>

#include "formats/bits.h"
#include "formats/packing.h"
#include "formats/packings/gptq_words.h"
#include "src/core/half.h"
#include "src/core/marlin_layout.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

std::string page(const std::string& name) { return bytes_of_file(in_source("docs/formats/") + name); }
#define EXPECT_STANDS_IN(text, hex) EXPECT_NE((text).find(hex), std::string::npos) << "the page lacks: " << (hex)

// Words [first, last) of row `row`, "5DD50880 6EE61991".
std::string hex_words(const Tensor& t, int64_t row, int64_t first, int64_t last) {
  std::string out;
  for (int64_t i = first; i < last; ++i) {
    char word[16];
    std::snprintf(word, sizeof word, "%08X", static_cast<unsigned>(t.as<uint32_t>()[row * t.cols() + i]));
    if (!out.empty()) out += ' ';
    out += word;
  }
  return out;
}

// A linear whose code at (output n, input k) is code(n, k), with every scale 0.5.
template <class Code>
QuantizedLinear linear_of(const QuantSpec& spec, int64_t out, int64_t in, const Code& code) {
  QuantizedLinear q;
  q.spec = spec;
  q.codes = Tensor::host(DType::u8, {out, in});
  for (int64_t n = 0; n < out; ++n)
    for (int64_t k = 0; k < in; ++k)
      q.codes.as<uint8_t>()[n * in + k] = static_cast<uint8_t>(code(n, k) & spec.max_code());
  q.scales = Tensor::host(DType::f32, {out, spec.groups(in)});
  std::fill_n(q.scales.as<float>(), q.scales.numel(), 0.5f);
  return q;
}

template <class Zero>
void set_zeros(QuantizedLinear& q, const Zero& zero) {
  q.zeros = Tensor::host(DType::u8, q.scales.shape());
  for (int64_t i = 0; i < q.zeros->numel(); ++i) q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(zero(i / q.groups()));
}

TEST(WorkedExample, MarlinCodes) {
  const std::string doc = page("marlin.md");
  const auto q4 = linear_of({.group = -1}, 64, 16, [](int64_t n, int64_t k) { return 5 * k + 3 * n + n / 16; });
  const Tensor b4 = std::move(packing_marlin.pack("x", q4).tensors[0].tensor);
  EXPECT_EQ(hex_words(b4, 0, 0, 6), "5DD50880 6EE61991 7FF72AA2 80083BB3 F77FA22A 0880B33B");
  EXPECT_EQ(hex_words(b4, 0, 64, 65), "1991C44C");
  EXPECT_EQ(hex_words(b4, 0, 127, 128), "B33B6EE6");
  EXPECT_STANDS_IN(doc, hex_words(b4, 0, 0, 6));
  const auto q8 = linear_of({.bits = 8, .group = -1}, 64, 16, [](int64_t n, int64_t k) { return 17 * k + 29 * n; });
  const Tensor b8 = std::move(packing_marlin.pack("x", q8).tensors[0].tensor);
  EXPECT_EQ(hex_words(b8, 0, 0, 4), "99118800 81F970E8 69E158D0 51C940B8");
  EXPECT_EQ(hex_words(b8, 0, 8, 9) + " " + hex_words(b8, 0, 255, 256), "BB33AA22 229A1189");
  EXPECT_STANDS_IN(doc, hex_words(b8, 0, 0, 4));
}

TEST(WorkedExample, MarlinZeroPoints) {
  const std::string doc = page("marlin.md");
  auto q = linear_of({.group = -1, .symmetric = false}, 64, 16, [](int64_t, int64_t) { return 0; });
  set_zeros(q, [](int64_t n) { return n % 16; });
  const Tensor z = std::move(packing_marlin.pack("x", q).tensors[2].tensor);
  EXPECT_EQ(hex_words(z, 0, 0, 2) + " " + hex_words(z, 0, 7, 8), "88880000 99991111 FFFF7777");
  EXPECT_STANDS_IN(doc, hex_words(z, 0, 0, 8));
  set_zeros(q, [](int64_t n) { return n / 8; });
  const Tensor blocks = std::move(packing_marlin.pack("x", q).tensors[2].tensor);
  for (int64_t w = 0; w < 8; ++w) EXPECT_EQ(hex_words(blocks, 0, w, w + 1), "75316420");
}

TEST(WorkedExample, MarlinScaleOrder) {
  const std::string doc = page("marlin.md");
  for (const bool grouped : {true, false}) {
    std::vector<int64_t> source(64);
    for (int64_t n = 0; n < 64; ++n) source[static_cast<size_t>(marlin::scale_column(n, grouped))] = n;
    std::string first;
    for (size_t i = 0; i < 16; ++i) {
      if (i) first += ' ';
      first += std::to_string(source[i]);
    }
    EXPECT_EQ(first,
              grouped ? "0 8 16 24 32 40 48 56 1 9 17 25 33 41 49 57" : "0 1 8 9 16 17 24 25 2 3 10 11 18 19 26 27");
    EXPECT_STANDS_IN(doc, first);
  }
}

TEST(WorkedExample, TwoOfFour) {
  const std::string doc = page("marlin.md");
  const auto q = linear_of({}, 128, 128, [](int64_t n, int64_t k) {
    const int64_t kept = k / 4 * 2 + k % 4 - 1;
    return k % 4 == 1 || k % 4 == 2 ? 9 + (5 * kept + 3 * n) % 7 : 8;
  });
  const PackedLinear p = packing_ct_marlin_24.pack("x", q);
  EXPECT_EQ(hex_words(p.tensors[0].tensor, 0, 0, 6), "ACCECEE9 DFFAFAAC 9BBDBDDF CEE9E99B DFFAFAAC 9BBDBDDF");
  EXPECT_STANDS_IN(doc, hex_words(p.tensors[0].tensor, 0, 0, 6));
  const Tensor& meta = p.tensors[2].tensor;
  for (int64_t i = 0; i < meta.numel(); ++i) EXPECT_EQ(meta.as<uint16_t>()[i], 0x9999);
  EXPECT_STANDS_IN(doc, "0x9999");
}

TEST(WorkedExample, GptqWords) {
  const std::string doc = page("gptq.md");
  auto q = linear_of({.group = -1, .symmetric = false}, 8, 8, [](int64_t n, int64_t k) { return k + 1 + 2 * n; });
  set_zeros(q, [](int64_t n) { return n + 1; });
  const PackedLinear v2 = packing_gptq_v2.pack("x", q);
  const PackedLinear v1 = gptq_words::pack("x", q, gptq_words::ZeroOffset::one);
  EXPECT_EQ(hex_words(v2.tensors[0].tensor, 0, 0, 2), "87654321 A9876543");
  EXPECT_EQ(hex_words(v2.tensors[1].tensor, 0, 0, 1), "87654321");
  EXPECT_EQ(hex_words(v1.tensors[1].tensor, 0, 0, 1), "76543210");
  EXPECT_STANDS_IN(doc, hex_words(v2.tensors[0].tensor, 0, 0, 8));
  EXPECT_STANDS_IN(doc, "v2: `87654321`, v1: `76543210`");
  EXPECT_EQ(first_difference(v1.tensors[0].tensor, v2.tensors[0].tensor), "");
}

TEST(WorkedExample, GptqThreeBits) {
  const std::string doc = page("gptq.md");
  const auto q = linear_of({.bits = 3, .group = -1}, 1, 32, [](int64_t, int64_t k) { return k % 8; });
  const Tensor words = std::move(packing_gptq_v2.pack("x", q).tensors[0].tensor);
  EXPECT_EQ(words.shape(), (Shape{3, 1}));
  const std::string hex = hex_words(words, 0, 0, 1) + " " + hex_words(words, 1, 0, 1) + " " + hex_words(words, 2, 0, 1);
  EXPECT_EQ(hex, "88FAC688 C688FAC6 FAC688FA");
  EXPECT_STANDS_IN(doc, hex);
}

TEST(WorkedExample, GptqSymmetricZeros) {
  const std::pair<int, std::pair<const char*, const char*>> expected[] = {
      {2, {"55555555", "AAAAAAAA"}}, {4, {"77777777", "88888888"}}, {8, {"7F7F7F7F", "80808080"}}};
  for (const auto& [bits, words] : expected) {
    const auto q = linear_of({.bits = bits, .group = -1}, 32, 32, [](int64_t, int64_t) { return 0; });
    EXPECT_EQ(hex_words(packing_gptq.pack("x", q).tensors[1].tensor, 0, 0, 1), words.first);
    EXPECT_EQ(hex_words(packing_gptq_v2.pack("x", q).tensors[1].tensor, 0, 0, 1), words.second);
  }
}

TEST(WorkedExample, AwqWords) {
  const std::string doc = page("awq.md");
  auto q = linear_of({.group = -1, .symmetric = false}, 8, 2, [](int64_t n, int64_t k) { return n + 8 * k; });
  set_zeros(q, [](int64_t n) { return n + 1; });
  const PackedLinear packed = packing_awq.pack("x", q);
  const std::string codes =
      hex_words(packed.tensors[0].tensor, 0, 0, 1) + " " + hex_words(packed.tensors[0].tensor, 1, 0, 1);
  EXPECT_EQ(codes, "75316420 FDB9ECA8");
  EXPECT_EQ(hex_words(packed.tensors[1].tensor, 0, 0, 1), "86427531");
  EXPECT_STANDS_IN(doc, codes);
  EXPECT_STANDS_IN(doc, "`86427531`");
  const auto sym = linear_of({.group = -1}, 8, 2, [](int64_t, int64_t) { return 0; });
  EXPECT_EQ(hex_words(packing_awq.pack("x", sym).tensors[1].tensor, 0, 0, 1), "88888888");
}

TEST(WorkedExample, CompressedTensorsPacked) {
  const std::string doc = page("compressed-tensors.md");
  auto q = linear_of({.group = -1, .symmetric = false}, 8, 8, [](int64_t n, int64_t k) { return k + n; });
  set_zeros(q, [](int64_t n) { return n + 1; });
  PackedLinear packed = packing_ct_pack.pack("x", q);
  std::string rows;
  for (int64_t n = 0; n < 8; ++n) {
    if (n) rows += ' ';
    rows += hex_words(packed.tensors[0].tensor, n, 0, 1);
  }
  EXPECT_EQ(rows.substr(0, 17), "76543210 87654321");
  EXPECT_STANDS_IN(doc, rows);
  EXPECT_EQ(packed.tensors[2].tensor.as<int64_t>()[0], 8);
  EXPECT_EQ(packed.tensors[3].name, "x.weight_zero_point");
  EXPECT_EQ(hex_words(packed.tensors[3].tensor, 0, 0, 1), "87654321");
  EXPECT_STANDS_IN(doc, "I32 [1, 1]: `87654321`");
  EXPECT_EQ(dequantize_reference(q).as<float>()[8 + 2], 0.5f);
  const auto three = linear_of({.bits = 3, .group = -1}, 1, 32, [](int64_t, int64_t k) { return k % 8; });
  const Tensor words = std::move(packing_ct_pack.pack("x", three).tensors[0].tensor);
  EXPECT_EQ(hex_words(words, 0, 0, words.cols()), "08FAC688 1A23EB1A 2C688FAC 0000003E");
  EXPECT_STANDS_IN(doc, hex_words(words, 0, 0, 4));
}

TEST(WorkedExample, CompressedTensorsBytes) {
  const std::string doc = page("compressed-tensors.md");
  const auto hex_bytes = [](const Tensor& t) {
    std::string out;
    for (int64_t i = 0; i < t.numel(); ++i) {
      char byte[8];
      std::snprintf(byte, sizeof byte, "%02X", static_cast<const uint8_t*>(t.view().data)[i]);
      if (i) out += ' ';
      out += byte;
    }
    return out;
  };
  const QuantSpec int8{.bits = 8, .group = -1, .activations = ActQuant::token};
  const auto q = linear_of(int8, 1, 4, [](int64_t, int64_t k) { return 126 + k; });
  const std::string ints = hex_bytes(packing_ct_int.pack("x", q).tensors[0].tensor);
  EXPECT_EQ(ints, "FE FF 00 01");
  EXPECT_STANDS_IN(doc, "`" + ints + "`");
  const float values[] = {1.f, -1.f, 448.f, 0.5f};
  auto f = linear_of({.grid = Grid::f8_e4m3, .bits = 8, .group = -1}, 1, 4,
                     [&](int64_t, int64_t k) { return f32_to_f8_e4m3_saturated(values[k]); });
  f.scales.as<float>()[0] = 1.f;
  const std::string floats = hex_bytes(packing_ct_float.pack("x", f).tensors[0].tensor);
  EXPECT_EQ(floats, "38 B8 7E 30");
  EXPECT_STANDS_IN(doc, "`" + floats + "`");
  EXPECT_EQ(dequantize_reference(f).as<float>()[2], 448.f);
}

TEST(WorkedExample, FourBitFloats) {
  const std::string doc = page("fp4.md");
  QuantizedLinear q;
  q.spec = kNvfp4;
  q.codes = Tensor::host_zeros(DType::u8, {1, 16});
  const float values[] = {0.5f, -6.f, 1.f, 1.5f};
  for (int64_t k = 0; k < 4; ++k) q.codes.as<uint8_t>()[k] = f32_to_f4_e2m1(values[k]);
  q.codes.as<uint8_t>()[4] = 7;
  q.scales = Tensor::host(DType::f32, {1, 1});
  *q.scales.as<float>() = 448.f;
  q.global_scale = 0.25;
  const PackedLinear ct = packing_ct_nvfp4.pack("x", q), modelopt = packing_modelopt_nvfp4.pack("x", q);
  for (const PackedLinear* p : {&ct, &modelopt}) {
    EXPECT_EQ(p->tensors[0].tensor.as<uint8_t>()[0], 0xF1);
    EXPECT_EQ(p->tensors[0].tensor.as<uint8_t>()[1], 0x32);
    EXPECT_EQ(*static_cast<const uint8_t*>(p->tensors[1].tensor.view().data), 0x7E);
  }
  EXPECT_STANDS_IN(doc, "`F1 32`");
  EXPECT_EQ(*ct.tensors[2].tensor.as<float>(), 4.f);
  EXPECT_EQ(ct.tensors[2].tensor.shape(), Shape{1});
  EXPECT_EQ(*modelopt.tensors[2].tensor.as<float>(), 0.25f);
  EXPECT_EQ(modelopt.tensors[2].tensor.shape(), Shape{});
  EXPECT_EQ(dequantize_reference(q).as<float>()[4], 672.f);
  EXPECT_STANDS_IN(doc, "672");
}

}  // namespace
}  // namespace fewbit::test

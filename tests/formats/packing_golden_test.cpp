// Packings: the bytes of other people's packers, in both directions.
#include "formats/packing.h"
#include "formats/packings/gptq_words.h"
#include "src/core/half.h"
#include "tests/formats/packing_fixture.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

// The inputs that the foreign packer was given.
QuantizedLinear golden_input(const Golden& golden, const std::string& prefix) {
  QuantizedLinear q;
  q.spec = golden_spec(prefix);
  q.codes = golden.get(prefix + "codes");
  q.scales = to_f32(golden.get(prefix + "in_scales"));
  if (!q.spec.symmetric) q.zeros = golden.get(prefix + "zeros");
  if (prefix.find("actorder") != std::string::npos) q.group_of = golden.get(prefix + "g_idx");
  return q;
}

void expect_golden_bytes(const Golden& golden, const PackedLinear& packed) {
  for (const NamedTensor& t : packed.tensors) EXPECT_EQ(first_difference(t.tensor, golden.get(t.name)), "") << t.name;
}

bool has_zero(const QuantizedLinear& q) {
  if (!q.zeros) return false;
  const uint8_t* z = q.zeros->as<uint8_t>();
  return std::find(z, z + q.zeros->numel(), 0) != z + q.zeros->numel();
}

TEST(PackingGolden, Gptq) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  const auto prefixes = golden_prefixes(golden, "gptq.");
  EXPECT_EQ(prefixes.size(), 16u);
  int encoded = 0, asymmetric = 0;
  for (const std::string& prefix : prefixes) {
    const std::string linear = prefix.substr(0, prefix.size() - 1);
    const QuantizedLinear q = golden_input(golden, prefix);
    std::map<std::string, Tensor> kept;
    const auto source = golden_source(golden, kept);
    EXPECT_EQ(difference(packing_gptq.unpack(linear, q.spec, q.out(), q.in(), source), q), "") << prefix;
    if (has_zero(q)) continue;
    expect_golden_bytes(golden, gptq_words::pack(linear, q, gptq_words::ZeroOffset::one));
    ++encoded;
    asymmetric += !q.spec.symmetric;
    if (q.spec.symmetric) expect_golden_bytes(golden, packing_gptq.pack(linear, q));
  }
  EXPECT_EQ(encoded, 16);
  EXPECT_EQ(asymmetric, 8);
}

TEST(PackingGolden, Awq) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  const auto prefixes = golden_prefixes(golden, "awq.");
  EXPECT_EQ(prefixes.size(), 2u);
  for (const std::string& prefix : prefixes) {
    const std::string linear = prefix.substr(0, prefix.size() - 1);
    const QuantizedLinear q = golden_input(golden, prefix);
    std::map<std::string, Tensor> kept;
    expect_golden_bytes(golden, packing_awq.pack(linear, q));
    const QuantizedLinear read = packing_awq.unpack(linear, q.spec, q.out(), q.in(), golden_source(golden, kept));
    EXPECT_EQ(difference(read, q), "") << prefix;
  }
}

TEST(PackingGolden, Marlin) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  const auto prefixes = golden_prefixes(golden, "marlin.");
  EXPECT_EQ(prefixes.size(), 2u);
  for (const std::string& prefix : prefixes) {
    const std::string linear = prefix.substr(0, prefix.size() - 1);
    const QuantizedLinear q = golden_input(golden, prefix);
    std::map<std::string, Tensor> kept;
    expect_golden_bytes(golden, packing_marlin.pack(linear, q));
    const QuantizedLinear read = packing_marlin.unpack(linear, q.spec, q.out(), q.in(), golden_source(golden, kept));
    EXPECT_EQ(difference(read, q), "") << prefix;
  }
}

TEST(PackingGolden, CompressedTensorsPackQuantized) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  const auto prefixes = golden_prefixes(golden, "compressed-tensors.pack.");
  EXPECT_EQ(prefixes.size(), 9u);
  for (const std::string& prefix : prefixes) {
    const std::string linear = prefix.substr(0, prefix.size() - 1);
    QuantizedLinear q;
    q.spec = golden_spec(prefix);
    q.codes = golden.get(prefix + "codes");
    q.scales = to_f32(golden.get(prefix + "weight_scale"));
    if (!q.spec.symmetric) q.zeros = golden.get(prefix + "zeros");
    std::map<std::string, Tensor> kept;
    const auto source = golden_source(golden, kept);
    EXPECT_EQ(difference(packing_ct_pack.unpack(linear, q.spec, q.out(), q.in(), source), q), "") << prefix;
    const PackedLinear packed = packing_ct_pack.pack(linear, q);
    EXPECT_EQ(packed.tensors.size(), q.spec.symmetric ? 3u : 4u);
    expect_golden_bytes(golden, packed);
  }
}

// Codes are those of PyTorch's cast of weight / scale; the file holds them unchanged.
TEST(PackingGolden, CompressedTensorsFp8PerChannel) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  const Tensor weight = golden.get("fp8.per_channel.weight"), fp8 = golden.get("fp8.per_channel.weight_fp8");
  QuantizedLinear q;
  q.spec = {.grid = Grid::f8_e4m3, .bits = 8, .group = -1, .scale_dtype = DType::f32, .activations = ActQuant::token};
  q.scales = golden.get("fp8.per_channel.weight_scale");
  q.codes = Tensor::host(DType::u8, weight.shape());
  for (int64_t i = 0; i < weight.numel(); ++i)
    q.codes.as<uint8_t>()[i] =
        f32_to_f8_e4m3_saturated(weight.as<float>()[i] / q.scales.as<float>()[i / weight.cols()]);
  const PackedLinear packed = packing_ct_float.pack("a", q);
  ASSERT_EQ(packed.tensors.size(), 2u);
  EXPECT_EQ(packed.tensors[0].tensor.dtype(), DType::f8_e4m3);
  const ConstTensorView stored = packed.tensors[0].tensor;
  EXPECT_EQ(first_difference({stored.data, DType::u8, stored.shape, {}}, fp8), "");
  EXPECT_EQ(first_difference(packed.tensors[1].tensor, q.scales), "");
  const TensorSource source = [&](const std::string& name) -> ConstTensorView {
    if (name == "a.weight") return {fp8.view().data, DType::f8_e4m3, fp8.shape(), {}};
    return name == "a.weight_scale" ? ConstTensorView(q.scales) : ConstTensorView{};
  };
  EXPECT_EQ(difference(packing_ct_float.unpack("a", q.spec, q.out(), q.in(), source), q), "");
}

// 2:4: what the library packed, and the same bytes under AutoGPTQ's names.
TEST(PackingGolden, Marlin24) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  const std::string family = "compressed-tensors.marlin24.", prefixes[] = {"w4.g-1", "w4.g128", "w8.g128"};
  for (const std::string& suffix : prefixes) {
    const std::string linear = family + suffix;
    const Tensor weight = golden.get(linear + ".int_weight");
    QuantizedLinear q;
    q.spec = golden_spec(linear);
    q.codes = Tensor::host(DType::u8, weight.shape());
    for (int64_t i = 0; i < weight.numel(); ++i)
      q.codes.as<uint8_t>()[i] = static_cast<uint8_t>(weight.as<int8_t>()[i] + q.spec.mid_code());
    q.scales = to_f32(golden.get(linear + ".in_scales"));
    std::map<std::string, Tensor> kept;
    const auto source = golden_source(golden, kept);
    EXPECT_EQ(difference(packing_ct_marlin_24.unpack(linear, q.spec, q.out(), q.in(), source), q), "") << linear;
    const PackedLinear packed = packing_ct_marlin_24.pack(linear, q);
    ASSERT_EQ(packed.tensors.size(), 3u);
    for (const NamedTensor& t : packed.tensors) {  // `meta` is [N, K/16] there, the same bytes
      const Tensor theirs = golden.get(t.name);
      EXPECT_EQ(t.tensor.dtype(), theirs.dtype()) << t.name;
      EXPECT_EQ(first_difference(t.tensor.view().reshaped(theirs.shape()), theirs), "") << t.name;
    }
    const std::map<std::string, std::string> ours = {
        {linear + ".B_24", "weight_packed"}, {linear + ".B_meta", "meta"}, {linear + ".s", "scale_packed"}};
    const TensorSource renamed = [&](const std::string& name) {
      return ours.count(name) ? source(linear + "." + ours.at(name)) : ConstTensorView{};
    };
    EXPECT_EQ(difference(packing_marlin_24.unpack(linear, q.spec, q.out(), q.in(), renamed), q), "") << linear;
    EXPECT_THROW(packing_ct_marlin_24.unpack(linear, {.bits = 3}, q.out(), q.in(), source), Error);
    EXPECT_NE(packing_marlin_24.refuses(q.spec, q.out(), q.in(), false).find("only read"), std::string::npos);
  }
}

TEST(PackingGolden, CompressedTensorsNvfp4) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  const Tensor values = golden.get("compressed-tensors.nvfp4.pack.values");
  const Tensor bytes = golden.get("compressed-tensors.nvfp4.pack.weight_packed");
  QuantizedLinear q;
  q.spec = kNvfp4;
  q.codes = Tensor::host(DType::u8, values.shape());
  for (int64_t i = 0; i < values.numel(); ++i) q.codes.as<uint8_t>()[i] = f32_to_f4_e2m1(values.as<float>()[i]);
  q.scales = Tensor::host(DType::f32, {values.rows(), values.cols() / 16});
  std::fill_n(q.scales.as<float>(), q.scales.numel(), 1.f);
  q.global_scale = 1;
  for (const Packing* p : {&packing_ct_nvfp4, &packing_modelopt_nvfp4}) {
    PackedLinear packed = p->pack("a", q);
    EXPECT_EQ(first_difference(packed.tensors[0].tensor, bytes), "") << p->name;
    Stored stored(packed);
    stored.views()[packed.tensors[0].name] = bytes;
    const QuantizedLinear read = p->unpack("a", q.spec, values.rows(), values.cols(), stored.source());
    EXPECT_EQ(first_difference(dequantize_reference(read), values), "") << p->name;
  }
}

}  // namespace
}  // namespace fewbit::test

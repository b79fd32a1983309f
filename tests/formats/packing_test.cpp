// Packings: the identity over the whole registry, and what broken or unusual tensors are told.
#include <algorithm>
#include <map>

#include "formats/bits.h"
#include "formats/gguf/block_type.h"
#include "formats/packing.h"
#include "src/core/half.h"
#include "src/core/rng.h"
#include "tests/formats/sparse_fixture.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

std::string shape_name(int64_t out, int64_t in) { return std::to_string(out) + "x" + std::to_string(in); }

// Checks one packing on one linear; returns whether it was accepted.
bool round_trip(const Packing& p, const QuantSpec& spec, int64_t out, int64_t in, Order order) {
  const bool act_order = order == Order::shuffled;
  const std::string what = std::string(p.name) + " " + spec.str() + " " + shape_name(out, in);
  if (!p.refuses(spec, out, in, act_order).empty()) return false;
  const QuantizedLinear q = random_linear_for(p, spec, out, in, order);
  const PackedLinear packed = p.pack("a.b", q);
  const std::vector<TensorPlan> plan = p.tensors(spec, out, in, act_order);
  EXPECT_EQ(packed.tensors.size(), plan.size()) << what;
  int64_t bytes = 0;
  for (size_t i = 0; i < std::min(plan.size(), packed.tensors.size()); ++i) {
    const NamedTensor& t = packed.tensors[i];
    EXPECT_EQ(t.name, "a.b." + plan[i].suffix) << what;
    EXPECT_EQ(t.tensor.dtype(), plan[i].dtype) << what;
    EXPECT_EQ(t.tensor.shape(), plan[i].shape) << what << " " << t.name;
    bytes += t.tensor.bytes();
  }
  EXPECT_EQ(packed_bytes(p, spec, out, in, act_order), bytes) << what;
  const Stored stored(packed);
  EXPECT_EQ(difference(p.unpack("a.b", spec, out, in, stored.source()), q), "") << what;
  return true;
}

TEST(Packing, EverySpecIsRefusedWithAReasonOrComesBackBitwise) {
  const std::pair<int64_t, int64_t> shapes[] = {{33, 40}, {64, 48},   {256, 192}, {96, 64}, {64, 16}, {128, 128},
                                                {1, 1},   {64, 1000}, {192, 272}, {40, 96}, {8, 32},  {72, 160}};
  std::map<std::string_view, int> accepted;
  int tried = 0;
  for (const Packing* p : packings())
    for (auto [out, in] : shapes)
      for (const QuantSpec& spec : all_specs(out))
        for (Order order : {Order::consecutive, Order::shuffled}) {
          if (order == Order::shuffled && spec.groups(in) == 1) continue;
          const bool plain = spec.grid == Grid::integer && spec.activations == ActQuant::none &&
                             spec.scale_dtype == DType::f16 && spec.out_group == 1;
          tried += p == &packing_gptq_v2 && plain;
          accepted[p->name] += round_trip(*p, spec, out, in, order);
        }
  for (const Packing* p : packings()) {
    if (p->pack)
      EXPECT_GE(accepted[p->name], 3) << p->name;
    else
      EXPECT_EQ(accepted[p->name], 0) << p->name << " is only read";
  }
  EXPECT_EQ(accepted["gptq_v2"], tried);  // the general layout refuses no integer grid
}

TEST(Packing, ReasonsCarryTheNumbers) {
  const auto why = [](const Packing& p, QuantSpec spec, int64_t out, int64_t in, bool act_order) {
    return p.refuses(spec, out, in, act_order);
  };
  EXPECT_NE(why(packing_marlin, {}, 33, 128, false).find("N = 33"), std::string::npos);
  EXPECT_NE(why(packing_marlin, {}, 64, 192, false).find("group 128"), std::string::npos);
  EXPECT_NE(why(packing_marlin, {.bits = 3}, 64, 128, false).find("not 3"), std::string::npos);
  EXPECT_NE(why(packing_marlin, {}, 64, 256, true).find("act-order"), std::string::npos);
  EXPECT_NE(why(packing_gptq, {.symmetric = false}, 64, 128, false).find("gptq_v2"), std::string::npos);
  EXPECT_NE(why(packing_gptq, {}, 33, 128, false).find("N = 33"), std::string::npos);
  EXPECT_NE(why(packing_awq, {}, 33, 128, false).find("N = 33"), std::string::npos);
  EXPECT_NE(why(packing_awq, {}, 64, 192, false).find("K = 192, group 128"), std::string::npos);
  EXPECT_NE(why(packing_awq, {.bits = 8}, 64, 128, false).find("not 8"), std::string::npos);
  EXPECT_NE(why(packing_awq, {}, 64, 256, true).find("act-order"), std::string::npos);
  const QuantSpec w8a8{.bits = 8, .group = -1, .activations = ActQuant::token};
  const QuantSpec fp8{.grid = Grid::f8_e4m3, .bits = 8, .group = -1};
  QuantSpec fp8_token = fp8, block = fp8, nvfp4_token = kNvfp4;
  fp8_token.activations = nvfp4_token.activations = ActQuant::token;
  block.scale_dtype = DType::f32;
  block.group = block.out_group = 128;
  EXPECT_NE(why(packing_fp8, fp8, 64, 128, false).find("weight-only FP8 goes to"), std::string::npos);
  EXPECT_NE(why(packing_fp8, fp8_token, 64, 128, false).find("f32, not f16"), std::string::npos);
  EXPECT_NE(why(packing_fp8_block, block, 64, 128, false).find("dynamically"), std::string::npos);
  block.activations = ActQuant::token;
  EXPECT_NE(why(packing_fp8, block, 256, 256, false).find("for 128 outputs and 128 inputs"), std::string::npos);
  EXPECT_EQ(why(packing_fp8_block, block, 200, 300, false), "");  // blocks may be cut short
  for (const Packing* p : {&packing_ct_nvfp4, &packing_modelopt_nvfp4}) {
    EXPECT_NE(why(*p, kNvfp4, 64, 24, false).find("K % 16 = 0, here K = 24"), std::string::npos);
    EXPECT_NE(why(*p, kMxfp4, 64, 64, false).find("nvfp4, not mxfp4"), std::string::npos);
    EXPECT_NE(why(*p, nvfp4_token, 64, 64, false).find("acts=tensor"), std::string::npos);
    EXPECT_NE(why(*p, kNvfp4, 64, 64, true).find("act-order"), std::string::npos);
  }
  EXPECT_NE(why(packing_ct_mxfp4, kMxfp4, 64, 48, false).find("K % 32 = 0"), std::string::npos);
  EXPECT_NE(why(packing_ct_pack, {}, 64, 192, false).find("K = 192, group 128"), std::string::npos);
  EXPECT_NE(why(packing_ct_pack, w8a8, 64, 192, false).find("weight-only"), std::string::npos);
  EXPECT_NE(why(packing_ct_pack, {}, 64, 128, true).find("act-order"), std::string::npos);
  EXPECT_NE(why(packing_ct_int, {.bits = 8, .group = -1}, 64, 128, false).find("pack-quantized"), std::string::npos);
  EXPECT_NE(
      why(packing_ct_int, {.bits = 8, .group = 64, .activations = ActQuant::token}, 64, 128, false).find("per 64"),
      std::string::npos);
  EXPECT_NE(why(packing_ct_float, w8a8, 64, 128, false).find("int8 gch sym"), std::string::npos);
  EXPECT_EQ(why(packing_ct_int, w8a8, 64, 128, false), "");
  EXPECT_EQ(why(packing_ct_float, fp8, 64, 128, false), "");
  for (const Packing* p : packings()) {
    EXPECT_NE(why(*p, {.bits = 9}, 64, 128, false), "") << p->name;
    EXPECT_EQ(why(*p, {.bits = 5}, 64, 128, false).empty(), p == &packing_gptq_v2) << p->name;
    EXPECT_NE(why(*p, {.group = 0}, 64, 128, false), "") << p->name;
    EXPECT_NE(why(*p, {.scale_dtype = DType::i8}, 64, 128, false), "") << p->name;
    EXPECT_NE(why(*p, {.out_group = 128}, 64, 128, false), "") << p->name;
    for (const QuantSpec& spec : {QuantSpec{}, w8a8, fp8, block, kNvfp4, kMxfp4})
      EXPECT_NE(why(*p, spec, 0, 128, false), "") << p->name;
  }
  for (const Packing* p : {&packing_marlin, &packing_gptq, &packing_gptq_v2, &packing_awq}) {
    EXPECT_NE(why(*p, {.scale_dtype = DType::bf16}, 64, 128, false), "") << p->name;
    EXPECT_NE(why(*p, fp8_token, 64, 128, false), "") << p->name;
    EXPECT_EQ(why(*p, fp8, 64, 128, false).empty(), p == &packing_marlin) << p->name;
  }
}

// A value of a scale's type that is not finite, again and again.
std::vector<uint32_t> not_finite(DType dtype) {
  const uint32_t bits = dtype == DType::f16 ? 0x7c007c00u : dtype == DType::f32 ? 0x7f800000u : 0xffffffffu;
  return std::vector<uint32_t>(4096, bits);
}

TEST(Packing, BrokenTensorsAreNamed) {
  const QuantSpec fp8{.grid = Grid::f8_e4m3, .bits = 8, .group = -1, .activations = ActQuant::tensor};
  std::vector<QuantSpec> candidates = {
      {}, {.bits = 8, .group = -1, .activations = ActQuant::tensor}, fp8, fp8, fp8, kNvfp4, kMxfp4};
  candidates[3].scale_dtype = candidates[4].scale_dtype = DType::f32;
  candidates[4].group = candidates[4].out_group = 128;
  candidates[4].activations = ActQuant::token;
  candidates[5].activations = ActQuant::tensor;
  candidates.push_back(candidates[3]);
  candidates.back().out_group = 128;
  for (const QuantSpec& gguf :
       {QuantSpec{.group = 32}, QuantSpec{.group = 32, .symmetric = false}, QuantSpec{.bits = 5, .group = 32},
        QuantSpec{.bits = 5, .group = 32, .symmetric = false}, QuantSpec{.bits = 8, .group = 32}})
    candidates.push_back(gguf);
  for (const Packing* p : packings()) {
    if (!p->pack) continue;
    const QuantSpec& spec = *std::find_if(candidates.begin(), candidates.end(),
                                          [&](const QuantSpec& s) { return p->refuses(s, 128, 256, false).empty(); });
    const QuantizedLinear q = random_linear_for(*p, spec, 128, 256, Order::consecutive);
    const PackedLinear packed = p->pack("a", q);
    const auto message =
        [&](const std::function<void(std::map<std::string, ConstTensorView>&)>& damage) -> std::string {
      Stored stored(packed);
      damage(stored.views());
      try {
        p->unpack("a", spec, 128, 256, stored.source());
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::checkpoint);
        return e.what();
      }
      return "";
    };
    for (const NamedTensor& t : packed.tensors) {
      EXPECT_NE(message([&](auto& v) { v.erase(t.name); }).find("'" + t.name + "' is missing"), std::string::npos);
      EXPECT_NE(message([&](auto& v) { v[t.name].dtype = DType::u64; }).find("found u64"), std::string::npos)
          << p->name << " " << t.name;
      EXPECT_NE(message([&](auto& v) { v[t.name].shape = {7}; }).find("[7]"), std::string::npos) << t.name;
    }
    for (const NamedTensor& t : packed.tensors) {
      const std::string suffix = t.name.substr(2);
      if (suffix != "s" && suffix.find("scale") == std::string::npos) continue;
      const std::vector<uint32_t> bad = not_finite(t.tensor.dtype());
      EXPECT_NE(message([&](auto& v) { v[t.name].data = bad.data(); }).find("finite"), std::string::npos)
          << p->name << " " << t.name;
    }
  }
}

TEST(Packing, GptqChecksGroupsAndSymmetricZeros) {
  const QuantSpec spec{};
  const PackedLinear packed = packing_gptq.pack("a", random_linear(spec, 64, 256, Order::consecutive));
  const auto read_as = [&](const Packing& p, const std::vector<int32_t>& g_idx) {
    Stored stored(packed);
    if (!g_idx.empty()) stored.views()["a.g_idx"].data = g_idx.data();
    return p.unpack("a", spec, 64, 256, stored.source());
  };
  EXPECT_THROW(read_as(packing_gptq, std::vector<int32_t>(256, 2)), Error);
  EXPECT_THROW(read_as(packing_gptq, std::vector<int32_t>(256, -1)), Error);
  EXPECT_THROW(read_as(packing_gptq_v2, {}), Error);  // v1 bytes say zero 7 to a v2 reader
  EXPECT_FALSE(read_as(packing_gptq, {}).group_of.has_value());
  EXPECT_TRUE(read_as(packing_gptq, std::vector<int32_t>(256, 1)).group_of.has_value());
}

TEST(Packing, GptqV1ReadsZerosSubtractedByWord) {
  const QuantSpec spec{.group = -1, .symmetric = false};
  QuantizedLinear q = random_linear(spec, 32, 32, Order::consecutive);  // its zeros cover 0 as well
  q.zeros->as<uint8_t>()[0] = 0;
  PackedLinear packed = packing_gptq_v2.pack("a", q);
  for (int64_t i = 0; i < packed.tensors[1].tensor.numel(); ++i)
    packed.tensors[1].tensor.as<uint32_t>()[i] -= 0x11111111u;
  EXPECT_EQ(difference(packing_gptq.unpack("a", spec, 32, 32, Stored(packed).source()), q), "");
}

TEST(Packing, CompressedTensorsReadsWordsFilledToTheLastBit) {
  const QuantSpec spec{.bits = 3, .group = 32, .symmetric = false};
  const QuantizedLinear q = random_linear(spec, 64, 96, Order::consecutive);
  const PackedLinear released = packing_ct_pack.pack("a", q);
  EXPECT_EQ(released.tensors[0].tensor.shape(), (Shape{64, 10}));
  Stored stored(released);
  Tensor codes = Tensor::host(DType::i32, {64, 9}), zeros = Tensor::host(DType::i32, {6, 3});
  for (int64_t n = 0; n < 64; ++n) bits::pack_run<3>(q.codes.as<uint8_t>() + n * 96, 96, codes.as<uint32_t>() + n * 9);
  for (int64_t g = 0; g < 3; ++g) {
    uint8_t column[64];
    uint32_t words[6];
    for (int64_t n = 0; n < 64; ++n) column[n] = q.zeros->as<uint8_t>()[n * 3 + g];
    bits::pack_run<3>(column, 64, words);
    for (int64_t r = 0; r < 6; ++r) zeros.as<uint32_t>()[r * 3 + g] = words[r];
  }
  stored.views()["a.weight_packed"] = codes;
  stored.views()["a.weight_zero_point"] = zeros;
  EXPECT_EQ(difference(packing_ct_pack.unpack("a", spec, 64, 96, stored.source()), q), "");
}

TEST(Packing, CompressedTensorsReadsOtherFormsOfSingleValuesAndUnfilledOrders) {
  const QuantSpec spec{.grid = Grid::f8_e4m3,
                       .bits = 8,
                       .group = -1,
                       .scale_dtype = DType::bf16,
                       .out_group = 64,
                       .activations = ActQuant::tensor};
  QuantizedLinear q = random_linear(spec, 64, 96, Order::consecutive);
  q.input_scale = 0.25f;
  const PackedLinear packed = packing_ct_float.pack("a", q);
  EXPECT_EQ(packed.tensors[1].tensor.shape(), (Shape{1}));
  const bf16 quarter(0.25f);
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{1, 1}}) {
    Stored stored(packed);
    stored.views()["a.weight_scale"].shape = shape;
    stored.views()["a.input_scale"] = {&quarter, DType::bf16, shape, {}};
    EXPECT_EQ(difference(packing_ct_float.unpack("a", spec, 64, 96, stored.source()), q), "") << shape.str();
  }
  const QuantizedLinear int4 = random_linear({.group = 32}, 64, 96, Order::shuffled);
  const PackedLinear ordered = packing_ct_pack.pack("a", int4);
  const auto read_with = [&](const std::vector<int32_t>& g_idx) {
    Stored stored(ordered);
    stored.views()["a.weight_g_idx"].data = g_idx.data();
    return packing_ct_pack.unpack("a", int4.spec, 64, 96, stored.source());
  };
  std::vector<int32_t> unfilled(96, 0);
  unfilled[95] = -1;
  EXPECT_FALSE(read_with(unfilled).group_of.has_value());
  EXPECT_TRUE(read_with(std::vector<int32_t>(96, 2)).group_of.has_value());
  EXPECT_THROW(read_with(std::vector<int32_t>(96, 3)), Error);
}

TEST(Packing, GgufBlocksDecodeToTheSameValues) {
  for (const auto& [p, type] : {std::pair{&packing_gguf_q4_0, &gguf::type_q4_0},
                                {&packing_gguf_q4_1, &gguf::type_q4_1},
                                {&packing_gguf_q5_1, &gguf::type_q5_1},
                                {&packing_gguf_q8_0, &gguf::type_q8_0}}) {
    const QuantSpec spec{.bits = type->grid->bits, .group = 32, .symmetric = type->grid->symmetric};
    const QuantizedLinear q = random_linear(spec, 16, 256, Order::consecutive);
    const PackedLinear packed = p->pack("a", q);
    const Tensor values = gguf::decode(*type, packed.tensors[0].tensor, 256);
    // Minima are rounded to f16; symmetric blocks are exact.
    EXPECT_LE(relative_error(values, dequantize_reference(q)), spec.symmetric ? tol::kExact : tol::kF16Minima)
        << p->name;
  }
}

TEST(Packing, GgufMinimaOffTheGridAreRefused) {
  const Tensor x = random_normal(DType::f32, {4, 64}, 2);
  const Tensor blocks = gguf::encode(gguf::type_q4_1, x, {}, gguf::Encoder::plain);
  const TensorSource source = [&](const std::string&) { return blocks.view(); };
  try {
    packing_gguf_q4_1.unpack("a", {.group = 32, .symmetric = false}, 4, 64, source);
    FAIL() << "expected an Error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no multiple of its scale"), std::string::npos) << e.what();
  }
}

// One over a scale, as compressed-tensors stores it, must not cost a bit in either direction.
TEST(Packing, GlobalScalesSurviveTheirReciprocals) {
  QuantSpec spec = kNvfp4;
  spec.activations = ActQuant::tensor;
  QuantizedLinear q = random_linear(spec, 8, 32, Order::consecutive);
  Rng rng(3, "reciprocals");
  for (int i = 0; i < 2000; ++i) {
    const float stored = std::exp(static_cast<float>(rng.normal()) * 5.f);
    q.global_scale = 1.0 / static_cast<double>(stored);
    q.input_scale = q.global_scale;
    const PackedLinear packed = packing_ct_nvfp4.pack("a", q);
    ASSERT_EQ(*packed.tensors[2].tensor.as<float>(), stored);
    ASSERT_EQ(*packed.tensors[3].tensor.as<float>(), stored);
    ASSERT_EQ(difference(packing_ct_nvfp4.unpack("a", spec, 8, 32, Stored(packed).source()), q), "");
    q.global_scale = q.input_scale = static_cast<double>(stored);
    const PackedLinear other = packing_modelopt_nvfp4.pack("a", q);
    ASSERT_EQ(*other.tensors[2].tensor.as<float>(), stored);
    ASSERT_EQ(difference(packing_modelopt_nvfp4.unpack("a", spec, 8, 32, Stored(other).source()), q), "");
  }
}

TEST(Packing, LookupListsWhatExists) {
  EXPECT_EQ(&packing("marlin"), &packing_marlin);
  try {
    packing("marlinn");
    FAIL() << "expected an Error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("gptq_v2"), std::string::npos);
  }
}

}  // namespace
}  // namespace fewbit::test

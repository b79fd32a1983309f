// Conversions of one linear, over every packing and every checkpoint format: what is accepted has the same
// codes and the same values to the bit, what is refused has a reason.
#include "formats/same_codes.h"

#include <cmath>

#include "src/core/half.h"
#include "tests/formats/packing_fixture.h"

namespace fewbit::test {
namespace {

QuantizedLinear repacked(const Packing& p, const QuantizedLinear& q) {
  const Stored stored(p.pack("a.b", q));
  return p.unpack("a.b", q.spec, q.out(), q.in(), stored.source());
}

// Through the packing that the format chooses; nothing where it refuses.
std::optional<QuantizedLinear> through(const CheckpointFormat& format, const QuantizedLinear& q, std::string* why) {
  const LinearFormat f = same_codes(format, q, why);
  if (!f.packing) return std::nullopt;
  return repacked(*f.packing, on_grid(clone(q), f.spec));
}

TEST(SameCodes, EveryPairOfFormatsKeepsCodesAndValuesOrSaysWhy) {
  const std::pair<int64_t, int64_t> shapes[] = {{33, 40}, {64, 128}, {64, 32}, {256, 192}, {40, 96}};
  std::map<std::pair<std::string_view, std::string_view>, int> accepted;
  for (const Packing* from : packings())
    for (auto [out, in] : shapes)
      for (const QuantSpec& spec : all_specs(out))
        for (const Order order : {Order::consecutive, Order::shuffled}) {
          if (order == Order::shuffled && spec.groups(in) == 1) continue;
          if (!from->refuses(spec, out, in, order == Order::shuffled).empty()) continue;
          const QuantizedLinear q = repacked(*from, random_linear(spec, out, in, order));
          for (const CheckpointFormat* to : checkpoint_formats()) {
            const std::string what = std::string(from->name) + " " + spec.str() + " to " + std::string(to->name);
            std::string why;
            const auto other = through(*to, q, &why);
            EXPECT_NE(other.has_value(), !why.empty()) << what;
            if (!other) continue;
            ++accepted[{from->name, to->name}];
            ASSERT_EQ(first_difference(other->codes, q.codes), "") << what;
            ASSERT_EQ(first_difference(dequantize_reference(*other), dequantize_reference(q)), "") << what;
            ASSERT_EQ(other->input_scale, q.input_scale) << what;
            ASSERT_EQ(other->spec.activations, q.spec.activations) << what;
            // And back: the first file's codes, scales and zeros.
            if (!from->pack || !(other->spec == q.spec)) continue;
            ASSERT_EQ(difference(repacked(*from, *other), q), "") << what;
          }
        }
  const std::pair<const char*, std::vector<const char*>> wanted[] = {
      {"gptq", {"awq", "compressed-tensors", "marlin", "gptq", "gguf"}},
      {"gptq_v2", {"awq", "compressed-tensors", "marlin", "gptq", "gguf"}},
      {"awq", {"gptq", "compressed-tensors", "marlin", "gguf"}},
      {"marlin", {"gptq", "awq", "compressed-tensors", "gguf"}},
      {"ct_pack", {"gptq", "awq", "marlin", "gguf"}},
      {"ct_int", {"compressed-tensors"}},
      {"ct_float", {"marlin", "fp8", "modelopt", "compressed-tensors"}},
      {"fp8", {"compressed-tensors", "modelopt"}},
      {"fp8_block", {"compressed-tensors", "fp8"}},
      {"fp8_block_v4", {"compressed-tensors", "fp8"}},
      {"fp8_scalar", {"compressed-tensors", "fp8", "modelopt"}},
      {"ct_mxfp4", {"compressed-tensors", "gguf", "mxfp4"}},
      {"mxfp4", {"compressed-tensors", "gguf", "mxfp4", "fp8"}},
      {"mxfp4_v4", {"compressed-tensors", "gguf", "mxfp4", "fp8"}},
      {"gguf_mxfp4", {"compressed-tensors", "gguf", "mxfp4"}},
      {"ct_nvfp4", {"modelopt"}},
      {"modelopt_nvfp4", {"compressed-tensors"}},
      {"gguf_q4_0", {"gptq", "awq", "compressed-tensors", "marlin"}},
      {"gguf_q4_1", {"gptq", "awq", "compressed-tensors", "marlin"}},
      {"gguf_q5_0", {"marlin"}},
      {"gguf_q8_0", {"gptq", "compressed-tensors", "marlin"}}};
  for (const auto& [from, formats] : wanted)
    for (const char* to : formats) EXPECT_GT((accepted[{from, to}]), 0) << from << " to " << to;
}

// What AutoGPTQ packed goes through compressed-tensors and Marlin and comes back: v1 files with zero points and
// reordered groups too.
TEST(SameCodes, GoldensGoRound) {
  FEWBIT_NEEDS_REFERENCE(kGoldens);
  const Golden golden(kGoldens);
  int count = 0;
  for (const std::string& prefix : golden_prefixes(golden, "gptq.")) {
    std::map<std::string, Tensor> kept;
    const QuantSpec spec = golden_spec(prefix);
    const QuantizedLinear first =
        packing_gptq.unpack(prefix.substr(0, prefix.size() - 1), spec, 256, 256, golden_source(golden, kept));
    QuantizedLinear q = clone(first);
    for (const CheckpointFormat* to : {&format_compressed_tensors, &format_marlin, &format_gptq}) {
      std::string why;
      auto next = through(*to, q, &why);
      ASSERT_TRUE(next) << prefix << to->name << ": " << why;
      q = std::move(*next);
    }
    EXPECT_EQ(difference(q, first), "") << prefix;
    ++count;
  }
  EXPECT_EQ(count, 16);
}

// Grids that say the same in other words.
TEST(SameCodes, GridsAreRetoldWhereNothingIsLost) {
  QuantizedLinear q = random_linear({.group = 32, .symmetric = false}, 64, 128, Order::consecutive);
  std::string why;
  EXPECT_EQ(same_codes(format_gguf, q, &why).packing, &packing_gguf_q4_1) << why;
  std::fill_n(q.zeros->as<uint8_t>(), q.zeros->numel(), uint8_t{8});
  q.spec.group = 128;
  q.scales = Tensor::host(DType::f32, {64, 1});
  q.zeros = Tensor::host(DType::u8, {64, 1});
  std::fill_n(q.scales.as<float>(), 64, 0.5f);
  std::fill_n(q.zeros->as<uint8_t>(), 64, uint8_t{8});
  // All zero points in the middle: symmetric; a group of all inputs: one per row; f32 scales that f16 holds.
  q.spec.scale_dtype = DType::f32;
  const LinearFormat f = same_codes(format_gptq, q, &why);
  ASSERT_NE(f.packing, nullptr) << why;
  EXPECT_EQ(f.spec.scale_dtype, DType::f16);
  q.scales.as<float>()[5] = 0.1f;
  EXPECT_EQ(same_codes(format_gptq, q, &why).packing, nullptr);
  EXPECT_NE(why.find("scales are f16, not f32"), std::string::npos) << why;
  EXPECT_NE(same_codes(format_compressed_tensors, q, &why).packing, nullptr) << why;
}

TEST(SameCodes, NarrowerGroupsAreNotMadeUp) {
  std::string why;
  const QuantizedLinear q = random_linear({}, 64, 256, Order::consecutive);
  EXPECT_EQ(same_codes(format_gguf, q, &why).packing, nullptr);
  EXPECT_NE(why.find("groups of 32 inputs, not 128"), std::string::npos) << why;
  EXPECT_EQ(same_codes(format_bf16, q, &why).packing, nullptr);
  EXPECT_NE(why.find("dense weights only"), std::string::npos) << why;
}

// One over a global scale is rarely the same number in f32: only where it is does NVFP4 change its format.
TEST(SameCodes, GlobalScalesThatWouldBeRoundedAreRefused) {
  QuantizedLinear q = random_linear(kNvfp4, 64, 64, Order::consecutive);
  std::string why;
  EXPECT_NE(same_codes(format_modelopt, q, &why).packing, nullptr) << why;  // 2^-7
  q.global_scale = 1.0 / 2689.0;
  EXPECT_NE(same_codes(format_compressed_tensors, q, &why).packing, nullptr) << why;
  EXPECT_EQ(same_codes(format_modelopt, q, &why).packing, nullptr);
  EXPECT_NE(why.find("does not give back to the bit a global scale"), std::string::npos) << why;
}

}  // namespace
}  // namespace fewbit::test

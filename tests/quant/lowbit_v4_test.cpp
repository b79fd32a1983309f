// DeepSeek V4 as it is published: FP8 in blocks with powers of two, by its own names, of attention and shared experts,
// of `wo_a` and the indexer's `wq_b` too, which no recipe touches; experts in MXFP4. The golden is written again so.
#include <cmath>

#include "src/core/half.h"
#include "src/model/checkpoint_parts.h"
#include "tests/quant/lowbit.h"

namespace fewbit::test {
namespace {

constexpr int64_t kBlock = 32;  // of outputs and inputs, which the golden's matrices do not all fill

float power_above(float x) {  // the least power of two that is not below x
  int e = 0;
  const float m = std::frexp(x, &e);
  return std::ldexp(1.f, m == 0.5f ? e - 1 : e);
}

struct Coded {
  Tensor codes, scales, values;  // as V4 stores them; bf16
};

// FP8 (block rows x columns) or, with rows 1 and 32 columns, MXFP4.
Coded coded(const Tensor& weight, bool fp4) {
  const Tensor w = float_values(weight);
  const int64_t n = w.rows(), k = w.cols(), rows = fp4 ? 1 : kBlock;
  const Shape groups{(n + rows - 1) / rows, (k + kBlock - 1) / kBlock};
  Coded c{fp4 ? Tensor::host(DType::i8, {n, k / 2}) : Tensor::host(DType::f8_e4m3, {n, k}),
          Tensor::host(DType::f8_e8m0, groups), Tensor::host(DType::bf16, {n, k})};
  auto* codes = static_cast<uint8_t*>(c.codes.view().data);
  std::fill(codes, codes + c.codes.bytes(), 0);
  for (int64_t g = 0; g < groups.numel(); ++g) {
    const int64_t r0 = g / groups[1] * rows, c0 = g % groups[1] * kBlock;
    const auto each = [&](auto&& f) {
      for (int64_t i = r0; i < std::min(n, r0 + rows); ++i)
        for (int64_t j = c0; j < std::min(k, c0 + kBlock); ++j) f(i * k + j);
    };
    float most = 0;
    each([&](int64_t at) { most = std::max(most, std::fabs(w.as<float>()[at])); });
    const float s = power_above(most / (fp4 ? 6.f : 448.f));
    static_cast<uint8_t*>(c.scales.view().data)[g] = f32_to_f8_e8m0(s);
    each([&](int64_t at) {
      const float x = w.as<float>()[at] / s;
      const uint8_t code = fp4 ? f32_to_f4_e2m1(x) : f32_to_f8_e4m3_saturated(x);
      if (fp4)
        codes[at / 2] = static_cast<uint8_t>(codes[at / 2] | code << (at % 2 * 4));
      else
        codes[at] = code;
      c.values.as<bf16>()[at] = bf16((fp4 ? f4_e2m1_to_f32(code) : f8_e4m3_to_f32(code)) * s);
    });
  }
  return c;
}

class LowBitV4 : public LowBit {
 protected:
  // The golden in both forms, with the same values: `published` and `plain`.
  void write(const fs::path& golden) {
    const auto all = [&](bool packed) {
      return [packed](Tensors& tensors, Json& config) {
        Tensors out;
        for (auto& [name, t] : tensors) {
          const bool expert = name.find(".experts.") != std::string::npos;
          const bool fp4 = expert && !name.ends_with("w2.weight");  // whose 48 inputs are no whole groups
          const bool fp8 =
              !fp4 && (expert || name.find("shared_experts") != std::string::npos ||
                       (name.find(".attn.w") != std::string::npos) || name.ends_with("indexer.wq_b.weight"));
          if (!fp4 && !fp8) {
            out[name] = std::move(t);
            continue;
          }
          Coded c = coded(t, fp4);
          out[name] = std::move(packed ? c.codes : c.values);
          if (packed) out[name.substr(0, name.size() - 6) + "scale"] = std::move(c.scales);
        }
        tensors = std::move(out);
        if (!packed) return;
        config["expert_dtype"] = "fp4";
        config["quantization_config"] = {{"quant_method", "fp8"},
                                         {"fmt", "e4m3"},
                                         {"scale_fmt", "ue8m0"},
                                         {"activation_scheme", "dynamic"},
                                         {"weight_block_size", {kBlock, kBlock}}};
      };
    };
    rewrite(golden, dir_ / "published", all(true));
    rewrite(golden, dir_ / "plain", all(false));
  }
  std::vector<float> losses(const fs::path& model) {
    const Checkpoint c = Checkpoint::open(model);
    std::vector<int32_t> ids(2 * kLen);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 71 + i / 5 * 13) % 250);
    return Runner(ex_, c, {.dtype = DType::f32, .weights = Weights::values}).nll(ids, 2);
  }
};

TEST_F(LowBitV4, ReadsThePublishedForms) {
  FEWBIT_GOLDEN("deepseek-v4");
  write(golden);
  const Checkpoint c = Checkpoint::open(dir_ / "published");
  const auto packing = [&](const char* name) { return c.quantization.linears.at(name).packing; };
  EXPECT_EQ(packing("layers.1.ffn.experts.3.w1"), &packing_mxfp4_v4);
  EXPECT_EQ(packing("layers.1.ffn.experts.3.w2"), &packing_fp8_block_v4);
  EXPECT_EQ(packing("layers.1.attn.wo_a"), &packing_fp8_block_v4);
  EXPECT_EQ(packing("layers.1.attn.indexer.wq_b"), &packing_fp8_block_v4);
  EXPECT_EQ(losses(dir_ / "published"), losses(dir_ / "plain"));
}

TEST_F(LowBitV4, PassesThroughByteForByte) {
  FEWBIT_GOLDEN("deepseek-v4");
  write(golden);
  const QuantReport r =
      quantize(dir_ / "published", "fp8 block32 format=fp8", "again", {{"ffn.experts.*", Recipe{.source_grid = true}}});
  EXPECT_EQ(lossless(r), static_cast<int64_t>(r.linears.size()));
  EXPECT_EQ(differing(dir_ / "again", dir_ / "published"), "");
  expect_verified(dir_ / "again");
  std::ifstream in(dir_ / "again" / "config.json");
  EXPECT_EQ(Json::parse(in)["expert_dtype"], "fp4");
}

// Where the format has no words for V4's names, what no recipe touches is written as its values.
TEST_F(LowBitV4, BecomesInt4AsItsValuesDo) {
  FEWBIT_GOLDEN("deepseek-v4");
  write(golden);
  const char* recipe = "gptq int4 g16 format=compressed-tensors";
  EXPECT_NE(refusal(dir_ / "published", recipe).find("`convert to bf16`"), std::string::npos);
  const Checkpoint source = as_source_of(Checkpoint::open(dir_ / "published"), checkpoint_format("compressed-tensors"));
  quantize(source, recipe, "from-published");
  quantize(dir_ / "plain", recipe, "from-plain");
  EXPECT_EQ(differing(dir_ / "from-published", dir_ / "from-plain"), "");
  expect_verified(dir_ / "from-published");
  std::ifstream in(dir_ / "from-published" / "config.json");
  EXPECT_FALSE(Json::parse(in).contains("expert_dtype"));
  for (const char* model : {"published", "plain"})
    convert_to("bf16", dir_ / model, dir_ / fmt::format("{}-bf16", model));
  EXPECT_EQ(differing(dir_ / "published-bf16", dir_ / "plain-bf16"), "");
  const std::string table = "layers.0.ffn.gate.tid2eid";  // integers, which are no floats to convert
  EXPECT_EQ(hashes_of(dir_ / "published-bf16").at(table), hashes_of(golden).at(table));
}

TEST_F(LowBitV4, RefusesWrongSizesAndUnknownTypesByName) {
  FEWBIT_GOLDEN("deepseek-v4");
  write(golden);
  const auto why = [&](const std::function<void(Tensors&, Json&)>& edit, ErrorKind kind) {
    rewrite(dir_ / "published", dir_ / "bad", edit);
    std::string text = message_of([&] { Checkpoint::open(dir_ / "bad"); }, kind);
    fs::remove_all(dir_ / "bad");
    return text;
  };
  EXPECT_NE(why([](Tensors&, Json& c) { c["expert_dtype"] = "int3"; }, ErrorKind::unsupported).find("fp8, fp4"),
            std::string::npos);
  EXPECT_NE(why(
                [](Tensors& t, Json&) {
                  t["layers.1.attn.wo_a.weight"] = Tensor::host(DType::f8_e4m3, {32, 64});
                },
                ErrorKind::checkpoint)
                .find("layers.1.attn.wo_a.weight"),
            std::string::npos);
  EXPECT_NE(why([](Tensors& t, Json&) { t.erase("layers.1.attn.indexer.wq_b.scale"); }, ErrorKind::checkpoint)
                .find("layers.1.attn.indexer.wq_b.weight"),
            std::string::npos);
}

}  // namespace
}  // namespace fewbit::test

// Models that come in low bits already: what passes through unchanged, what is quantized from the values of its codes,
// and what is refused.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/core/half.h"
#include "src/model/checkpoint_parts.h"
#include "tests/quant/lowbit.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

// An FP8 model of blocks that the matrices do not fill, by transformers' names.
constexpr const char* kBlocks = "fp8 block96 format=fp8";

TEST_F(LowBit, Fp8BlocksPassThroughByteForByte) {
  FEWBIT_GOLDEN("qwen3-qknorm");
  quantize(golden, kBlocks, "fp8");
  const QuantReport again = quantize(dir_ / "fp8", kBlocks, "again");
  EXPECT_EQ(lossless(again), static_cast<int64_t>(again.linears.size()));
  EXPECT_EQ(differing(dir_ / "again", dir_ / "fp8"), "");
  expect_verified(dir_ / "again");
  // bf16 scales, as some makers have them, and powers of two.
  for (const DType type : {DType::bf16, DType::f8_e8m0}) {
    const std::string name(name_of(type));
    rewrite(dir_ / "fp8", dir_ / name, [&](Tensors& tensors, Json&) {
      for (auto& [tensor, t] : tensors) {
        if (!tensor.ends_with("_scale_inv")) continue;
        Tensor scales = Tensor::host(type, t.shape());
        for (int64_t i = 0; i < t.numel(); ++i) {
          const float s = representable_scale(t.as<float>()[i], type);
          if (type == DType::bf16)
            scales.as<bf16>()[i] = bf16(s);
          else
            static_cast<uint8_t*>(scales.view().data)[i] = f32_to_f8_e8m0(s);
        }
        t = std::move(scales);
      }
    });
    const QuantReport r = quantize(dir_ / name, kBlocks, name + "-again");
    EXPECT_EQ(lossless(r), static_cast<int64_t>(r.linears.size())) << name;
    EXPECT_EQ(differing(dir_ / (name + "-again"), dir_ / name), "");
    expect_verified(dir_ / (name + "-again"));
  }
}

TEST_F(LowBit, NamesOfDeepSeekV4AndOfTransformersScalars) {
  FEWBIT_GOLDEN("qwen3-qknorm");
  quantize(golden, kBlocks, "fp8");
  quantize(golden, "rtn mxfp4 format=compressed-tensors", "mx");
  Tensors fp4;
  rewrite(dir_ / "mx", dir_ / "unused", [&](Tensors& t, Json&) {
    for (auto& [name, tensor] : t) fp4[name] = clone_host(tensor);
  });
  rewrite(dir_ / "fp8", dir_ / "v4", [&](Tensors& tensors, Json& config) {
    config["expert_dtype"] = "fp4";
    Tensors out;
    for (auto& [name, t] : tensors) {
      const bool mlp = name.find(".mlp.") != std::string::npos;
      const std::string linear = name.substr(0, name.rfind('.'));
      if (mlp && name.ends_with(".weight")) {
        const Tensor& codes = fp4.at(linear + ".weight_packed");
        Tensor as_i8 = Tensor::host(DType::i8, codes.shape());
        std::memcpy(as_i8.view().data, codes.view().data, static_cast<size_t>(codes.bytes()));
        out[name] = std::move(as_i8);
        const Tensor& scales = fp4.at(linear + ".weight_scale");
        Tensor e8m0 = Tensor::host(DType::f8_e8m0, scales.shape());
        std::memcpy(e8m0.view().data, scales.view().data, static_cast<size_t>(scales.bytes()));
        out[linear + ".scale"] = std::move(e8m0);
      } else if (!mlp && name.ends_with("_scale_inv")) {
        out[linear + ".scale"] = std::move(t);
      } else if (!name.ends_with("_scale_inv")) {
        out[name] = std::move(t);
      }
    }
    tensors = std::move(out);
  });
  const Checkpoint c = Checkpoint::open(dir_ / "v4");
  EXPECT_EQ(c.quantization.linears.at("model.layers.0.mlp.up_proj").packing, &packing_mxfp4_v4);
  EXPECT_EQ(c.quantization.linears.at("model.layers.0.self_attn.q_proj").packing, &packing_fp8_block_v4);
  const QuantReport kept = quantize(dir_ / "v4", kBlocks, "v4-again", {{"*", Recipe{.source_grid = true}}});
  EXPECT_EQ(lossless(kept), static_cast<int64_t>(kept.linears.size()));
  EXPECT_EQ(differing(dir_ / "v4-again", dir_ / "v4"), "");
  expect_verified(dir_ / "v4-again");
  // One scale per linear under transformers' names.
  quantize(golden, "fp8 tensor format=fp8", "scalar");
  rewrite(dir_ / "scalar", dir_ / "inv", [&](Tensors& tensors, Json&) {
    Tensors out;
    for (auto& [name, t] : tensors) out[name.ends_with(".weight_scale") ? name + "_inv" : name] = std::move(t);
    tensors = std::move(out);
  });
  EXPECT_EQ(loss_of(dir_ / "inv"), loss_of(dir_ / "scalar"));
  const QuantReport finer = quantize(dir_ / "inv", "fp8 gch format=compressed-tensors", "finer");
  EXPECT_EQ(lossless(finer), static_cast<int64_t>(finer.linears.size()));  // a scale per output holds one of all
  EXPECT_EQ(loss_of(dir_ / "finer"), loss_of(dir_ / "scalar"));
}

// From the codes as from their values written out.
TEST_F(LowBit, GptqFromFp8IsGptqOfItsValues) {
  FEWBIT_GOLDEN("qwen3-qknorm");
  quantize(golden, kBlocks, "fp8");
  convert_to("f32", dir_ / "fp8", dir_ / "f32");
  const CheckpointIndex index = container_for(golden).open(golden);
  rewrite(dir_ / "f32", dir_ / "dense", [&](Tensors& tensors, Json&) {
    for (auto& [name, t] : tensors)  // what is no linear stays as the model has it
      if (name.find("_proj.") == std::string::npos) t = clone_host(index.view(index.tensors.at(name)));
  });
  for (const char* recipe : {"gptq int4 g32 format=compressed-tensors", "awq+gptq int4 g32 format=compressed-tensors",
                             "rtn int4 g32 format=gptq"}) {
    quantize(dir_ / "fp8", recipe, "from-fp8");
    quantize(dir_ / "dense", recipe, "from-dense");
    EXPECT_EQ(differing(dir_ / "from-fp8", dir_ / "from-dense"), "") << recipe;
    expect_verified(dir_ / "from-fp8");
    // no worse than from bf16
    convert_to("bf16", dir_ / "fp8", dir_ / "bf16");
    quantize(dir_ / "bf16", recipe, "from-bf16");
    EXPECT_LE(std::fabs(loss_of(dir_ / "from-fp8") - loss_of(dir_ / "fp8")),
              std::fabs(loss_of(dir_ / "from-bf16") - loss_of(dir_ / "fp8")) + tol::kReroutedPacked)
        << recipe;
    for (const char* out : {"from-fp8", "from-dense", "from-bf16", "bf16"}) fs::remove_all(dir_ / out);
  }
}

TEST_F(LowBit, MixedGridsGoThroughConfigGroups) {
  FEWBIT_GOLDEN("qwen3-qknorm");
  quantize(golden, "fp8 block64 format=fp8", "fp8");
  const std::vector<Rule> keep = {{"self_attn.*", Recipe{.source_grid = true}}};
  const QuantReport r = quantize(dir_ / "fp8", "gptq int4 g32 format=compressed-tensors", "mixed", keep);
  EXPECT_EQ(lossless(r), 8);
  const Checkpoint c = Checkpoint::open(dir_ / "mixed");
  EXPECT_EQ(c.quantization.linears.at("model.layers.1.self_attn.o_proj").packing, &packing_ct_float);
  EXPECT_EQ(c.quantization.linears.at("model.layers.1.mlp.up_proj").packing, &packing_ct_pack);
  const Checkpoint source = Checkpoint::open(dir_ / "fp8");
  for (const NamedLinear& l : linears_of(c.spec))
    if (l.name.find("self_attn") != std::string::npos) {
      EXPECT_EQ(first_difference(c.values(l), source.values(l)), "") << l.name;
    }
  expect_verified(dir_ / "mixed");
  EXPECT_NE(refusal(dir_ / "fp8", "gptq int4 g128 format=marlin", keep).find("self_attn.q_proj"), std::string::npos);
  EXPECT_NE(refusal(dir_ / "fp8", "fp8 block32 format=fp8", {{"mlp.*", Recipe{.keep = true}}}).find("differ"),
            std::string::npos);
  EXPECT_NE(message_of([&] { quantize(golden, "rtn int4", "x", keep); }, ErrorKind::usage).find("low-bit"),
            std::string::npos);
  // A quantizer's own output is no source.
  quantize(golden, "rtn int4 g32 format=gptq", "gptq");
  EXPECT_NE(refusal(dir_ / "gptq", "rtn int8 g32 format=gptq").find("already quantized (gptq)"), std::string::npos);
}

TEST_F(LowBit, IntegersAndFp4OfCompressedTensors) {
  FEWBIT_GOLDEN("qwen3-qknorm");
  for (const char* recipe : {"rtn int4 g32 scale=bf16 format=compressed-tensors", "rtn nvfp4", "rtn mxfp4"}) {
    quantize(golden, recipe, "source");
    const QuantReport same = quantize(dir_ / "source", recipe, "same");
    EXPECT_EQ(lossless(same), static_cast<int64_t>(same.linears.size())) << recipe;
    EXPECT_EQ(differing(dir_ / "same", dir_ / "source"), "") << recipe;
    const QuantReport other = quantize(dir_ / "source", "gptq int4 g128 asym format=compressed-tensors", "other");
    EXPECT_EQ(lossless(other), 0);
    EXPECT_LE(std::fabs(loss_of(dir_ / "other") - loss_of(dir_ / "source")), tol::kInt4Loss) << recipe;
    expect_verified(dir_ / "other");
    for (const char* out : {"source", "same", "other"}) fs::remove_all(dir_ / out);
  }
}

TEST_F(LowBit, PowersOfTwoGoIntoNvfp4WhereExact) {
  FEWBIT_GOLDEN("qwen3-qknorm");
  quantize(golden, "rtn mxfp4", "mx");
  const QuantReport r = quantize(dir_ / "mx", "rtn nvfp4", "nv");
  EXPECT_EQ(lossless(r), static_cast<int64_t>(r.linears.size()));
  const Checkpoint mx = Checkpoint::open(dir_ / "mx"), nv = Checkpoint::open(dir_ / "nv");
  for (const NamedLinear& l : linears_of(mx.spec))
    EXPECT_EQ(first_difference(nv.values(l), mx.values(l)), "") << l.name;
  // Scales of q, k and v share one global scale: beyond 17 doublings none of the three goes through.
  rewrite(dir_ / "mx", dir_ / "wide",
          [](Tensors& t, Json&) { t.at("model.layers.0.self_attn.k_proj.weight_scale").as<uint8_t>()[3] = 127 + 20; });
  EXPECT_EQ(lossless(quantize(dir_ / "wide", "rtn nvfp4", "nv-wide")), static_cast<int64_t>(r.linears.size()) - 3);
}

TEST_F(LowBit, DamagedCodesAreRefusedByName) {
  FEWBIT_GOLDEN("qwen3-qknorm");
  quantize(golden, "rtn mxfp4", "mx");
  rewrite(dir_ / "mx", dir_ / "bad",
          [](Tensors& t, Json&) { t.at("model.layers.1.mlp.up_proj.weight_scale").as<uint8_t>()[5] = 255; });
  EXPECT_NE(message_of([&] { quantize(dir_ / "bad", "rtn int4 g32", "out"); }, ErrorKind::checkpoint)
                .find("model.layers.1.mlp.up_proj.weight_scale"),
            std::string::npos);
}

// --- gpt-oss as it is published

TEST_F(LowBit, GptOssPassesThroughItsStacks) {
  FEWBIT_GOLDEN("gpt-oss-mxfp4");
  const std::vector<Rule> keep = {{"self_attn.*", Recipe{.keep = true}}};
  const QuantReport r = quantize(golden, "rtn mxfp4 format=mxfp4", "again", keep);
  EXPECT_EQ(lossless(r), 4 * 4 * 3);
  EXPECT_EQ(differing(dir_ / "again", golden), "");
  expect_verified(dir_ / "again");
  std::ifstream in(dir_ / "again" / "config.json");
  EXPECT_EQ(Json::parse(in)["quantization_config"]["quant_method"], "mxfp4");
  EXPECT_NE(refusal(golden, "rtn mxfp4 format=mxfp4").find("holds experts alone, and 16 other"), std::string::npos);
  EXPECT_NE(refusal(golden, "rtn mxfp4 format=mxfp4", {{"*gate_proj", Recipe{.keep = true}}, keep[0]}), "ignored");
  // The same codes by compressed-tensors' names, and back.
  quantize(golden, "rtn mxfp4", "ct", keep);
  convert_to("mxfp4", dir_ / "ct", dir_ / "back");
  EXPECT_EQ(differing(dir_ / "back", golden), "");
}

TEST_F(LowBit, GptOssBecomesDenseByItsOwnNames) {
  FEWBIT_GOLDEN("gpt-oss-mxfp4");
  convert_to("bf16", golden, dir_ / "bf16");
  const std::map<std::string, std::string> names = hashes_of(dir_ / "bf16");
  EXPECT_TRUE(names.count("model.layers.0.mlp.experts.gate_up_proj"));
  EXPECT_TRUE(names.count("model.layers.0.mlp.experts.gate_up_proj_bias"));
  EXPECT_FALSE(names.count("model.layers.0.mlp.experts.gate_up_proj_blocks"));
  const Checkpoint a = Checkpoint::open(golden), b = Checkpoint::open(dir_ / "bf16");
  for (const NamedLinear& l : linears_of(a.spec))  // E2M1 times a power of two is exact in bf16
    EXPECT_EQ(first_difference(b.values(l), a.values(l)), "") << l.name;
}

TEST_F(LowBit, StacksOfResumedRuns) {
  FEWBIT_GOLDEN("gpt-oss-mxfp4");
  const Checkpoint c = Checkpoint::open(golden);
  const std::vector<Rule> rules = {{"self_attn.*", Recipe{.keep = true}}};
  const QuantPlan plan = make_plan(c, {.base = parse_recipe("rtn mxfp4 format=mxfp4"), .rules = rules});
  int asked = 0;
  QuantJob job{.recipe = "rtn mxfp4", .out = dir_ / "out", .shard_bytes = 40 << 10};
  job.stop_requested = [&] { return ++asked > 2; };
  EXPECT_NE(message_of([&] { run_pipeline(ex_, c, plan, Windows{}, job); }, ErrorKind::stopped), "");
  job.stop_requested = {};
  job.resume = true;
  run_pipeline(ex_, c, plan, Windows{}, job);
  EXPECT_EQ(differing(dir_ / "out", golden), "");
}

// --- DeepSeek V3 as it is published: latent attention, experts, blocks that few matrices fill

TEST_F(LowBit, DeepSeekV3PassesThroughByteForByte) {
  FEWBIT_GOLDEN("deepseek-v3-fp8");
  const QuantReport r = quantize(golden, "fp8 block128 format=fp8", "again");
  EXPECT_EQ(lossless(r), static_cast<int64_t>(r.linears.size()));
  EXPECT_EQ(differing(dir_ / "again", golden), "");
  expect_verified(dir_ / "again");
}

TEST_F(LowBit, DeepSeekV3BecomesInt4NoWorseThanFromBf16) {
  FEWBIT_GOLDEN("deepseek-v3-fp8");
  convert_to("bf16", golden, dir_ / "bf16");
  const char* recipe = "gptq int4 g8 format=compressed-tensors";
  const std::vector<Rule> rules = {{"mlp.*", parse_recipe(recipe)}};  // the first layers too, which stay by default
  const QuantReport a = quantize(golden, recipe, "from-fp8", rules),
                    b = quantize(dir_ / "bf16", recipe, "from-bf16", rules);
  expect_verified(dir_ / "from-fp8");
  double from_fp8 = 0, from_bf16 = 0;
  for (size_t i = 0; i < a.linears.size(); ++i) {
    ASSERT_EQ(a.linears[i].name, b.linears[i].name);
    from_fp8 += a.linears[i].rel_error;
    from_bf16 += b.linears[i].rel_error;
  }
  EXPECT_LE(from_fp8, from_bf16 * (1 + tol::kSameCalibration));
  EXPECT_LE(std::fabs(loss_of(dir_ / "from-fp8") - loss_of(golden)), tol::kInt4Loss);
}

// --- what lies outside the language model

TEST_F(LowBit, DropLeavesOutWhatTheModelDoesNotNeed) {
  FEWBIT_GOLDEN("qwen3-qknorm");
  quantize(golden, kBlocks, "fp8");
  rewrite(dir_ / "fp8", dir_ / "mtp", [](Tensors& t, Json&) {
    for (const char* suffix : {"weight", "weight_scale_inv"}) {
      const std::string name = std::string("model.layers.0.mlp.up_proj.") + suffix;
      t[std::string("mtp.fc.") + suffix] = clone_host(t.at(name));
    }
  });
  const Checkpoint c = Checkpoint::open(dir_ / "mtp");
  ASSERT_EQ(c.others.size(), 1u);
  EXPECT_EQ(c.others[0].name, "mtp.fc");
  quantize(dir_ / "mtp", kBlocks, "again");
  EXPECT_EQ(differing(dir_ / "again", dir_ / "mtp"), "");
  expect_verified(dir_ / "again");
  EXPECT_NE(refusal(dir_ / "mtp", "rtn int4 g32 format=gptq").find("--drop"), std::string::npos);
  convert_to("bf16", dir_ / "mtp", dir_ / "bf16");
  EXPECT_TRUE(Checkpoint::open(dir_ / "bf16").store.find("mtp.fc.weight")->dtype == DType::bf16);
  std::vector<std::string> dropped;
  const Checkpoint without = without_tensors(Checkpoint::open(dir_ / "mtp"), {"mtp.*"}, dropped);
  EXPECT_EQ(dropped, (std::vector<std::string>{"mtp.fc.weight", "mtp.fc.weight_scale_inv"}));
  EXPECT_TRUE(without.others.empty());
  EXPECT_TRUE(make_plan(without, {.base = parse_recipe("rtn int4 g32 format=gptq")}).refusals.empty());
  const auto wrong = [&](const char* glob) {
    return message_of([&] { without_tensors(Checkpoint::open(dir_ / "mtp"), {glob}, dropped); }, ErrorKind::usage);
  };
  EXPECT_NE(wrong("*.up_proj").find("the language model needs"), std::string::npos);
  EXPECT_NE(wrong("nothing.*").find("has such a name"), std::string::npos);
  EXPECT_NE(wrong("mtp.*_inv").find("a part of its tensors"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test

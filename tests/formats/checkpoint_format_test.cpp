// Checkpoint formats: what write_config says, read_quantization understands; and other people's configs.
#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/checkpoint_format.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

using nlohmann::json;

const std::vector<std::string> kLinears = {"model.layers.0.a", "model.layers.0.b", "model.layers.1.a",
                                           "model.layers.1.b", "model.layers.10.a"};
using Present = std::map<std::string, std::pair<DType, Shape>>;

// The tensors that these linears would have on disk.
Present tensors_of(const QuantizationSummary& s) {
  Present out;
  for (const auto& [name, f] : s.linears)
    for (const TensorPlan& t : f.packing->tensors(f.spec, 256, 256, f.act_order))
      out[name + "." + t.suffix] = {t.dtype, t.shape};
  for (const std::string& name : kLinears)
    if (!s.linears.count(name)) out[name + ".weight"] = {DType::bf16, {256, 256}};
  return out;
}

struct Read {
  QuantizationSummary summary;
  std::string name;
};
Read read(const std::string& quantization_config, const Present& present, const ConfigFile& side = {}) {
  const std::string config =
      quantization_config.empty() ? "{}" : "{\"quantization_config\": " + quantization_config + "}";
  Read r;
  static const uint8_t somewhere = 0;
  const TensorSource tensor = [&](const std::string& name) -> ConstTensorView {
    const auto it = present.find(name);
    if (it == present.end()) return {};
    return {&somewhere, it->second.first, it->second.second, {}};
  };
  r.summary = read_quantization(config, side, kLinears, tensor, &r.name);
  return r;
}

Present with_suffix(const std::string& suffix) {
  Present out;
  for (const std::string& name : kLinears) out[name + suffix] = {DType::i32, {256, 256}};
  return out;
}

std::string difference(const QuantizationSummary& a, const QuantizationSummary& b) {
  for (const std::string& name : kLinears) {
    if (a.linears.count(name) != b.linears.count(name)) return name + " is packed in one only";
    if (!a.linears.count(name)) continue;
    const LinearFormat &x = a.linears.at(name), &y = b.linears.at(name);
    if (x.packing != y.packing)
      return name + ": " + std::string(x.packing->name) + " against " + std::string(y.packing->name);
    if (!(x.spec == y.spec)) return name + ": " + x.spec.str() + " against " + y.spec.str();
    if (x.act_order != y.act_order) return name + ": act_order differs";
  }
  return "";
}

LinearFormat format(const Packing& p, QuantSpec spec = {}, bool act_order = false) {
  return {&p, spec, act_order};
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CheckpointFormat, WhatIsWrittenIsReadBack) {
  const QuantSpec int8{.bits = 8, .group = -1}, asym{.bits = 3, .group = 64, .symmetric = false};
  std::vector<std::pair<const CheckpointFormat*, QuantizationSummary>> cases;
  QuantizationSummary uniform, mixed, partly, v2, ordered;
  for (const std::string& name : kLinears) {
    uniform.linears[name] = format(packing_marlin);
    v2.linears[name] = format(packing_gptq_v2, asym);
    ordered.linears[name] = format(packing_gptq, {}, true);
  }
  mixed = uniform;
  mixed.linears[kLinears[1]] = format(packing_gptq_v2, asym, true);
  mixed.linears[kLinears[2]] = format(packing_marlin, int8);
  mixed.linears[kLinears[3]] = format(packing_marlin, {.grid = Grid::f8_e4m3, .bits = 8, .group = -1});
  mixed.linears.erase(kLinears[4]);
  partly.linears[kLinears[0]] = format(packing_gptq);
  partly.linears[kLinears[1]] = format(packing_gptq, int8);
  partly.linears[kLinears[2]] = format(packing_gptq);
  partly.dense = {kLinears[3], kLinears[4]};
  for (auto* s : {&uniform, &mixed}) cases.emplace_back(&format_marlin, *s);
  for (auto* s : {&partly, &v2, &ordered}) cases.emplace_back(&format_gptq, *s);
  for (const auto& [f, summary] : cases) {
    const std::string config = f->write_config(summary);
    const Read r = read(config, tensors_of(summary));
    EXPECT_EQ(difference(r.summary, summary), "") << config;
    EXPECT_EQ(r.summary.linears.size() + r.summary.dense.size(), kLinears.size());
    // GPTQModel's and older readers' keys agree.
    const json c = json::parse(config);
    EXPECT_EQ(c["method"], c["quant_method"]);
    EXPECT_EQ(c["format"], c["checkpoint_format"]);
  }
  EXPECT_EQ(read(format_marlin.write_config(uniform), tensors_of(uniform)).name, "marlin");
  EXPECT_EQ(read(format_gptq.write_config(v2), tensors_of(v2)).name, "gptq_v2");
  EXPECT_EQ(format_bf16.write_config({}), "");
  EXPECT_EQ(format_gptq.write_config({}), "");
}

TEST(CheckpointFormat, DynamicRulesAloneSayTheSame) {
  QuantizationSummary s;
  s.linears[kLinears[0]] = format(packing_gptq);
  s.linears[kLinears[1]] = format(packing_gptq, {.bits = 8, .group = -1});
  s.linears[kLinears[2]] = format(packing_gptq);  // "model.layers.1.a" must not match "model.layers.10.a"
  s.linears[kLinears[4]] = format(packing_gptq, {.bits = 2, .group = 32});
  s.dense = {kLinears[3]};
  json config = json::parse(format_gptq.write_config(s));
  EXPECT_EQ(config["dynamic"].size(), 3u);
  EXPECT_EQ(config.erase("fewbit"), 1u);
  EXPECT_EQ(difference(read(config.dump(), tensors_of(s)).summary, s), "");
}

// vLLM and SGLang look up the name of the linear that they make of several.
TEST(CheckpointFormat, DynamicHasRulesForTheLinearsThatEnginesFuse) {
  QuantizationSummary s;
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    s.linears["model.layers.0.self_attn." + std::string(name)] = format(packing_gptq, {.bits = 8});
  for (const char* name : {"gate_proj", "up_proj", "down_proj"})
    s.linears["model.layers.0.mlp." + std::string(name)] = format(packing_gptq);
  s.linears["model.layers.0.mlp.up_proj"] = format(packing_gptq, {.bits = 2});
  for (const char* name : {"gate_proj", "up_proj"}) s.dense.push_back("model.layers.1.mlp." + std::string(name));
  for (int i = 0; i < 9; ++i) s.linears["model.layers.2." + std::to_string(i)] = format(packing_gptq);
  const json rules = json::parse(format_gptq.write_config(s))["dynamic"];
  EXPECT_EQ(rules["+:^model\\.layers\\.0\\.self_attn\\.qkv_proj$"]["bits"], 8);
  EXPECT_TRUE(rules.contains("-:^model\\.layers\\.1\\.mlp\\.gate_up_proj$"));
  EXPECT_EQ(rules.dump().find("layers\\\\.0\\\\.mlp\\\\.gate_up_proj"), std::string::npos)
      << "its parts differ: " << rules;
}

TEST(CheckpointFormat, DynamicTakesTheFirstMatchFromTheStartOfTheName) {
  const std::string config =
      R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"sym":true,"dynamic":{
    "layers": {"bits": 2}, "-:.*\\.1\\.": {}, "+:.*a$": {"bits": 8, "group_size": 32}, ".*\\.0\\.a": {"bits": 3}}})";
  const QuantizationSummary s = read(config, with_suffix(".qweight")).summary;
  EXPECT_EQ(s.linears.at("model.layers.0.a").spec.bits, 8);
  EXPECT_EQ(s.linears.at("model.layers.0.a").spec.group, 32);
  EXPECT_EQ(s.linears.at("model.layers.0.b").spec.bits, 4);
  EXPECT_EQ(s.dense, (std::vector<std::string>{"model.layers.1.a", "model.layers.1.b"}));
}

TEST(CheckpointFormat, ForeignConfigs) {
  const auto first = [](const Read& r) { return r.summary.linears.at(kLinears[0]); };
  Read r = read(R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"sym":true,
                    "checkpoint_format":"marlin"})",
                with_suffix(".B"));
  EXPECT_EQ(r.name, "marlin");
  EXPECT_EQ(first(r).packing, &packing_marlin);
  r = read(R"({"quant_method":"gptq","bits":4,"group_size":-1,"is_marlin_format":true})", with_suffix(".B"));
  EXPECT_EQ(first(r).packing, &packing_marlin);
  EXPECT_EQ(first(r).spec.group, -1);
  r = read(R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":true,"sym":false})",
           with_suffix(".qweight"));
  EXPECT_EQ(r.name, "gptq");
  EXPECT_EQ(first(r).packing, &packing_gptq);
  EXPECT_TRUE(first(r).act_order);
  EXPECT_FALSE(first(r).spec.symmetric);
  r = read(R"({"method":"gptq","format":"gptq_v2","bits":2,"group_size":32})", with_suffix(".qweight"));
  EXPECT_EQ(first(r).packing, &packing_gptq_v2);
  r = read("", with_suffix(".qweight"),
           {"quantize_config.json", R"({"bits":8,"group_size":64,"desc_act":false})"});
  EXPECT_EQ(first(r).spec.bits, 8);
  r = read("", with_suffix(".weight"));
  EXPECT_EQ(r.name, "dense");
  EXPECT_TRUE(r.summary.linears.empty());
  r = read("null", with_suffix(".weight"));
  EXPECT_EQ(r.name, "dense");
}

TEST(CheckpointFormat, GptqReadersFindTheSameObjectBesideTheConfig) {
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = format(packing_gptq);
  for (const CheckpointFormat* f : {&format_gptq, &format_marlin}) {
    const ConfigFile side = f->side_file(s);
    EXPECT_EQ(side.name, "quantize_config.json");
    EXPECT_EQ(side.text, f->write_config(s));
    EXPECT_EQ(difference(read("", tensors_of(s), side).summary, s), "");
  }
}

// --- awq

TEST(Awq, WhatIsWrittenIsReadBack) {
  for (const bool symmetric : {false, true}) {
    QuantizationSummary s;
    for (const std::string& name : kLinears)
      s.linears[name] = format(packing_awq, {.group = 64, .symmetric = symmetric});
    s.linears.erase(kLinears[1]);
    s.dense = {kLinears[1]};
    EXPECT_EQ(format_awq.cannot_describe(s), "");
    const json c = json::parse(format_awq.write_config(s));
    EXPECT_EQ(c["zero_point"], true) << "readers want zero points, of symmetric grids too";
    EXPECT_EQ(c["modules_to_not_convert"], json({kLinears[1], "lm_head"}));
    EXPECT_EQ(c.contains("fewbit"), symmetric);
    const Read r = read(c.dump(), tensors_of(s));
    EXPECT_EQ(r.name, "awq");
    EXPECT_EQ(difference(r.summary, s), "");
    EXPECT_EQ(r.summary.dense, s.dense);
  }
  EXPECT_EQ(format_awq.write_config({}), "");
}

TEST(Awq, OneConfigHasOneGroupSizeAndPartsOfNames) {
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = format(packing_awq);
  s.linears[kLinears[2]].spec.group = 32;
  EXPECT_NE(format_awq.cannot_describe(s).find("has group 32 and others 128"), std::string::npos);
  s.linears[kLinears[2]].spec.group = 128;
  s.dense = {"layers.1"};
  EXPECT_NE(format_awq.cannot_describe(s).find("layers.1 stays dense and is a part of the name"),
            std::string::npos);
}

TEST(Awq, ForeignConfigs) {
  const QuantSpec spec{.group = 64, .symmetric = false};
  const std::pair<const char*, ConfigFile> cases[] = {
      {R"({"quant_method":"awq","bits":4,"group_size":64,"zero_point":true,"version":"gemm",
           "modules_to_not_convert":null})",
       {}},
      {R"({"quant_method":"awq","method":"awq","bits":4,"group_size":64,"zero_point":true,"format":"gemm"})", {}},
      {"", {"quant_config.json", R"({"w_bit":4,"q_group_size":64,"zero_point":true,"version":"GEMM"})"}},
  };
  for (const auto& [config, side] : cases) {
    const Read r = read(config, with_suffix(".qweight"), side);
    EXPECT_EQ(r.name, "awq");
    EXPECT_EQ(r.summary.linears.size(), kLinears.size());
    EXPECT_EQ(r.summary.linears.at(kLinears[0]).packing, &packing_awq);
    EXPECT_EQ(r.summary.linears.at(kLinears[0]).spec, spec);
  }
  const std::string base = R"({"quant_method":"awq","group_size":64)";
  const std::pair<std::string, const char*> wrong[] = {
      {base + "}", ".bits"},
      {base + R"(,"bits":8})", "bits: found 8; supported: 4"},
      {base + R"(,"bits":4,"version":"gemv"})", "\"gemv\"; supported: gemm"},
      {base + R"(,"bits":4,"zero_point":false})", "zero_point"},
      {R"({"quant_method":"awq","bits":4})", ".group_size"},
  };
  for (const auto& [config, word] : wrong) {
    const std::string what = message_of([&] { read(config, with_suffix(".qweight")); });
    EXPECT_NE(what.find(word), std::string::npos) << what;
  }
}

TEST(CheckpointFormat, WhatIsNotUnderstoodIsNamed) {
  const std::string base = R"("quant_method":"gptq","bits":4,"group_size":128)";
  const auto fewbit = [&](const std::string& body) { return "{" + base + ",\"fewbit\":{" + body + "}}"; };
  const std::string common = R"("default":{"packing":"marlin","bits":4,"group_size":128,"sym":true})";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"quant_method":"aqlm","bits":4})", "\"aqlm\"; known: gptq, awq, compressed-tensors, fp8, modelopt"},
      {R"({"bits":4,"group_size":128})", "quant_method"},
      {R"(3)", "an object"},
      {R"({"quant_method":3})", "a string"},
      {R"({"quant_method":"gptq","group_size":128})", ".bits"},
      {R"({"quant_method":"gptq","bits":5,"group_size":128})", "found 5"},
      {R"({"quant_method":"gptq","bits":"4","group_size":128})", "an integer"},
      {R"({"quant_method":"gptq","bits":4})", ".group_size"},
      {R"({"quant_method":"gptq","bits":4,"group_size":0})", "found 0"},
      {"{" + base + R"(,"sym":1})", ".sym"},
      {"{" + base + R"(,"checkpoint_format":"gptq_p"})", "gptq_p"},
      {"{" + base + R"(,"pack_dtype":"int64"})", "int64"},
      {"{" + base + R"(,"lm_head":true})", "lm_head"},
      {"{" + base + R"(,"checkpoint_format":"marlin","sym":false})", "marlin wants"},
      {"{" + base + R"(,"dynamic":{"(":{}}})", "regular expression"},
      {"{" + base + R"(,"dynamic":{"a":3}})", "an object"},
      {fewbit(common), "version"},
      {fewbit("\"version\":2," + common), "found 2"},
      {fewbit("\"version\":1"), "default"},
      {fewbit(R"("version":1,"default":{"packing":"marlin","bits":8,"group_size":128,"grid":"fp4"})"), "\"fp4\""},
      {fewbit(R"("version":1,"default":{"packing":"nf4","bits":4,"group_size":128})"), "nf4"},
      {fewbit("\"version\":1," + common +
              R"(,"linears":{"x":{"packing":"gptq_v2","bits":4,"group_size":128}})"),
       "no such linear"},
      {fewbit("\"version\":1," + common +
              R"(,"linears":{"model.layers.0.a":{"packing":"gptq_v2","bits":3,"group_size":128}})"),
       "model.layers.0.a.qweight' is missing"},
  };
  for (const auto& [config, word] : cases) {
    const std::string what = message_of([&] { read(config, with_suffix(".B")); });
    EXPECT_NE(what.find(word), std::string::npos) << config << "\n" << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
}

TEST(CheckpointFormat, ChoosesTheFirstPackingThatAccepts) {
  std::string why;
  EXPECT_EQ(choose_packing(format_marlin, {}, 256, 256, false, &why), &packing_marlin);
  EXPECT_EQ(choose_packing(format_marlin, {}, 33, 40, false, &why), &packing_gptq_v2);
  EXPECT_EQ(choose_packing(format_marlin, {.bits = 3}, 256, 256, false, &why), &packing_gptq_v2);
  EXPECT_EQ(choose_packing(format_marlin, {}, 256, 256, true, &why), &packing_gptq_v2);
  EXPECT_EQ(choose_packing(format_gptq, {}, 256, 256, false, &why), &packing_gptq);
  EXPECT_EQ(choose_packing(format_gptq, {.symmetric = false}, 33, 40, false, &why), &packing_gptq_v2);
  EXPECT_EQ(choose_packing(format_gptq, {}, 33, 40, false, &why), nullptr);
  EXPECT_NE(why.find("N = 33"), std::string::npos);
  const QuantSpec fp8{.grid = Grid::f8_e4m3, .bits = 8};
  EXPECT_EQ(choose_packing(format_marlin, fp8, 256, 256, false, &why), &packing_marlin);
  EXPECT_EQ(choose_packing(format_marlin, fp8, 33, 256, false, &why), nullptr);
  EXPECT_NE(why.find("marlin: "), std::string::npos);
  EXPECT_NE(why.find("gptq_v2: "), std::string::npos);
  EXPECT_EQ(choose_packing(format_bf16, {}, 256, 256, false, &why), nullptr);
  EXPECT_NE(why.find("dense"), std::string::npos);
  EXPECT_EQ(&checkpoint_format("gptq"), &format_gptq);
  EXPECT_NE(message_of([] { checkpoint_format("ggml"); }).find("marlin gptq awq compressed-tensors fp8 modelopt bf16"),
            std::string::npos);
}

// --- compressed-tensors

QuantSpec int8_acts(ActQuant a, int64_t out_group = 1) {
  return {.bits = 8, .group = -1, .scale_dtype = DType::bf16, .out_group = out_group, .activations = a};
}
QuantSpec fp8(ActQuant a, int64_t group, int64_t out_group) {
  return {.grid = Grid::f8_e4m3, .bits = 8, .group = group, .out_group = out_group, .activations = a};
}

TEST(CompressedTensors, EverySchemeAloneIsReadBack) {
  std::vector<LinearFormat> formats;
  for (DType scale : {DType::f16, DType::bf16, DType::f32})
    for (int bits : {2, 3, 4, 8})
      formats.push_back(
          format(packing_ct_pack, {.bits = bits, .group = 64, .scale_dtype = scale}, bits == 4));
  formats.push_back(format(packing_ct_pack, {.bits = 4, .group = -1, .symmetric = false}));
  for (ActQuant a : {ActQuant::token, ActQuant::tensor})
    for (int64_t out_group : {1, 256}) formats.push_back(format(packing_ct_int, int8_acts(a, out_group)));
  for (ActQuant a : {ActQuant::none, ActQuant::token, ActQuant::tensor})
    for (auto [group, out_group] : {std::pair{-1, 1}, {-1, 256}, {128, 128}, {128, 1}}) {
      if (a == ActQuant::tensor && group == 128) continue;
      formats.push_back(format(packing_ct_float, fp8(a, group, out_group)));
    }
  for (QuantSpec s : {kNvfp4, kMxfp4}) {
    const Packing& p = s.two_level() ? packing_ct_nvfp4 : packing_ct_mxfp4;
    formats.push_back(format(p, s));
    s.activations = s.two_level() ? ActQuant::tensor : ActQuant::token;
    formats.push_back(format(p, s));
  }
  for (const LinearFormat& f : formats) {
    QuantizationSummary s;
    for (const std::string& name : kLinears) s.linears[name] = f;
    s.linears.erase(kLinears[2]);
    s.dense = {kLinears[2]};
    const std::string config = format_compressed_tensors.write_config(s);
    const Read r = read(config, tensors_of(s));
    EXPECT_EQ(r.name, "compressed-tensors");
    EXPECT_EQ(difference(r.summary, s), "") << config;
    EXPECT_EQ(r.summary.dense, s.dense);
    const json c = json::parse(config);
    EXPECT_EQ(c["quantization_status"], "compressed");
    EXPECT_EQ(c["ignore"], json({kLinears[2], "lm_head"}));
    ASSERT_EQ(c["config_groups"].size(), 1u);
    EXPECT_EQ(c["config_groups"]["group_0"]["targets"], json({"Linear"}));
    EXPECT_EQ(c["config_groups"]["group_0"]["format"], c["format"]);
    std::string why;
    EXPECT_EQ(choose_packing(format_compressed_tensors, f.spec, 256, 256, f.act_order, &why), f.packing)
        << why;
  }
}

TEST(CompressedTensors, DifferentSchemesNameTheirModules) {
  QuantizationSummary s;
  s.linears[kLinears[0]] = format(packing_ct_pack);
  s.linears[kLinears[1]] = format(packing_ct_pack, {.bits = 8, .group = -1});
  s.linears[kLinears[2]] = format(packing_ct_pack);
  s.dense = {kLinears[3], kLinears[4]};
  json c = json::parse(format_compressed_tensors.write_config(s));
  EXPECT_EQ(c["format"], "pack-quantized");
  EXPECT_EQ(c["config_groups"]["group_0"]["targets"], json({kLinears[0], kLinears[2]}));
  EXPECT_EQ(c["config_groups"]["group_1"]["targets"], json({kLinears[1]}));
  EXPECT_EQ(difference(read(c.dump(), tensors_of(s)).summary, s), "");
  s.linears[kLinears[3]] = format(packing_ct_float, fp8(ActQuant::token, -1, 1));
  s.linears[kLinears[4]] = format(packing_ct_int, int8_acts(ActQuant::token));
  s.dense.clear();
  c = json::parse(format_compressed_tensors.write_config(s));
  EXPECT_EQ(c["format"], "mixed-precision");
  EXPECT_EQ(c["config_groups"].size(), 4u);
  EXPECT_EQ(difference(read(c.dump(), tensors_of(s)).summary, s), "");
  EXPECT_EQ(format_compressed_tensors.write_config({}), "");
}

TEST(CompressedTensors, TheSchemeOfTheCacheIsReadBack) {
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = format(packing_ct_pack);
  EXPECT_FALSE(json::parse(format_compressed_tensors.write_config(s)).contains("kv_cache_scheme"));
  s.fp8_kv_cache = true;
  json c = json::parse(format_compressed_tensors.write_config(s));
  EXPECT_EQ(c["kv_cache_scheme"], json::parse(R"({"num_bits": 8, "type": "float", "strategy": "tensor",
                                                  "dynamic": false, "symmetric": true})"));
  EXPECT_TRUE(read(c.dump(), tensors_of(s)).summary.fp8_kv_cache);
  c["kv_cache_scheme"]["strategy"] = "attn_head";
  EXPECT_TRUE(read(c.dump(), tensors_of(s)).summary.fp8_kv_cache);
  c["kv_cache_scheme"]["type"] = "int";
  const QuantizationSummary foreign = read(c.dump(), tensors_of(s)).summary;
  EXPECT_FALSE(foreign.fp8_kv_cache);
  EXPECT_NE(foreign.foreign_kv_cache.find("kv_cache_scheme"), std::string::npos);
  EXPECT_EQ(difference(foreign, s), "") << "the linears run all the same";

  s.linears.clear();  // nothing but the cache
  s.dense = kLinears;
  const Read only = read(format_compressed_tensors.write_config(s), tensors_of(s));
  EXPECT_TRUE(only.summary.fp8_kv_cache);
  EXPECT_EQ(only.summary.dense, kLinears);
}

// What llm-compressor says of NVFP4 with and without quantized activations.
TEST(CompressedTensors, ForeignFourBitFloats) {
  const auto config = [](const std::string& group) {
    return R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","ignore":["lm_head"],
      "config_groups":{"group_0":{"targets":["Linear"],)" + group + "}}}";
  };
  const std::string weights =
      R"("weights":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16,"symmetric":true,
         "dynamic":false,"observer":"minmax"})";
  const std::string acts =
      R"("input_activations":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16,
         "symmetric":true,"dynamic":"local"})";
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = format(packing_ct_nvfp4, kNvfp4);
  EXPECT_EQ(difference(read(config(weights), tensors_of(s)).summary, s), "");
  for (auto& [name, f] : s.linears) f.spec.activations = ActQuant::tensor;
  EXPECT_EQ(difference(read(config(weights + "," + acts), tensors_of(s)).summary, s), "");
  std::string wrong = weights;
  wrong.replace(wrong.find(":16"), 3, ":32");
  EXPECT_NE(message_of([&] { read(config(wrong), tensors_of(s)); }).find("group_size: found 32; supported: 16"),
            std::string::npos);
}

// Configs of 2:4 files: the library's and AutoGPTQ's.
TEST(CheckpointFormat, Marlin24IsRead) {
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = format(packing_ct_marlin_24);
  const std::string library =
      R"({"quant_method":"compressed-tensors","format":"marlin-24","ignore":["lm_head"],
          "sparsity_config":{"format":"dense","sparsity_structure":"2:4"},"config_groups":{"group_0":{
          "targets":["Linear"],"weights":{"num_bits":4,"type":"int","strategy":"group","group_size":128}}}})";
  EXPECT_EQ(difference(read(library, tensors_of(s)).summary, s), "");
  for (auto& [name, f] : s.linears) f.packing = &packing_marlin_24;
  const std::string gptq =
      R"({"quant_method":"gptq","bits":4,"group_size":128,"sym":true,"checkpoint_format":"marlin_24"})";
  const Read r = read(gptq, tensors_of(s));
  EXPECT_EQ(difference(r.summary, s), "");
  EXPECT_EQ(r.name, "marlin_24");
}

// --- fp8 and modelopt

QuantSpec fp8_f32(ActQuant a, int64_t group, int64_t out_group) {
  QuantSpec s = fp8(a, group, out_group);
  s.scale_dtype = DType::f32;
  return s;
}

QuantizationSummary all_but_one(const LinearFormat& f) {
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = f;
  s.linears.erase(kLinears[2]);
  s.dense = {kLinears[2]};
  return s;
}

TEST(Fp8, WhatIsWrittenIsReadBack) {
  for (const LinearFormat& f : {format(packing_fp8, fp8_f32(ActQuant::token, -1, 256)),
                                format(packing_fp8, fp8_f32(ActQuant::tensor, -1, 256)),
                                format(packing_fp8_block, fp8_f32(ActQuant::token, 128, 128))}) {
    const QuantizationSummary s = all_but_one(f);
    EXPECT_EQ(format_fp8.cannot_describe(s), "");
    const json c = json::parse(format_fp8.write_config(s));
    EXPECT_EQ(c["activation_scheme"], f.spec.activations == ActQuant::tensor ? "static" : "dynamic");
    EXPECT_EQ(c["ignored_layers"], json({kLinears[2], "lm_head"}));
    EXPECT_EQ(c["modules_to_not_convert"], c["ignored_layers"]);
    const Read r = read(c.dump(), tensors_of(s));
    EXPECT_EQ(r.name, "fp8");
    EXPECT_EQ(difference(r.summary, s), "");
    std::string why;
    EXPECT_EQ(choose_packing(format_fp8, f.spec, 256, 256, false, &why), f.packing) << why;
  }
}

TEST(Fp8, OneConfigHasOneScheme) {
  QuantizationSummary s = all_but_one(format(packing_fp8, fp8_f32(ActQuant::token, -1, 256)));
  s.linears[kLinears[0]].spec.out_group = 512;  // of a linear with more outputs
  EXPECT_EQ(format_fp8.cannot_describe(s), "");
  s.linears[kLinears[0]].spec.activations = ActQuant::tensor;
  EXPECT_NE(format_fp8.cannot_describe(s).find("one scheme for all"), std::string::npos);
  s.linears[kLinears[0]].spec.out_group = 1;
  EXPECT_NE(format_fp8.cannot_describe(s).find("a scale per output"), std::string::npos);
}

TEST(Fp8, ForeignConfigs) {
  // As DeepSeek publishes it.
  const QuantizationSummary s = all_but_one(format(packing_fp8_block, fp8_f32(ActQuant::token, 128, 128)));
  const std::string deepseek =
      R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","scale_fmt":"ue8m0",
          "weight_block_size":[128,128]})";
  EXPECT_EQ(difference(read(deepseek, tensors_of(s)).summary, s), "");
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"quant_method":"fp8"})", "activation_scheme"},
      {R"({"quant_method":"fp8","activation_scheme":"dynamic","fmt":"e5m2"})", "e5m2"},
      {R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128]})", "of a block"},
      {R"({"quant_method":"fp8","activation_scheme":"static","weight_block_size":[128,128]})", "blocks"}};
  for (const auto& [config, word] : wrong) {
    const std::string what = message_of([&] { read(config, tensors_of(s)); });
    EXPECT_NE(what.find(word), std::string::npos) << what;
  }
}

TEST(ModelOpt, WhatIsWrittenIsReadBackFromBothFiles) {
  QuantSpec nvfp4_acts = kNvfp4;
  nvfp4_acts.activations = ActQuant::tensor;
  const std::pair<LinearFormat, const char*> cases[] = {
      {format(packing_fp8, fp8_f32(ActQuant::tensor, -1, 256)), "FP8"},
      {format(packing_fp8, fp8_f32(ActQuant::token, -1, 1)), "FP8_PER_CHANNEL_PER_TOKEN"},
      {format(packing_modelopt_nvfp4, kNvfp4), "W4A16_NVFP4"},
      {format(packing_modelopt_nvfp4, nvfp4_acts), "NVFP4"}};
  for (const auto& [f, algorithm] : cases) {
    const QuantizationSummary s = all_but_one(f);
    EXPECT_EQ(format_modelopt.cannot_describe(s), "");
    const json c = json::parse(format_modelopt.write_config(s));
    EXPECT_EQ(c["quant_algo"], algorithm);
    EXPECT_EQ(c["producer"]["name"], "modelopt");
    const ConfigFile side = format_modelopt.side_file(s);
    EXPECT_EQ(side.name, "hf_quant_config.json");
    EXPECT_EQ(json::parse(side.text)["quantization"]["exclude_modules"], json({kLinears[2], "lm_head"}));
    for (const Read& r : {read(c.dump(), tensors_of(s)), read("", tensors_of(s), side)}) {
      EXPECT_EQ(r.name, "modelopt");
      EXPECT_EQ(difference(r.summary, s), "") << algorithm;
    }
    std::string why;
    EXPECT_EQ(choose_packing(format_modelopt, f.spec, 256, 256, false, &why), f.packing) << why;
  }
}

TEST(ModelOpt, AlgorithmsOfLayersAndWhatIsNotUnderstood) {
  QuantizationSummary s;
  s.linears[kLinears[0]] = format(packing_fp8, fp8_f32(ActQuant::token, -1, 256));
  s.linears[kLinears[1]] = format(packing_modelopt_nvfp4, kNvfp4);
  s.linears[kLinears[3]] = format(packing_ct_float, fp8_f32(ActQuant::none, 128, 128));
  EXPECT_NE(format_modelopt.cannot_describe(s), "");
  const json layers = {{kLinears[0], {{"quant_algo", "FP8"}}},
                       {kLinears[1], {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
                       {kLinears[3], {{"quant_algo", "FP8_PB_WO"}}}};
  json c = {{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}};
  EXPECT_EQ(difference(read(c.dump(), tensors_of(s)).summary, s), "");
  c.erase("quantized_layers");
  EXPECT_NE(message_of([&] { read(c.dump(), tensors_of(s)); }).find("quantized_layers"), std::string::npos);
  c["quant_algo"] = "W4A8_AWQ";
  EXPECT_NE(message_of([&] { read(c.dump(), tensors_of(s)); }).find("\"W4A8_AWQ\""), std::string::npos);
  EXPECT_NE(format_modelopt.cannot_describe(
                all_but_one(format(packing_fp8, fp8_f32(ActQuant::token, -1, 256)))).find("acts=tensor"),
            std::string::npos);
}

// llm-compressor's own form: what it always writes, with classes, patterns and ignored modules.
TEST(CompressedTensors, TargetsByNamePatternAndClass) {
  const std::string config =
      R"({"quant_method":"compressed-tensors","version":"0.13.0","format":"mixed-precision",
    "quantization_status":"compressed","global_compression_ratio":null,"kv_cache_scheme":null,
    "ignore":["lm_head","re:.*\\.10\\."],"sparsity_config":{},"transform_config":{},"config_groups":{
    "group_0":{"targets":["Linear"],"format":"pack-quantized","input_activations":null,"output_activations":null,
      "weights":{"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":128,
        "block_structure":null,"dynamic":false,"actorder":null,"observer":"minmax","observer_kwargs":{}}},
    "group_1":{"targets":["re:.*\\.a$"],"format":"float-quantized","output_activations":null,
      "weights":{"num_bits":8,"type":"float","symmetric":true,"strategy":"tensor","dynamic":false},
      "input_activations":{"num_bits":8,"type":"float","symmetric":true,"strategy":"tensor","dynamic":false}},
    "group_2":{"targets":["model.layers.1.a"],"format":"float-quantized",
      "weights":{"num_bits":8,"type":"float","strategy":"block","block_structure":"128x128"},
      "input_activations":{"num_bits":8,"type":"float","strategy":"group","group_size":128,"dynamic":true}}}})";
  QuantizationSummary s;
  s.linears["model.layers.0.a"] = format(packing_ct_float, fp8(ActQuant::tensor, -1, 256));
  s.linears["model.layers.0.b"] = format(packing_ct_pack);
  s.linears["model.layers.1.a"] = format(packing_ct_float, fp8(ActQuant::token, 128, 128));
  s.linears["model.layers.1.b"] = format(packing_ct_pack);
  s.dense = {"model.layers.10.a"};
  EXPECT_EQ(difference(read(config, tensors_of(s)).summary, s), "");
  // A target whose tensor is dense after all stays dense.
  Present dense = tensors_of(s);
  dense["model.layers.0.a.weight"].first = DType::bf16;
  EXPECT_EQ(read(config, dense).summary.linears.count("model.layers.0.a"), 0u);
}

TEST(CompressedTensors, OnlyAGroupOrderNeedsTheIndex) {
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = format(packing_ct_pack, {}, true);
  json c = json::parse(format_compressed_tensors.write_config(s));
  json& order = c["config_groups"]["group_0"]["weights"]["actorder"];
  EXPECT_EQ(order, "group");
  for (const json& value :
       {json("dynamic"), json(true), json("weight"), json("static"), json(false), json()}) {
    order = value;
    const bool reordered = value == "dynamic" || value == true;
    EXPECT_EQ(read(c.dump(), tensors_of(s)).summary.linears.at(kLinears[0]).act_order, reordered) << value;
  }
}

TEST(CompressedTensors, WhatIsNotUnderstoodIsNamed) {
  QuantizationSummary s;
  for (const std::string& name : kLinears)
    s.linears[name] = format(packing_ct_float, fp8(ActQuant::token, -1, 1));
  const json good = json::parse(format_compressed_tensors.write_config(s));
  const std::string group = "/config_groups/group_0";
  const std::tuple<std::string, json, const char*> cases[] = {
      {"/config_groups", json(), "config_groups: expected an object"},
      {group, json({"Linear"}), "group_0: expected an object"},
      {group + "/format", "sparse-24-bitmask", "known: pack-quantized, int-quantized, float-quantized"},
      {group + "/format", "int-quantized", "int8 sym"},
      {group + "/targets", "Linear", "a list of strings"},
      {group + "/targets/0", "re:(", "regular expression"},
      {group + "/output_activations", json::object(), "output_activations"},
      {group + "/weights", json(), "weights: expected"},
      {group + "/weights/type", "nf4", "\"nf4\""},
      {group + "/weights/num_bits", 5, "num_bits: found 5"},
      {group + "/weights/num_bits", 4, "tensor_group, group"},
      {group + "/weights/strategy", "tensor_group", "tensor_group"},
      {group + "/weights/strategy", "group", "group_size"},
      {group + "/weights/strategy", "block", "block_structure"},
      {group + "/weights/dynamic", true, "dynamic"},
      {group + "/weights/actorder", "random", "actorder"},
      {group + "/weights/actorder", "group", "act-order"},
      {group + "/input_activations/num_bits", 4, "input_activations.num_bits"},
      {group + "/input_activations/type", "int", "as the weights"},
      {group + "/input_activations/symmetric", false, "symmetric"},
      {group + "/input_activations/strategy", "group", "block weights"},
      {group + "/input_activations/dynamic", false, "strategy"},
      {"/sparsity_config", json({{"format", "marlin-24"}}), "marlin-24"},
      {"/transform_config", json({{"config_groups", {{"u", json::object()}}}}), "transforms"},
      {"/ignore", "lm_head", "a list of strings"},
  };
  for (const auto& [at, value, word] : cases) {
    json broken = good;
    broken[json::json_pointer(at)] = value;
    const std::string what = message_of([&] { read(broken.dump(), tensors_of(s)); });
    EXPECT_NE(what.find(word), std::string::npos) << at << ": " << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
  Present head = tensors_of(s);
  head["lm_head.weight_scale"] = {DType::bf16, {256, 1}};
  EXPECT_NE(message_of([&] { read(good.dump(), head); }).find("quantized head"), std::string::npos);
  EXPECT_EQ(message_of([&] { read(good.dump(), tensors_of(s)); }), "");
}

}  // namespace
}  // namespace fewbit::test

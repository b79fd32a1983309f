// Checkpoint formats of integers (GPTQ, Marlin, AWQ): what write_config says, read_quantization understands; other
// people's configs; and what is said of those that nobody understands.
#include "tests/formats/config_fixture.h"

namespace fewbit::test {
namespace {

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
  r = read(R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":true,"sym":false})", with_suffix(".qweight"));
  EXPECT_EQ(r.name, "gptq");
  EXPECT_EQ(first(r).packing, &packing_gptq);
  EXPECT_TRUE(first(r).act_order);
  EXPECT_FALSE(first(r).spec.symmetric);
  r = read(R"({"method":"gptq","format":"gptq_v2","bits":2,"group_size":32})", with_suffix(".qweight"));
  EXPECT_EQ(first(r).packing, &packing_gptq_v2);
  r = read("", with_suffix(".qweight"), {"quantize_config.json", R"({"bits":8,"group_size":64,"desc_act":false})"});
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

TEST(CheckpointFormat, WhatIsNotUnderstoodIsNamed) {
  const std::string base = R"("quant_method":"gptq","bits":4,"group_size":128)";
  const auto fewbit = [&](const std::string& body) { return "{" + base + ",\"fewbit\":{" + body + "}}"; };
  const std::string common = R"("default":{"packing":"marlin","bits":4,"group_size":128,"sym":true})";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"quant_method":"aqlm","bits":4})", "\"aqlm\", which AQLM"},
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
      {fewbit("\"version\":1," + common + R"(,"linears":{"x":{"packing":"gptq_v2","bits":4,"group_size":128}})"),
       "no such linear"},
      {fewbit("\"version\":1," + common +
              R"(,"linears":{"model.layers.0.a":{"packing":"gptq_v2","bits":3,"group_size":128}})"),
       "model.layers.0.a.qweight' is missing"},
  };
  for (const auto& [config, word] : cases) {
    const std::string what = complaint_of([&] { read(config, with_suffix(".B")); });
    EXPECT_NE(what.find(word), std::string::npos) << config << "\n" << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
}

TEST(CheckpointFormat, TheDefaultDependsOnTheGridAndTheCache) {
  const QuantSpec weights{.bits = 4, .group = 128}, bytes{.bits = 8, .group = -1, .activations = ActQuant::token};
  EXPECT_EQ(default_checkpoint_format(weights, false).name, "marlin");
  EXPECT_EQ(default_checkpoint_format(weights, true).name, "compressed-tensors");
  EXPECT_EQ(default_checkpoint_format(bytes, false).name, "compressed-tensors");
  EXPECT_EQ(default_checkpoint_format(kNvfp4, false).name, "compressed-tensors");
  EXPECT_EQ(formats_with(&CheckpointFormat::packed_ends), "marlin, gptq, compressed-tensors and gguf");
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
  EXPECT_NE(complaint_of([] {
              checkpoint_format("ggml");
            }).find("marlin gptq awq compressed-tensors marlin-24 fp8 modelopt mxfp4 bf16"),
            std::string::npos);
}

// What --format marlin-24 writes, with a linear that stays dense and an FP8 cache.
TEST(CheckpointFormat, Marlin24IsWrittenAndReadBack) {
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = format(packing_ct_marlin_24);
  s.linears.erase(kLinears[1]);
  s.dense = {kLinears[1]};
  s.fp8_kv_cache = true;
  const json c = json::parse(format_marlin_24.write_config(s));
  EXPECT_EQ(c["format"], "marlin-24");
  EXPECT_EQ(c["config_groups"]["group_0"]["format"], "marlin-24");
  EXPECT_EQ(c["sparsity_config"], json({{"format", "dense"}, {"sparsity_structure", "2:4"}}));
  const Read r = read(c.dump(), tensors_of(s));
  EXPECT_EQ(r.name, "compressed-tensors");
  EXPECT_EQ(difference(r.summary, s), "");
  EXPECT_EQ(format_marlin_24.write_config({}), "");
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
  EXPECT_NE(format_awq.cannot_describe(s).find("layers.1 stays dense and is a part of the name"), std::string::npos);
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
    const std::string what = complaint_of([&] { read(config, with_suffix(".qweight")); });
    EXPECT_NE(what.find(word), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace fewbit::test

// compressed-tensors: what write_config says, read_quantization understands; and llm-compressor's own configs.
#include "tests/formats/config_fixture.h"

namespace fewbit::test {
namespace {

QuantSpec int8_acts(ActQuant a, int64_t out_group = 1) {
  return {.bits = 8, .group = -1, .scale_dtype = DType::bf16, .out_group = out_group, .activations = a};
}
TEST(CompressedTensors, EverySchemeAloneIsReadBack) {
  std::vector<LinearFormat> formats;
  for (DType scale : {DType::f16, DType::bf16, DType::f32})
    for (int bits : {2, 3, 4, 8})
      formats.push_back(format(packing_ct_pack, {.bits = bits, .group = 64, .scale_dtype = scale}, bits == 4));
  formats.push_back(format(packing_ct_pack, {.bits = 4, .group = -1, .symmetric = false}));
  for (const int act_bits : {4, 8})
    for (const int64_t turn : {0, 128})
      formats.push_back(
          format(packing_ct_pack, {.bits = 4, .activations = ActQuant::token, .act_bits = act_bits, .turn = turn}));
  formats.push_back(
      format(packing_ct_pack, {.bits = 4, .activations = ActQuant::token, .act_clip = 80, .act_bits = 4, .turn = 128}));
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
    if (f.spec.two_level() && f.spec.activations == ActQuant::tensor) {
      EXPECT_EQ(c["config_groups"]["group_0"]["input_activations"]["scale_dtype"], "torch.float8_e4m3fn");
    }
    EXPECT_EQ(c["quantization_status"], "compressed");
    EXPECT_EQ(c["ignore"], json({kLinears[2], "lm_head"}));
    ASSERT_EQ(c["config_groups"].size(), 1u);
    EXPECT_EQ(c["config_groups"]["group_0"]["targets"], json({"Linear"}));
    EXPECT_EQ(c["config_groups"]["group_0"]["format"], c["format"]);
    std::string why;
    EXPECT_EQ(choose_packing(format_compressed_tensors, f.spec, 256, 256, f.act_order, &why), f.packing) << why;
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
      "config_groups":{"group_0":{"targets":["Linear"],)" +
           group + "}}}";
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
  EXPECT_NE(complaint_of([&] { read(config(wrong), tensors_of(s)); }).find("group_size: found 32; supported: 16"),
            std::string::npos);
}

// It stands where the library keeps it and does not look.
TEST(CompressedTensors, TheShareOfARowThatInt4InputsReach) {
  QuantSpec spec{.bits = 4, .activations = ActQuant::token, .act_clip = 85, .act_bits = 4};
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = format(packing_ct_pack, spec);
  json c = json::parse(format_compressed_tensors.write_config(s));
  json& acts = c["config_groups"]["group_0"]["input_activations"];
  EXPECT_EQ(acts["observer_kwargs"], json({{"clip_ratio", 0.85}}));
  acts["observer_kwargs"] = json::object();
  EXPECT_EQ(read(c.dump(), tensors_of(s)).summary.linears.at(kLinears[0]).spec.act_clip, 100);
  for (const json& wrong : {json(0.855), json(0), json(1.5), json("much"), json(-0.8)}) {
    acts["observer_kwargs"] = {{"clip_ratio", wrong}};
    EXPECT_NE(complaint_of([&] { read(c.dump(), tensors_of(s)); }).find("clip_ratio: expected whole hundredths"),
              std::string::npos)
        << wrong;
  }
  acts["observer_kwargs"] = {{"clip_ratio", 0.85}};
  acts["num_bits"] = 8;
  EXPECT_NE(complaint_of([&] { read(c.dump(), tensors_of(s)); }).find("clip_ratio: found 0.85; supported: none but"),
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
  for (const json& value : {json("dynamic"), json(true), json("weight"), json("static"), json(false), json()}) {
    order = value;
    const bool reordered = value == "dynamic" || value == true;
    EXPECT_EQ(read(c.dump(), tensors_of(s)).summary.linears.at(kLinears[0]).act_order, reordered) << value;
  }
}

TEST(CompressedTensors, WhatIsNotUnderstoodIsNamed) {
  QuantizationSummary s;
  for (const std::string& name : kLinears) s.linears[name] = format(packing_ct_float, fp8(ActQuant::token, -1, 1));
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
      {"/transform_config", json({{"config_groups", {{"u", json::object()}}}}), "config_groups.u.type"},
      {"/ignore", "lm_head", "a list of strings"},
  };
  for (const auto& [at, value, word] : cases) {
    json broken = good;
    broken[json::json_pointer(at)] = value;
    const std::string what = complaint_of([&] { read(broken.dump(), tensors_of(s)); });
    EXPECT_NE(what.find(word), std::string::npos) << at << ": " << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
  Present head = tensors_of(s);
  head["lm_head.weight_scale"] = {DType::bf16, {256, 1}};
  EXPECT_NE(complaint_of([&] { read(good.dump(), head); }).find("quantized head"), std::string::npos);
  EXPECT_EQ(complaint_of([&] { read(good.dump(), tensors_of(s)); }), "");
}

}  // namespace
}  // namespace fewbit::test

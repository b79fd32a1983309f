// FP8 as transformers has it, and ModelOpt: what write_config says, read_quantization understands; other people's
// configs.
#include "tests/formats/config_fixture.h"

namespace fewbit::test {
namespace {

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
  for (const LinearFormat& f :
       {format(packing_fp8, fp8_f32(ActQuant::token, -1, 256)), format(packing_fp8, fp8_f32(ActQuant::tensor, -1, 256)),
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
    const std::string what = complaint_of([&] { read(config, tensors_of(s)); });
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
  EXPECT_NE(complaint_of([&] { read(c.dump(), tensors_of(s)); }).find("quantized_layers"), std::string::npos);
  c["quant_algo"] = "W4A8_AWQ";
  EXPECT_NE(complaint_of([&] { read(c.dump(), tensors_of(s)); }).find("\"W4A8_AWQ\""), std::string::npos);
  EXPECT_NE(format_modelopt.cannot_describe(all_but_one(format(packing_fp8, fp8_f32(ActQuant::token, -1, 256))))
                .find("acts=tensor"),
            std::string::npos);
}

}  // namespace
}  // namespace fewbit::test

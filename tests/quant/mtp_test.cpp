// The layer that predicts further tokens: quantized where a rule names it, by methods without statistics.
#include "src/model/mtp.h"

#include "src/run/speculate/mtp_head.h"
#include "tests/quant/lowbit.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

struct Family {
  const char *model, *glob;
};

class FurtherLayer : public LowBit, public ::testing::WithParamInterface<Family> {
 protected:
  // What the layer says of some states and ids.
  Tensor said(const fs::path& model) {
    constexpr int64_t kTokens = 24;
    const Checkpoint c = Checkpoint::open(model);
    MtpHead head(ex_, open_mtp(c), {.dtype = DType::f32}, kTokens);
    std::vector<int32_t> ids(kTokens);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 131 + 7) % 250);
    Tensor states = Tensor::host(DType::f32, {kTokens, c.spec.hidden});
    for (int64_t i = 0; i < states.numel(); ++i) states.as<float>()[i] = std::sin(static_cast<float>(i * i % 1013));
    head.see(0, states);
    return head.logits_of(ids, states);
  }
  // Of the median token: one that a near tie sends to another expert is far off.
  static double median_error(const Tensor& found, const Tensor& exact) {
    std::vector<double> errors;
    for (int64_t t = 0; t < exact.rows(); ++t)
      errors.push_back(relative_error(found.view().row_range(t, t + 1), exact.view().row_range(t, t + 1)));
    std::nth_element(errors.begin(), errors.begin() + std::ssize(errors) / 2, errors.end());
    return errors[errors.size() / 2];
  }
  static size_t linears_of_layer(const Checkpoint& c) {
    size_t n = 0;
    for (const auto& group : mtp_linears(c.spec, c.store)) n += group.size();
    return n;
  }
};

TEST_P(FurtherLayer, IsWrittenReadAndRun) {
  const fs::path golden = reference(std::string("goldens/models/") + GetParam().model);
  FEWBIT_NEEDS_REFERENCE(std::string("goldens/models/") + GetParam().model + "/config.json");
  const Checkpoint model = Checkpoint::open(golden);
  const Tensor exact = said(golden);
  struct Case {
    const char *base, *rule;
    double error;
  };
  for (const Case& c : {Case{"gptq int4 g16 format=marlin", "rtn int8 g16", .02},
                        {"rtn int8 g16 format=compressed-tensors", "g16", .02},
                        {"awq+gptq int4 g16 format=compressed-tensors", "rtn int8", .02},
                        {"fp8 format=compressed-tensors", "acts=token", .1}}) {
    SCOPED_TRACE(std::string(GetParam().model) + ": " + c.base);
    const std::string out = std::string("out-") + c.base;
    // The model's own linears stay, so that what differs comes from the layer.
    const QuantReport report =
        quantize(model, c.base, out, {{"*", Recipe{.keep = true}}, {GetParam().glob, parse_recipe(c.rule)}});
    EXPECT_EQ(report.linears.size(), linears_of_layer(model));
    expect_verified(dir_ / out);
    const Checkpoint read = Checkpoint::open(dir_ / out);
    EXPECT_EQ(read.others.size(), linears_of_layer(model));
    const double error = median_error(said(dir_ / out), exact);
    EXPECT_GT(error, 0) << "the layer's own weights still run";
    EXPECT_LT(error, c.error);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FurtherLayer,
                         ::testing::Values(Family{"qwen3.5", "mtp.*"}, Family{"glm4-moe", "model.layers.3.*"}),
                         [](const auto& each) { return std::string(each.param.model).substr(0, 4); });

using FurtherLayerPlan = LowBit;

TEST_F(FurtherLayerPlan, IsMeantOnlyByItsName) {
  FEWBIT_GOLDEN("qwen3.5");
  const Checkpoint c = Checkpoint::open(golden);
  const auto plan = [&](std::vector<Rule> rules) {
    return make_plan(c, {.base = parse_recipe("rtn int4 g32 format=gptq"), .rules = std::move(rules)});
  };
  EXPECT_EQ(plan({{"*", parse_recipe("int8")}, {"*.down_proj", parse_recipe("int8")}}).find("mtp.fc"), nullptr);
  EXPECT_EQ(plan({{"mtp.*", parse_recipe("int8")}, {"mtp.fc", Recipe{.keep = true}}}).find("mtp.fc"), nullptr);
  const QuantPlan all = plan({{"mtp.*", parse_recipe("int8")}});
  ASSERT_NE(all.find("mtp.fc"), nullptr);
  EXPECT_TRUE(all.refusals.empty());
  const QuantizationSummary summary = summary_of(c, all);
  EXPECT_EQ(summary.linears.count("mtp.layers.0.self_attn.q_proj"), 1u);
  for (const std::string& name : summary.dense) EXPECT_EQ(name.find("mtp."), std::string::npos) << name;
  for (const KeptGroup& k : all.kept) EXPECT_EQ(k.first.find("mtp."), std::string::npos) << k.first;
  EXPECT_LT(all.out_bytes, plan({}).out_bytes);
}

TEST_F(FurtherLayerPlan, WhatItCannotGetIsRefused) {
  FEWBIT_GOLDEN("qwen3.5");
  const auto expect = [&](const fs::path& model, const char* base, const char* rule, const char* part) {
    const std::string why = refusal(model, base, {{"mtp.*", parse_recipe(rule)}});
    EXPECT_NE(why.find(part), std::string::npos) << base << ", " << rule << ": " << why;
  };
  expect(golden, "gptq int4 g32", "int8", "gptq looks at inputs; \"rtn int8 g32 sym\" or \"fp8\" look at none");
  expect(golden, "awq+gptq int4 g32", "int4", "gptq looks at inputs");
  expect(golden, "fp8 format=fp8 tensor", "acts=tensor", "acts=tensor looks at inputs");
  expect(golden, "rtn format=gguf:q8_0", "format=gguf:q8_0", "no place for it");
  quantize(golden, "fp8 block32 format=fp8", "fp8", {{"mtp.*", parse_recipe("block32")}});
  expect(dir_ / "fp8", "rtn int4 g32", "int8", "is packed in the model");
  if (const fs::path stacked = reference("goldens/models/qwen3.5-moe"); fs::exists(stacked))
    expect(stacked, "rtn int4 g32", "int8", "lies in a stack of experts");
}

}  // namespace
}  // namespace fewbit::test

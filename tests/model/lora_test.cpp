// LoRA adapters: the weights that a checkpoint gives with one, and what is refused.
#include "src/model/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/support/paths.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

const std::string kModule = "model.layers.1.self_attn.v_proj";  // [128, 256] of the demo model
constexpr int64_t kOut = 128, kIn = 256, kRank = 4;

class Lora : public ::testing::Test {
 protected:
  void write(const std::string& config, const std::string& module = kModule) {
    fs::remove_all(dir_.path() / "written");
    const auto writer = container_safetensors.create(dir_.path() / "written", {});
    writer->add("base_model.model." + module + ".lora_A.weight", a_);
    writer->add("base_model.model." + module + ".lora_B.weight", b_);
    writer->finish();
    fs::rename(dir_.path() / "written/model.safetensors", dir_.path() / "adapter_model.safetensors");
    std::ofstream(dir_.path() / "adapter_config.json") << config;
  }

  static Checkpoint demo() { return Checkpoint::open(in_source("calib_data/demo-model")); }
  Checkpoint merged() { return with_adapter(demo(), dir_.path(), digest_); }

  // W + scale B A, rounded to the type of W; other weights are as they were.
  void expect_scale(double scale) {
    const Checkpoint before = demo(), after = merged();
    const std::string name = kModule + ".weight", other = "model.layers.1.self_attn.k_proj.weight";
    ASSERT_EQ(after.store.get(name).dtype, DType::bf16);
    Tensor sum = float_values(before.store.get(name));
    for (int64_t o = 0; o < kOut; ++o)
      for (int64_t i = 0; i < kIn; ++i) {
        double delta = 0;
        for (int64_t k = 0; k < kRank; ++k)
          delta += static_cast<double>(b_.as<float>()[o * kRank + k]) * a_.as<float>()[k * kIn + i];
        sum.as<float>()[o * kIn + i] += static_cast<float>(scale * delta);
      }
    EXPECT_LT(relative_error(float_values(after.store.get(name)), sum), tol::kBf16Op);
    EXPECT_EQ(first_difference(after.store.get(other), before.store.get(other)), "");
  }

  std::string refusal() {
    try {
      merged();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  TempDir dir_;
  Tensor a_ = random_normal(DType::f32, {kRank, kIn}, 1), b_ = random_normal(DType::f32, {kOut, kRank}, 2);
  std::string digest_;
};

TEST_F(Lora, AddsTheScaledProduct) {
  write(
      R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "fan_in_fan_out": false, "use_dora": false, "bias": "none"})");
  expect_scale(2);
}

TEST_F(Lora, ScalesByTheRootOfTheRankAndByPatterns) {
  write(R"({"r": 4, "lora_alpha": 8, "use_rslora": true})");
  expect_scale(4);
  write(R"({"r": 16, "lora_alpha": 8, "rank_pattern": {"v_proj": 4}, "alpha_pattern": {"self_attn.v_proj": 12}})");
  expect_scale(3);
}

TEST_F(Lora, DigestIsThatOfConfigAndWeights) {
  write(R"({"r": 4, "lora_alpha": 8})");
  merged();
  const std::string first = digest_;
  merged();
  EXPECT_EQ(digest_, first);
  write(R"({"r": 4, "lora_alpha": 9})");
  merged();
  EXPECT_NE(digest_, first);
}

TEST_F(Lora, WhatIsNoPlainLoraIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"r": 4, "lora_alpha": 8, "use_dora": true})", "use_dora"},
      {R"({"r": 4, "lora_alpha": 8, "modules_to_save": ["lm_head"]})", "modules_to_save"},
      {R"({"r": 4, "lora_alpha": 8, "bias": "all"})", "bias"},
      {R"({"peft_type": "IA3", "r": 4, "lora_alpha": 8})", "IA3"},
      {R"({"r": 4})", "lora_alpha"},
      {R"({"r": 8, "lora_alpha": 8})", "rank 4 in the tensors, 8"},
      {R"([])", "adapter_config.json"},
  };
  for (const auto& [config, word] : cases) {
    write(config);
    EXPECT_NE(refusal().find(word), std::string::npos) << config << ": " << refusal();
  }
}

TEST_F(Lora, TensorsWithoutAPlaceAreNamedWithTheNearest) {
  write(R"({"r": 4, "lora_alpha": 8})", "model.layers.1.self_attn.v_porj");
  EXPECT_NE(refusal().find("the nearest is " + kModule), std::string::npos) << refusal();
  write(R"({"r": 4, "lora_alpha": 8})", "model.layers.1.mlp.down_proj");
  EXPECT_NE(refusal().find("expected lora_A [r, "), std::string::npos) << refusal();
  b_.as<float>()[3] = NAN;
  write(R"({"r": 4, "lora_alpha": 8})");
  EXPECT_NE(refusal().find("NaN"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace fewbit::test

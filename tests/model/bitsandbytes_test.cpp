// Checkpoints of bitsandbytes: hand-made codes and the values that its formulas give.
#include "src/model/foreign/foreign.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/model/checkpoint.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kLinear = "model.layers.1.self_attn.v_proj";  // [128, 256] of the demo model
constexpr int64_t kOut = 128, kIn = 256, kCount = kOut * kIn, kBlock = 64;

// The demo model with one linear as bitsandbytes stores it.
class Bitsandbytes : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::copy(in_source("calib_data/demo-model"), model_, fs::copy_options::recursive);
    Json config = Json::parse(std::ifstream(model_ / "config.json"));
    config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
    std::ofstream(model_ / "config.json") << config.dump(1);
  }

  void write(std::vector<std::pair<std::string, Tensor>> tensors) {
    const WeightStore demo = WeightStore::open(in_source("calib_data/demo-model"));
    const auto writer = container_safetensors.create(dir_ / "written", {});
    for (const auto& [name, info] : demo.index().tensors)
      if (name != kLinear + ".weight") writer->add(name, demo.get(name));
    for (const auto& [suffix, t] : tensors) writer->add(kLinear + suffix, t);
    writer->finish();
    fs::rename(dir_ / "written/model.safetensors", model_ / "model.safetensors");
    fs::remove_all(dir_ / "written");
  }

  static Tensor text(const Json& j) {
    const std::string s = j.dump();
    Tensor t = Tensor::host(DType::u8, {static_cast<int64_t>(s.size())});
    std::copy(s.begin(), s.end(), t.as<uint8_t>());
    return t;
  }
  static Tensor bytes(Shape shape, int step) {
    Tensor t = Tensor::host(DType::u8, shape);
    for (int64_t i = 0; i < t.numel(); ++i) t.as<uint8_t>()[i] = static_cast<uint8_t>(i * step + i / 7);
    return t;
  }
  static Tensor floats(int64_t n, float first, float step) {
    Tensor t = Tensor::host(DType::f32, {n});
    for (int64_t i = 0; i < n; ++i) t.as<float>()[i] = first + step * static_cast<float>(i % 97);
    return t;
  }

  TempDir dir_;
  fs::path model_ = dir_ / "model";
};

TEST_F(Bitsandbytes, FourBitsAreHighNibbleFirstTimesTheBlocksScale) {
  const Tensor codes = bytes({kCount / 2, 1}, 37), map = floats(16, -1, 0.125f),
               absmax = floats(kCount / kBlock, 0.5f, 0.01f);
  const Json state = {{"quant_type", "nf4"}, {"blocksize", kBlock}, {"dtype", "float32"}, {"shape", {kOut, kIn}}};
  std::vector<std::pair<std::string, Tensor>> tensors;
  tensors.emplace_back(".weight", clone_host(codes));
  tensors.emplace_back(".weight.absmax", clone_host(absmax));
  tensors.emplace_back(".weight.quant_map", clone_host(map));
  tensors.emplace_back(".weight.quant_state.bitsandbytes__nf4", text(state));
  write(std::move(tensors));
  const Checkpoint c = Checkpoint::open(model_);
  EXPECT_EQ(c.format, "bitsandbytes");
  EXPECT_FALSE(c.store.has(kLinear + ".weight.absmax"));
  const ConstTensorView w = c.store.expect(kLinear + ".weight", {DType::f32}, {kOut, kIn});
  for (int64_t i = 0; i < kCount; ++i) {
    const int byte = codes.as<uint8_t>()[i / 2], code = i % 2 == 0 ? byte / 16 : byte % 16;
    ASSERT_EQ(w.as<float>()[i], map.as<float>()[code] * absmax.as<float>()[i / kBlock]) << i;
  }
}

TEST_F(Bitsandbytes, ScalesThatWereQuantizedAgain) {
  const int64_t blocks = kCount / kBlock;
  const Tensor codes = bytes({kCount / 2, 1}, 5), map = floats(16, -1, 0.125f), absmax = bytes({blocks}, 11);
  const Tensor nested_map = floats(256, -1, 0.01f), nested = floats(blocks / 256, 0.25f, 0.5f);
  const Json state = {{"quant_type", "fp4"},   {"blocksize", kBlock},     {"dtype", "float32"},
                      {"shape", {kOut, kIn}},  {"nested_blocksize", 256}, {"nested_dtype", "float32"},
                      {"nested_offset", 0.75f}};
  std::vector<std::pair<std::string, Tensor>> tensors;
  tensors.emplace_back(".weight", clone_host(codes));
  tensors.emplace_back(".weight.absmax", clone_host(absmax));
  tensors.emplace_back(".weight.quant_map", clone_host(map));
  tensors.emplace_back(".weight.nested_absmax", clone_host(nested));
  tensors.emplace_back(".weight.nested_quant_map", clone_host(nested_map));
  tensors.emplace_back(".weight.quant_state.bitsandbytes__fp4", text(state));
  write(std::move(tensors));
  const Checkpoint c = Checkpoint::open(model_);
  const ConstTensorView w = c.store.expect(kLinear + ".weight", {DType::f32}, {kOut, kIn});
  for (int64_t i = 0; i < kCount; ++i) {
    const int byte = codes.as<uint8_t>()[i / 2], code = i % 2 == 0 ? byte / 16 : byte % 16;
    const int64_t block = i / kBlock;
    const float scale = nested_map.as<float>()[absmax.as<uint8_t>()[block]] * nested.as<float>()[block / 256] + 0.75f;
    ASSERT_FLOAT_EQ(w.as<float>()[i], map.as<float>()[code] * scale) << i;
  }
}

TEST_F(Bitsandbytes, BytesHaveAScaleForEachOutput) {
  Tensor codes = Tensor::host(DType::i8, {kOut, kIn});
  for (int64_t i = 0; i < kCount; ++i) codes.as<int8_t>()[i] = static_cast<int8_t>(i * 31 % 255 - 127);
  const Tensor scb = floats(kOut, 1, 0.1f);
  std::vector<std::pair<std::string, Tensor>> tensors;
  tensors.emplace_back(".weight", clone_host(codes));
  tensors.emplace_back(".SCB", clone_host(scb));
  write(std::move(tensors));
  const Checkpoint c = Checkpoint::open(model_);
  const ConstTensorView w = c.store.expect(kLinear + ".weight", {DType::f32}, {kOut, kIn});
  for (int64_t i = 0; i < kCount; ++i)
    ASSERT_FLOAT_EQ(w.as<float>()[i], static_cast<float>(codes.as<int8_t>()[i]) * scb.as<float>()[i / kIn] / 127) << i;
}

TEST_F(Bitsandbytes, WhatDoesNotFitIsNamed) {
  const auto refused = [&](const Json& state, int64_t scales) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    tensors.emplace_back(".weight", bytes({kCount / 2, 1}, 1));
    tensors.emplace_back(".weight.absmax", floats(scales, 1, 0));
    tensors.emplace_back(".weight.quant_map", floats(16, 0, 1));
    tensors.emplace_back(".weight.quant_state.bitsandbytes__nf4", text(state));
    write(std::move(tensors));
    try {
      Checkpoint::open(model_);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  Json state = {{"quant_type", "nf4"}, {"blocksize", kBlock}, {"dtype", "bfloat16"}, {"shape", {kOut, kIn}}};
  EXPECT_NE(refused(state, 3).find("weight.absmax': expected f32 of 512 elements, found f32 [3]"), std::string::npos);
  state["shape"] = {kIn, kOut};
  EXPECT_NE(refused(state, 512).find("expected shape [128, 256]"), std::string::npos);
  state["shape"] = {kOut, kIn};
  state["blocksize"] = 0;
  EXPECT_NE(refused(state, 512).find("block"), std::string::npos);
  EXPECT_NE(refused(Json::array(), 512).find("expected JSON"), std::string::npos);
}

TEST_F(Bitsandbytes, OtherToolsAreNamed) {
  for (const auto& [method, tool] :
       {std::pair{"exl2", "ExLlamaV2"}, {"exl3", "ExLlamaV3"}, {"quanto", "optimum-quanto"}}) {
    Json config = Json::parse(std::ifstream(model_ / "config.json"));
    config["quantization_config"] = {{"quant_method", method}};
    std::ofstream(model_ / "config.json") << config.dump(1);
    const std::string said = message_of([&] { Checkpoint::open(model_); }, ErrorKind::unsupported);
    EXPECT_NE(said.find(tool), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace fewbit::test

// What the first reading of a model finds: values that are not finite, and weights that changed since.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "formats/container.h"
#include "src/core/half.h"
#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class SourceFiles : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    fs::copy(kDemo, dir / "m");
  }
  // Puts a bf16 value into a tensor of the model `m`.
  void put(const std::string& tensor, int64_t index, float value) {
    const fs::path file = dir / "m/model.safetensors";
    const TensorInfo info = container_safetensors.open(file).tensors.at(tensor);
    ASSERT_EQ(info.dtype, DType::bf16);
    const bf16 v(value);
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(info.begin + 2 * index);
    f.write(reinterpret_cast<const char*>(&v.bits), 2);
  }
};

TEST_F(SourceFiles, ANanAnywhereIsNamedBeforeAnythingIsComputed) {
  put("model.embed_tokens.weight", 4711, NAN);
  put("model.layers.1.input_layernorm.weight", 3, INFINITY);
  for (const char* recipe : {"rtn", "gptq"}) {
    const ProcessResult r = run(std::string("quantize ") + recipe + " m out" + kFastest);
    EXPECT_EQ(r.exit_code, 1);
    for (const char* word : {"'model.embed_tokens.weight'", "element 4711", "'model.layers.1.input_layernorm.weight'",
                             "element 3", "--allow-nonfinite"})
      EXPECT_NE(r.err.find(word), std::string::npos) << r.err;
    EXPECT_FALSE(fs::exists(dir / "out"));
    EXPECT_FALSE(fs::exists(dir / "out.partial"));
  }
  done("quantize plan rtn m out");
  EXPECT_NE(run("evaluate sweep m --recipe rtn --out sweep --max-windows 1").exit_code, 0);
  const Json report = json("quantize rtn m out --allow-nonfinite");
  EXPECT_NE(report.at("note").get<std::string>().find("element 4711"), std::string::npos) << report.at("note");
  const ProcessResult judged = run("evaluate perplexity out --max-windows 1 --context 128 --device cpu");
  EXPECT_EQ(judged.exit_code, 1) << judged.out;
  EXPECT_NE(judged.err.find("no finite probability"), std::string::npos) << judged.err;
}

// A norm whose weight is finite and whose outputs are not: the block says which linear met it and what quantized it.
TEST_F(SourceFiles, AnOverflowInABlockNamesItsLinearAndRung) {
  put("model.layers.1.post_attention_layernorm.weight", 3, 1e30f);
  const std::string few = " --device cpu --threads 1 --samples 1 --seq-len 32 --effort quick";
  const ProcessResult refused = run("quantize gptq m out" + few);
  EXPECT_EQ(refused.exit_code, 1);
  for (const char* word : {"model.layers.1.mlp.gate_proj", "calibration statistics are", "--allow-rtn"})
    EXPECT_NE(refused.err.find(word), std::string::npos) << refused.err;
  const ProcessResult rounded = run("quantize gptq m rounded --allow-rtn" + few);
  EXPECT_EQ(rounded.exit_code, 1);
  for (const char* word : {"model.layers.1.mlp.gate_proj: NaN or infinity", "quantized by \"gptq ", ", rung rtn;"})
    EXPECT_NE(rounded.err.find(word), std::string::npos) << rounded.err;
  EXPECT_FALSE(fs::exists(dir / "rounded"));
  EXPECT_TRUE(fs::exists(dir / "rounded.partial/journal"));  // the block before it is kept
}

TEST_F(SourceFiles, OneChangedWeightIsNamedWhenARunGoesOn) {
  // A kill leaves the folder; the weight is in none of the samples that a glance at the file would take.
  run("sh -c 'quantize gptq m out --threads 1 --device cpu --samples 64 --seq-len 512 & p=$!; "
      "while kill -0 $p && ! [ -s out.partial/journal ]; do sleep 0.02; done; kill -KILL $p; wait $p'");
  ASSERT_TRUE(fs::exists(dir / "out.partial/journal"));
  put("model.layers.3.mlp.down_proj.weight", 12345, 0.75f);
  const ProcessResult r = run("quantize gptq m out --resume --threads 1 --device cpu --samples 64 --seq-len 512");
  EXPECT_EQ(r.exit_code, 2) << r.err;
  EXPECT_NE(r.err.find("model.safetensors (then "), std::string::npos) << r.err;
}

TEST_F(SourceFiles, WhatWasReadIsRememberedForTheUser) {
  done("XDG_CACHE_HOME=$PWD/cache quantize rtn m a --device cpu");
  EXPECT_FALSE(fs::is_empty(dir / "cache/fewbit"));
  done("XDG_CACHE_HOME=$PWD/cache quantize rtn m b --device cpu");
  done("XDG_CACHE_HOME=$PWD/cache quantize rtn m c --device cpu --rehash");
  EXPECT_EQ(bytes_of_file(dir / "a/model.safetensors"), bytes_of_file(dir / "b/model.safetensors"));
  EXPECT_EQ(bytes_of_file(dir / "a/model.safetensors"), bytes_of_file(dir / "c/model.safetensors"));
}

}  // namespace
}  // namespace fewbit::test

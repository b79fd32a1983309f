// `quantize --lora`: the same checkpoint as of a model that was merged before.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "src/model/lora.h"
#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class LoraCommand : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    const auto writer = container_safetensors.create(dir / "adapter", {});
    for (const char* module : {"model.layers.0.mlp.down_proj", "model.layers.3.self_attn.q_proj"}) {
      const int64_t in = std::string(module).find("down") == std::string::npos ? 256 : 768;
      writer->add(std::string("base_model.model.") + module + ".lora_A.weight",
                  random_normal(DType::f32, {4, in}, 1, 0.05f));
      writer->add(std::string("base_model.model.") + module + ".lora_B.weight",
                  random_normal(DType::f32, {256, 4}, 2, 0.05f));
    }
    writer->finish();
    fs::rename(dir / "adapter/model.safetensors", dir / "adapter/adapter_model.safetensors");
    std::ofstream(dir / "adapter/adapter_config.json") << R"({"peft_type": "LORA", "r": 4, "lora_alpha": 16})";
  }
};

TEST_F(LoraCommand, IsAModelThatWasMergedBefore) {
  // The merged model, as a folder of its own.
  std::string digest;
  const Checkpoint merged = with_adapter(Checkpoint::open(kDemo), dir / "adapter", digest);
  fs::copy(kDemo, dir / "merged", fs::copy_options::recursive);
  fs::remove(dir / "merged/model.safetensors");
  const auto writer = container_safetensors.create(dir / "whole", {});
  for (const auto& [name, info] : merged.store.index().tensors) writer->add(name, merged.store.get(name));
  writer->finish();
  fs::rename(dir / "whole/model.safetensors", dir / "merged/model.safetensors");

  done("quantize rtn " + kDemo + " a --lora adapter --keep '*q_proj' --quiet");
  done("quantize rtn merged b --keep '*q_proj' --quiet");
  done("quantize rtn " + kDemo + " plain --keep '*q_proj' --quiet");
  EXPECT_EQ(bytes_of_file(dir / "a/model.safetensors"), bytes_of_file(dir / "b/model.safetensors"));
  EXPECT_NE(bytes_of_file(dir / "a/model.safetensors"), bytes_of_file(dir / "plain/model.safetensors"));
  EXPECT_NE(bytes_of_file(dir / "a/README.md").find("--lora ADAPTER"), std::string::npos);
}

TEST_F(LoraCommand, AnotherKindIsRefusedBeforeTheWork) {
  std::ofstream(dir / "adapter/adapter_config.json") << R"({"r": 4, "lora_alpha": 16, "use_dora": true})";
  const ProcessResult r = run("quantize rtn " + kDemo + " out --lora adapter");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("use_dora"), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(dir / "out") || fs::exists(dir / "out.partial"));
}

}  // namespace
}  // namespace fewbit::test

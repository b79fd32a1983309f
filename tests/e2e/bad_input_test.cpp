// What a user can get wrong: refused in one clear line, with nothing left behind.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class BadInput : public CommandTest {};

TEST_F(BadInput, CountsThatAreNoneAreRefusedInOneLine) {
  for (const char* command : {"evaluate perplexity --max-windows -1", "evaluate perplexity --max-windows=0",
                              "runner bench --tokens 1.5", "quantize plan rtn --samples many"}) {
    const ProcessResult r = run(command);
    EXPECT_EQ(r.exit_code, 2) << command;
    EXPECT_NE(r.err.find(": expected a whole number of at least 1, found "), std::string::npos) << r.err;
  }
}

TEST_F(BadInput, IsOneClearLine) {
  std::ofstream(dir / "empty.txt");
  std::ofstream(dir / "short.txt") << "Too short.";
  fs::create_directories(dir / "taken");
  struct Case {
    std::string command;
    std::vector<std::string> says;
    int exit_code;
  };
  const std::vector<Case> cases = {
      {"quantize gtpq " + kDemo + " out", {"gtpq"}, 2},
      {"quantize awq+gtpq " + kDemo + " out", {"gtpq"}, 2},
      {"quantize gptq+awq " + kDemo + " out", {"awq", "behind", "in front"}, 2},
      {"quantize gptq " + kDemo + " out --set '*.down_proj=awq'", {"awq", "transforms"}, 2},
      {"quantize gptq nowhere out", {"nowhere"}, 1},
      {"quantize gptq " + kDemo + " taken", {"taken", "exists"}, 2},
      {"quantize gptq " + kDemo + " no/such/folder/out", {"OUT", "no/such/folder", "make that first"}, 1},
      {"quantize gptq " + kDemo + " out --calib empty.txt", {"empty.txt", "empty file", "give one"}, 1},
      {"quantize gptq " + kDemo + " out --calib short.txt", {"short.txt"}, 2},
      {"quantize gptq " + kDemo + " out --calib missing.txt", {"--calib missing.txt", "builtin"}, 2},
      {"quantize gptq " + kDemo + " out --group-size 0", {"group"}, 2},
      {"quantize 'gptq g0' " + kDemo + " out", {"g0"}, 2},
      {"quantize gptq " + kDemo + " out --act-order sideways", {"sideways", "gar"}, 2},
      {"quantize gptq " + kDemo + " out --format exl9", {"exl9", "marlin"}, 2},
      {"quantize gptq " + kDemo + " out --set '*.down_proj'", {"--set"}, 2},
      {"quantize gptq " + kDemo + " out --kv-cache int8", {"kv=int8", "runner"}, 2},
      {"quantize gptq " + kDemo + " out --kv-cache fp8 --format marlin", {"kv=fp8", "compressed-tensors"}, 1},
      {"quantize gptq " + kDemo + " out --set '*.q_proj=kv=fp8'", {"kv=", "whole run"}, 2},
      {"runner bench --kv-cache fp4", {"fp4", "int8"}, 2},
      {"evaluate perplexity --kv-cache fp4", {"fp4", "int8", "kivi2"}, 2},
      {"runner bench --device cpu --concurrency 2 --kv-cache kivi2", {"--concurrency", "kivi2", "take int4"}, 1},
      {"runner serve --device cpu --kv-cache kivi4", {"runner serve", "kivi4", "take int4"}, 1},
      {"runner generate --device cpu --speculate ngram --kv-cache kivi2", {"--speculate", "kivi2", "take int4"}, 1},
      {"quantize gptq " + kDemo + " out --resume", {"resume"}, 2},
      {"evaluate perplexity nowhere", {"nowhere"}, 1},
      {"evaluate perplexity --data empty.txt", {"empty.txt"}, 1},
      {"evaluate perplexity --data short.txt --context 256", {"short.txt", "256"}, 2},
      {"evaluate perplexity --context 4096", {"--context", "at most", "1024", "found 4096"}, 2},
      {"evaluate perplexity --dtype int7", {"int7", "bf16"}, 2},
      {"evaluate verify " + kDemo, {"quant_report.json"}, 1},
      {"runner bench --tokens 100000", {"1024"}, 2},
      {"runner bench --prompt-tokens 16,4096", {"4096 prompt tokens", "1024"}, 2},
      {"runner bench --batch 1,0", {"--batch", "0"}, 2},
      {"runner bench --csv no/such/t.csv", {"no/such", "cannot be written"}, 2},
      {"runner bench --compare a b --batch 1,2", {"--compare", "one shape"}, 2},
      {"runner bench nowhere", {"nowhere"}, 1},
      {"runner bench --ops block,nope", {"nope", "linear"}, 2},
      {"runner bench --ops taken", {"taken", "--ops=all"}, 2},
      {"runner bench --ops --ops-models 9b", {"9b", "70b"}, 2},
      {"runner bench --ops-models 8b", {"--ops-models", "--ops"}, 2},
      {"runner bench nowhere --ops --ops-models 8b", {"MODEL", "--ops-models"}, 2},
      {"runner bench --ops --tokens 3", {"--ops", "--tokens"}, 2},
      {"runner bench --ops block --kv-cache int8", {"--ops", "--kv-cache"}, 2},
      {"runner bench --ops --trace t.json", {"--ops", "--trace"}, 2},
      {"runner bench --ops --compare a b", {"--ops", "--compare"}, 2},
      {"convert inspect nowhere", {"nowhere"}, 1},
      {"convert synth --preset gpt9 out", {"gpt9"}, 2},
  };
  for (const Case& c : cases) {
    const ProcessResult r = run(c.command);
    EXPECT_EQ(r.exit_code, c.exit_code) << c.command << ": " << r.err;
    for (const std::string& word : c.says) EXPECT_NE(r.err.find(word), std::string::npos) << c.command << ": " << r.err;
    EXPECT_EQ(r.err.find("terminate"), std::string::npos) << c.command << ": " << r.err;
    EXPECT_FALSE(fs::exists(dir / "out") || fs::exists(dir / "out.partial")) << c.command << " left something behind";
  }
}

TEST_F(BadInput, AskingForAGpuWhereNoneIs) {
  if (Exec::cuda_available()) GTEST_SKIP() << "a GPU answers here";
  const ProcessResult r = run("quantize gptq " + kDemo + " out --device cuda");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("GPU"), std::string::npos) << r.err;
  EXPECT_FALSE(fs::exists(dir / "out"));
}

// Copies the demo model and lets `damage` break it.
class Damaged : public CommandTest {
 protected:
  void SetUp() override { fs::copy(kDemo, dir / "model", fs::copy_options::recursive); }
  void expect_refused(const std::vector<std::string>& words) {
    for (const std::string command :
         {"quantize gptq model out", "evaluate perplexity model", "runner bench model", "convert inspect model"}) {
      const ProcessResult r = run(command);
      EXPECT_EQ(r.exit_code, 1) << command << ": " << r.err;
      for (const std::string& word : words) EXPECT_NE(r.err.find(word), std::string::npos) << command << ": " << r.err;
    }
    EXPECT_FALSE(fs::exists(dir / "out"));
  }
  void edit_config(const std::function<void(Json&)>& edit) {
    Json j = Json::parse(std::ifstream(dir / "model/config.json"));
    edit(j);
    std::ofstream(dir / "model/config.json") << j.dump(1);
  }
};

TEST_F(Damaged, UnknownArchitecture) {
  edit_config([](Json& j) { j["architectures"] = {"FancyForCausalLM"}; });
  expect_refused({"FancyForCausalLM", "LlamaForCausalLM"});
}
TEST_F(Damaged, UnknownActivation) {
  edit_config([](Json& j) { j["hidden_act"] = "relu9"; });
  expect_refused({"hidden_act", "relu9"});
}
TEST_F(Damaged, WrongShape) {
  edit_config([](Json& j) { j["intermediate_size"] = 770; });
  expect_refused({"gate_proj", "770"});
}
TEST_F(Damaged, TruncatedWeights) {
  fs::resize_file(dir / "model/model.safetensors", 5000000);
  expect_refused({"model.safetensors", "was the file cut off?"});
}
TEST_F(Damaged, LyingHeader) {
  std::fstream f(dir / "model/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  const uint64_t huge = uint64_t{1} << 40;
  f.write(reinterpret_cast<const char*>(&huge), 8);
  f.close();
  expect_refused({"model.safetensors"});
}
TEST_F(Damaged, MissingTokenizer) {
  fs::remove(dir / "model/tokenizer.json");
  const ProcessResult r = run("evaluate perplexity model");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("tokenizer.json: there is no such file"), std::string::npos) << r.err;
}
TEST_F(Damaged, MissingConfig) {
  fs::remove(dir / "model/config.json");
  expect_refused({"config.json"});
}

}  // namespace
}  // namespace fewbit::test

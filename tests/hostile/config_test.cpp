// config.json, with its quantization_config, and what lies beside it.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "src/model/checkpoint.h"
#include "tests/hostile/contained.h"
#include "tests/hostile/readers.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const std::string kDemo = in_source("calib_data/demo-model");

Json demo_config() { return Json::parse(bytes_of_file(kDemo + "/config.json")); }

// The demo model's config with one key changed.
Hostile with(const std::string& name, const std::string& key, const Json& value, const std::string& says = "",
             bool taken = false) {
  Json j = demo_config();
  j[key] = value;
  return {name, j.dump(), says, taken};
}
Hostile with_quantization(const std::string& name, const Json& value, const std::string& says = "",
                          bool taken = false) {
  return with(name, "quantization_config", value, says, taken);
}

// A config beside the demo model's weights, opened as a checkpoint.
class HostileConfig : public testing::Test {
 protected:
  void SetUp() override { fs::create_symlink(kDemo + "/model.safetensors", dir_ / "model.safetensors"); }
  std::function<void(const std::string&)> opened(const std::string& name = "config.json") {
    return [this, name](const std::string& bytes) {
      put(dir_.path(), name, bytes);
      Checkpoint::open(dir_.path());
    };
  }
  TempDir dir_;
};

TEST_F(HostileConfig, BrokenJson) {
  std::vector<Hostile> cases = hostile_json(demo_config().dump());
  for (Hostile& h : cases)
    if (h.name == "NaN" || h.name == "Infinity") h.taken = true;  // Python writes them; no key of the model's has one
  expect_refused(cases, opened());
}

TEST_F(HostileConfig, Sizes) {
  std::vector<Hostile> cases = {
      with("no architecture", "architectures", Json::array(), "architectures"),
      with("a class that there is not", "architectures", {"FancyForCausalLM"}, "FancyForCausalLM"),
      with("a class with escape sequences", "architectures", {"\x1b]0;owned\x07"}, "\\x1b"),
      with("a class of a megabyte", "architectures", {std::string(1 << 20, 'A')}, "architectures"),
      with("a million classes", "architectures", Json(std::vector<std::string>(1000000, "x")), "architectures"),
      with("an empty list of first tokens", "bos_token_id", Json::array(), "", true),
      with("a nested first token", "bos_token_id", {{1}}, "bos_token_id"),
      with("a list of last tokens with a text", "eos_token_id", {1, "2"}, "eos_token_id"),
      with("100,000 layers", "num_hidden_layers", 100000, "num_hidden_layers"),
      with("4,000 layers, of which 3,996 are missing", "num_hidden_layers", 4000, "more"),
      with("heads that no key/value heads divide", "num_key_value_heads", 3, "num_key_value_heads"),
      with("heads as wide as a model", "head_dim", 1 << 30, "head_dim"),
      with("an odd width of heads", "head_dim", 63, "rotary"),
      with("a theta of nothing", "rope_parameters", {{"rope_theta", 0}, {"rope_type", "default"}}, "rope_theta"),
      with("a theta without bound", "rope_parameters", {{"rope_theta", 1e308}, {"rope_type", "default"}}, "", true),
      with("a scaling that there is not", "rope_parameters", {{"rope_type", "x\x1b[31m"}}, "\\x1b"),
      with("frequencies for one pair", "rope_parameters",
           {{"rope_type", "longrope"},
            {"short_factor", {1}},
            {"long_factor", {1}},
            {"original_max_position_embeddings", 2048}},
           "expected 32"),
      with("rotary parameters in one another", "rope_parameters", {{"full_attention", {{"rope_theta", 1}}}}, "rope"),
      with("another activation", "hidden_act", "gelu\n\x1b[2J", "hidden_act"),
      with("a type of another family", "model_type", "mistral7", "model_type"),
      with("a text model that is a list", "text_config", Json::array({1}), "", true),
  };
  const Json values = {0, -1, INT64_MIN, INT64_MAX, UINT64_MAX, 1.5, 1e18, int64_t{1} << 31, (int64_t{1} << 31) - 1};
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "vocab_size"})
    for (const Json& v : values) cases.push_back(with(std::string(key) + " of " + v.dump(), key, v));
  for (const Json& v : values)
    cases.push_back(with("max_position_embeddings of " + v.dump(), "max_position_embeddings", v, "", true));
  expect_refused(cases, opened());
}

TEST_F(HostileConfig, Quantization) {
  const Json weights = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 128}};
  const auto ct = [&](const Json& targets, const Json& ignore, const Json& w) {
    return Json{{"quant_method", "compressed-tensors"},
                {"format", "pack-quantized"},
                {"ignore", ignore},
                {"config_groups", {{"group_0", {{"targets", targets}, {"weights", w}}}}}};
  };
  const auto changed = [&](const char* key, const Json& v) {
    Json w = weights;
    w[key] = v;
    return ct({"Linear"}, Json::array(), w);
  };
  // The classes behind keep PCRE2 from seeing at once that no name can match.
  const std::string tries = "(?:a|.)*(?:a|.)*(?:a|.)*(?:a|.)*(?:a|.)*(?:a|.)*[xy][0-9]{9}", evil = "re:" + tries;
  std::vector<Hostile> cases = {
      with_quantization("a list", Json::array(), "quantization_config"),
      with_quantization("a text", "gptq", "quantization_config"),
      with_quantization("a method that there is not", {{"quant_method", "x\x1b[31m"}}, "\\x1b"),
      with_quantization("a method that is a number", {{"quant_method", 4}}, "quant_method"),
      with_quantization("no groups", {{"quant_method", "compressed-tensors"}}, "config_groups"),
      with_quantization("a pattern that tries everything", ct({"Linear"}, {evil}, weights), "gave up"),
      with_quantization("a target that tries everything", ct({evil}, Json::array(), weights), "gave up"),
      with_quantization("a pattern of nested repetitions",
                        ct({"Linear"}, {"re:((((a{1,999}){1,999}){1,999}){1,999})"}, weights), "cannot be compiled"),
      with_quantization("100,000 brackets in a pattern", ct({"Linear"}, {"re:" + repeated("(", 100000)}, weights),
                        "bytes"),
      with_quantization("1,000 brackets in a pattern",
                        ct({"Linear"}, {"re:" + repeated("(", 1000) + repeated(")", 1000)}, weights),
                        "cannot be compiled"),
      with_quantization("a pattern that is not closed", ct({"Linear"}, {"re:[a"}, weights), "cannot be compiled"),
      with_quantization("a pattern that calls itself", ct({"Linear"}, {"re:(?R)"}, weights)),
      with_quantization("a pattern that calls itself behind a character",
                        ct({"Linear"}, {"re:(.(?1)*)*[xy][0-9]{9}"}, weights)),
      with_quantization("a pattern that looks behind everything", ct({"Linear"}, {"re:(?<=.*)x"}, weights),
                        "cannot be compiled"),
      with_quantization("a pattern with limits of its own",
                        ct({"Linear"}, {"re:(*LIMIT_MATCH=4000000000)" + tries}, weights), "gave up"),
      with_quantization("10,000 patterns", ct({"Linear"}, Json(std::vector<std::string>(10000, "re:.*x.*y")), weights),
                        "", true),
      with_quantization("5,000 patterns that try a little",
                        ct({"Linear"}, Json(std::vector<std::string>(5000, "re:(a|.)*(a|.)*x")), weights), "", true),
      with_quantization(
          "a rule that tries everything",
          {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"dynamic", {{"+:" + tries, {{"bits", 8}}}}}},
          "gave up"),
      with_quantization("a rule that is a number",
                        {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"dynamic", {{"x", 1}}}},
                        "dynamic"),
      with_quantization("rules in a list",
                        {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"dynamic", Json::array()}},
                        "dynamic"),
      with_quantization("layers of Marlin with an order",
                        {{"quant_method", "gptq"},
                         {"bits", 4},
                         {"group_size", 128},
                         {"checkpoint_format", "marlin"},
                         {"desc_act", true}},
                        "marlin"),
  };
  const Json values = {nullptr,          true,          0,          -1,  -2,  3,
                       INT64_MIN,        INT64_MAX,     UINT64_MAX, 1.5, "4", "\x1b[31m",
                       Json::array({4}), Json::object()};
  for (const char* key :
       {"num_bits", "type", "strategy", "group_size", "symmetric", "dynamic", "actorder", "block_structure"})
    for (const Json& v : values)
      cases.push_back(with_quantization(std::string(key) + " of " + v.dump(), changed(key, v), "", true));
  for (const char* method : {"gptq", "awq", "fp8", "modelopt", "mxfp4"})
    for (const char* key : {"bits", "group_size", "weight_block_size", "checkpoint_format", "modules_to_not_convert",
                            "quant_algo", "zero_point", "version", "dynamic"})
      for (const Json& v : values)
        cases.push_back(with_quantization(std::string(method) + ": " + key + " of " + v.dump(),
                                          {{"quant_method", method}, {key, v}}, "", true));
  expect_refused(cases, opened());
}

TEST_F(HostileConfig, BesideIt) {
  put(dir_.path(), "config.json", demo_config().dump());
  std::vector<Hostile> cases = hostile_json(R"({"bits":4,"group_size":"x"})");
  cases.front().taken = true;  // an empty file says nothing
  expect_refused(cases, opened("quantize_config.json"));
}

TEST_F(HostileConfig, IsNoRegularFile) {
  const fs::path config = dir_ / "config.json";
  const auto open = [&](const std::string&) { Checkpoint::open(dir_.path()); };
  ASSERT_EQ(::mkfifo(config.c_str(), 0600), 0);
  expect_refused({{"a FIFO", "", "not a regular file"}}, open);
  for (const char* target : {"/dev/zero", "/dev/tty", "/", "/proc/self/mem", "/dev/null"}) {
    fs::remove(config);
    fs::create_symlink(target, config);
    expect_refused({{std::string("a link to ") + target, ""}}, open);
  }
  fs::remove(config);
  fs::create_symlink("config.json", config);
  expect_refused({{"a link to itself", ""}}, open);
}

}  // namespace
}  // namespace fewbit::test

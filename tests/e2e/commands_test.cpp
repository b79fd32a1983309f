// The commands as a user types them, on the embedded demo model.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/process.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kDemo = FEWBIT_SOURCE_DIR "/calib_data/demo-model";
const std::string kFast = " --samples 4 --seq-len 256 --device cpu";

std::string first_line(const std::string& s) { return s.substr(0, s.find('\n')); }

Json json_of(const ProcessResult& r) {
  const Json j = Json::parse(r.out, nullptr, false);
  EXPECT_FALSE(j.is_discarded()) << "exit " << r.exit_code << "\nout: " << r.out << "\nerr: " << r.err;
  return j;
}

class Commands : public ::testing::Test {
 protected:
  ProcessResult run(const std::string& command) { return run_program(command, dir.path().string()); }
  TempDir dir;
};

TEST_F(Commands, QuantizeAsWritten) {
  fs::create_directory_symlink(kDemo, dir / "model");
  const ProcessResult r = run("quantize gptq model/ out/");
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(fs::exists(dir / "out/config.json"));
  EXPECT_TRUE(fs::exists(dir / "out/tokenizer.json"));
  EXPECT_TRUE(fs::exists(dir / "out/generation_config.json"));
  std::ifstream readme(dir / "out/README.md");
  const std::string card{std::istreambuf_iterator<char>(readme), {}};
  EXPECT_NE(card.find("quantize 'gptq' MODEL OUT\n"), std::string::npos) << card;
  EXPECT_NE(card.find("| recipe | `gptq int4 g128 sym` ("), std::string::npos) << card;
  EXPECT_FALSE(fs::exists(dir / "out.partial"));
  const ProcessResult v = run("evaluate verify out --json -");
  EXPECT_EQ(v.exit_code, 0) << v.err;
  EXPECT_TRUE(json_of(v)["ok"].get<bool>());
}

TEST_F(Commands, WhatTheFolderHoldsTravelsAlong) {
  fs::copy(kDemo, dir / "model");
  std::ofstream(dir / "model/README.md") << "---\nlicense: mit\n---\nThe model.\n";
  std::ofstream(dir / "model/chat_template.jinja") << "{{ messages }}";
  ASSERT_EQ(run("quantize 'rtn int4 g64' model out --set '*.q_proj=int8' --keep '*.o_proj'").exit_code, 0);
  EXPECT_TRUE(fs::exists(dir / "out/chat_template.jinja"));
  std::ifstream readme(dir / "out/README.md");
  const std::string card{std::istreambuf_iterator<char>(readme), {}};
  EXPECT_EQ(card.rfind("---\nlicense: mit\n---\n\n# model, quantized\n", 0), 0u) << card;
  EXPECT_NE(card.find("quantize 'rtn int4 g64' MODEL OUT --set '*.q_proj=int8' --keep '*.o_proj'\n"),
            std::string::npos)
      << card;
  EXPECT_EQ(card.substr(card.size() - 11), "The model.\n");
}

TEST_F(Commands, AwqAsWritten) {
  fs::create_directory_symlink(kDemo, dir / "model");
  const ProcessResult r = run("quantize awq model/ out/");
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_FALSE(fs::exists(dir / "out.partial"));
  const Json report = Json::parse(std::ifstream(dir / "out/quant_report.json"));
  EXPECT_EQ(report["linears"][0]["recipe"], "awq+rtn int4 g128 asym");
  EXPECT_EQ(run("evaluate verify out").exit_code, 0);
}

// One recipe in every format that takes it: the hashes of the neutral forms agree, each checkpoint verifies, and
// its weight file alone is recognised.
TEST_F(Commands, EveryFormatHoldsTheSameLinears) {
  struct Written {
    const char* format;
    const char* recognised;
  };
  const std::pair<const char*, std::vector<Written>> cases[] = {
      {"rtn int4 g32 asym",
       {{"marlin", "marlin"}, {"gptq", "gptq or gptq_v2"}, {"awq", "awq"}, {"compressed-tensors", "ct_pack"}}},
      {"rtn int4 g64 sym",
       {{"marlin", "marlin"}, {"gptq", "gptq or gptq_v2"}, {"awq", "awq"}, {"compressed-tensors", "ct_pack"}}},
      {"rtn int3 g32 asym", {{"gptq", "gptq or gptq_v2"}, {"compressed-tensors", "ct_pack"}}},
      {"rtn nvfp4", {{"compressed-tensors", "ct_nvfp4"}, {"modelopt", "modelopt_nvfp4"}}},
      {"rtn mxfp4", {{"compressed-tensors", "ct_mxfp4"}}}};
  for (const auto& [recipe, formats] : cases) {
    std::vector<std::string> first;
    for (const Written& w : formats) {
      const std::string what = std::string(recipe) + " as " + w.format, out = dir.path().string() + "/out";
      fs::remove_all(out);
      const ProcessResult q =
          run("quantize '" + std::string(recipe) + "' " + kDemo + " out --format " + w.format + " --device cpu");
      ASSERT_EQ(q.exit_code, 0) << what << "\n" << q.err;
      const ProcessResult v = run("evaluate verify out --device cpu");
      EXPECT_EQ(v.exit_code, 0) << what << "\n" << v.out << v.err;
      std::vector<std::string> hashes;
      const Json report = Json::parse(std::ifstream(out + "/quant_report.json"));
      for (const Json& l : report["linears"]) hashes.push_back(l["hash"]);
      if (first.empty()) first = hashes;
      EXPECT_EQ(hashes, first) << what;
      const Json file = json_of(run("convert inspect out/model.safetensors --json -"));
      EXPECT_EQ(file["quantized"].value(w.recognised, size_t{0}), hashes.size()) << what << file["quantized"];
    }
  }
}

TEST_F(Commands, PerplexityAsWritten) {
  const ProcessResult r = run("evaluate perplexity");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("embedded demo model"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("perplexity "), std::string::npos) << r.out;
}

TEST_F(Commands, BenchAsWritten) {
  const ProcessResult r = run("runner bench --tokens 200");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("per token"), std::string::npos) << r.out;
}

TEST_F(Commands, BenchMakesARowOfEveryCombination) {
  const Json j = json_of(run("runner bench --device cpu --prompt-tokens 4,8 --tokens 3 --batch 1,2 --repetitions 2 --markdown t.md "
                             "--csv t.csv --json -"));
  ASSERT_EQ(j["rows"].size(), 4u);
  EXPECT_EQ(j["repetitions"], 2);
  std::vector<std::vector<int>> shapes;
  for (const Json& row : j["rows"]) {
    shapes.push_back({row["batch"], row["prompt_tokens"], row["tokens"]});
    EXPECT_GT(row["ms_per_token"]["p50"].get<double>(), 0);
    EXPECT_GE(row["std"]["ttft_ms"].get<double>(), 0);
    EXPECT_NEAR(row["floor_share"].get<double>(), row["gb_per_s"].get<double>() / j["read_gb_per_s"].get<double>(), 1e-9);
  }
  EXPECT_EQ(shapes, (std::vector<std::vector<int>>{{1, 4, 3}, {1, 8, 3}, {2, 4, 3}, {2, 8, 3}}));
  EXPECT_EQ(j["ms_per_token"], j["rows"][0]["ms_per_token"]) << "the object itself speaks of the first row";
  // As many cells in every line: 14 columns between 15 bars; 27 values, none of which holds a comma.
  const auto lines_with = [&](const std::string& name, char mark, long count) {
    std::ifstream in(dir / name);
    int lines = 0;
    for (std::string line; std::getline(in, line);) lines += std::count(line.begin(), line.end(), mark) == count;
    return lines;
  };
  EXPECT_EQ(lines_with("t.md", '|', 15), 6) << "head, rule, four rows";
  EXPECT_EQ(lines_with("t.csv", ',', 26), 5) << "names, four rows";
  // The commas end a list: the next word is the model.
  EXPECT_EQ(run("runner bench --device cpu --batch 1,2 --tokens 1 " + kDemo).exit_code, 0);
}

TEST_F(Commands, BenchComparesTwoCheckpointsInTurn) {
  const Json j = json_of(run("runner bench --compare " + kDemo + " " + kDemo +
                             " --device cpu --tokens 8 --prompt-tokens 4 --repetitions 2 --json -"));
  EXPECT_EQ(j["a"]["bytes_per_token"], j["b"]["bytes_per_token"]);
  EXPECT_GT(j["ratio"].get<double>(), 0);
  EXPECT_GE(j["ratio_stderr"].get<double>(), 0);
  EXPECT_GT(j["b"]["ms_per_token"]["mean"].get<double>(), 0);
  for (const char* key : {"ttft_ratio", "ttft_ratio_stderr", "copy_gb_per_s", "read_gb_per_s", "peak_bytes", "device", "tokens"})
    EXPECT_TRUE(j.contains(key)) << key;
}

// The demo model has four layers; ops that ran as one share an event.
TEST_F(Commands, BenchWritesATraceOfEveryOp) {
  const ProcessResult r = run("runner bench --device cpu --tokens 2 --prompt-tokens 6 --trace trace.json");
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json trace = Json::parse(std::ifstream(dir / "trace.json"));
  std::map<std::string, int> passes, categories;
  std::map<std::string, std::set<std::string>> linears;  // by pass: "layer name"
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    EXPECT_GE(e["dur"].get<double>(), 0) << e;
    const std::string category = e["cat"];
    if (category == "pass") ++passes[e["name"]];
    ++categories[category];
    if (category == "linears")
      for (const auto& [key, value] : e["args"].items())
        if (key.find("proj") != std::string::npos)
          linears[e["args"]["pass"]].insert(e["args"]["layer"].dump() + " " + key);
  }
  EXPECT_EQ(passes, (std::map<std::string, int>{{"prefill", 1}, {"decode step", 1}}));
  EXPECT_EQ(categories["layer"], 2 * 4);
  EXPECT_EQ(categories["attention"], 2 * 4);
  EXPECT_EQ(categories["ends"], 2 * 4) << "embedding, final norm, head, choice";
  for (const char* pass : {"prefill", "decode step"}) EXPECT_EQ(linears[pass].size(), 4u * 7) << pass;
}

TEST_F(Commands, JsonHasTheContractsKeys) {
  const Json q = json_of(run("quantize gptq " + kDemo + " out" + kFast + " --json -"));
  for (const char* key : {"recipe", "model", "out", "seconds", "phases", "peak_gpu_bytes", "peak_host_bytes", "source_bytes",
                          "out_bytes", "bits_per_weight", "linears"})
    EXPECT_TRUE(q.contains(key)) << key;
  for (const char* key : {"name", "recipe", "packing", "rel_error", "sqnr_db", "loss", "loss_rtn", "rung", "tokens", "seconds"})
    EXPECT_TRUE(q["linears"][0].contains(key)) << key;
  const Json e = json_of(run("evaluate perplexity out --device cpu --max-windows 1 --context 128 --json -"));
  for (const char* key : {"perplexity", "stderr", "mean_nll", "tokens", "windows", "context", "protocol", "dtype", "seconds"})
    EXPECT_TRUE(e.contains(key)) << key;
  EXPECT_EQ(e["tokens"], 127);
  const Json b = json_of(run("runner bench out --device cpu --tokens 5 --prompt-tokens 8 --json -"));
  for (const char* key : {"load_s", "prefill_tokens_per_s", "ttft_ms", "ms_per_token", "tokens_per_s", "bytes_per_token", "gb_per_s",
                          "floor_share", "peak_bytes", "device", "batch", "prompt_tokens", "tokens", "copy_gb_per_s", "read_gb_per_s"})
    EXPECT_TRUE(b.contains(key)) << key;
  EXPECT_FALSE(b.contains("rows")) << "a single shape is the object itself";
  for (const char* key : {"mean", "std", "p50", "p90", "p95", "p99"}) EXPECT_TRUE(b["ms_per_token"].contains(key)) << key;
  const Json i = json_of(run("convert inspect out --json -"));
  for (const char* key : {"format", "architecture", "parameters", "bytes", "tensors"}) EXPECT_TRUE(i.contains(key)) << key;
  EXPECT_EQ(i["format"], "marlin");
  const Json p = json_of(run("quantize plan gptq " + kDemo + " --json -"));
  for (const char* key : {"refusals", "peak_gpu_bytes", "peak_host_bytes", "out_bytes", "linears"}) EXPECT_TRUE(p.contains(key)) << key;
  EXPECT_EQ(p["out_bytes"], q["out_bytes"]) << "the plan predicts the size that is written";
}

// Every bits x method x format the contract names, written, verified and judged: the packed model must score what the
// dequantized one does.
TEST_F(Commands, EveryBitWidthRoundTrips) {
  struct Case {
    const char* recipe;
    double worst;  // perplexity against bf16's on the same windows, at most this factor
    // Packed against dequantized. More where a rounding to bf16 weighs more: two bits on four samples of calibration
    // (a model near its end), and steps of a whole tensor's range in the inputs.
    double close = 1e-3;
  };
  const auto score = [&](const std::string& model, const std::string& more) {
    return json_of(run("evaluate perplexity " + model + " --device cpu --context 256 --max-windows 8 " + more + " --json -"));
  };
  const double base = score(kDemo, "")["perplexity"];
  for (const Case& c : {Case{"rtn int8 g128", 1.01}, Case{"rtn int4 g64", 1.3}, Case{"rtn int4 gch asym", 1.6}, Case{"gptq int4 g32", 1.2},
                        Case{"gptq int3 g128", 1.8}, Case{"gptq int2 g32", 20, 3e-3}, Case{"gptq int4 g128 format=gptq", 1.2},
                        Case{"gptq int4 g128 asym format=gptq", 1.2}, Case{"gptq int4 g128 act=full format=gptq", 1.2},
                        Case{"gptq int4 g128 act=gar", 1.2}, Case{"awq int4 g128", 1.25}, Case{"awq+gptq int4 g128", 1.2}, Case{"rtn w8a8", 1.01},
                        Case{"gptq w8a8", 1.01}, Case{"gptq w8a8 acts=tensor", 1.2, 3e-3}, Case{"fp8", 1.02},
                        Case{"fp8 tensor acts=tensor", 1.04}, Case{"fp8 block128", 1.02}, Case{"gptq fp8", 1.02},
                        Case{"fp8 format=marlin", 1.02}}) {
    const std::string out = "out-" + std::to_string(std::hash<std::string>{}(c.recipe));
    const ProcessResult r = run("quantize '" + std::string(c.recipe) + "' " + kDemo + " " + out + kFast);
    ASSERT_EQ(r.exit_code, 0) << c.recipe << ": " << r.err;
    const ProcessResult v = run("evaluate verify " + out + " --device cpu");
    EXPECT_EQ(v.exit_code, 0) << c.recipe << ": " << v.out << v.err;
    const Json j = score(out, "--reference");
    EXPECT_LT(j["perplexity"].get<double>(), base * c.worst) << c.recipe;
    EXPECT_LT(std::fabs(j["reference"]["relative_difference"].get<double>()), c.close) << c.recipe;
  }
}

TEST_F(Commands, AnEnginesRefusalsComeBeforeAnyWork) {
  const ProcessResult good = run("quantize plan 'rtn int4 g64 format=gptq' " + kDemo + " --for vllm --tp 2 --json -");
  ASSERT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(json_of(good)["for"], "vllm");
  EXPECT_EQ(json_of(good)["tp"], 2);
  const ProcessResult bad = run("quantize plan 'rtn int3 g64 format=gptq' " + kDemo + " --for vllm --json -");
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_EQ(json_of(bad)["refusals"].size(), json_of(bad)["linears"].size());
  EXPECT_EQ(run("quantize 'rtn int3 g64 format=gptq' " + kDemo + " out --for vllm").exit_code, 1);
  EXPECT_FALSE(fs::exists(dir / "out"));
  EXPECT_EQ(run("quantize plan rtn " + kDemo + " --tp 2").exit_code, 2) << "--tp without --for";
  const ProcessResult nobody = run("quantize plan rtn " + kDemo + " --for abacus");
  EXPECT_EQ(nobody.exit_code, 2);
  EXPECT_NE(nobody.err.find("llama.cpp"), std::string::npos) << nobody.err;
}

TEST_F(Commands, SetAndKeepMixRecipes) {
  const Json p = json_of(run("quantize plan 'gptq int4 g128' " + kDemo + " --set '*.down_proj=int8' --keep 'model.layers.0.*' --json -"));
  for (const Json& l : p["linears"]) {
    const std::string name = l["name"], recipe = l["recipe"];
    if (name.find("layers.0.") != std::string::npos) EXPECT_EQ(recipe, "keep") << name;
    else if (name.find("down_proj") != std::string::npos) EXPECT_EQ(recipe, "gptq int8 g128 sym") << name;
    else EXPECT_EQ(recipe, "gptq int4 g128 sym") << name;
  }
  ASSERT_EQ(run("quantize 'gptq int4 g128' " + kDemo + " out --set '*.down_proj=int8' --keep 'model.layers.0.*'" + kFast).exit_code, 0);
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 0);
}

// An FP8 cache with calibrated scales and an int8 one cost next to nothing; runner and evaluate take both.
TEST_F(Commands, QuantizedCachesAreCalibratedRunAndMeasured) {
  const Json q = json_of(run("quantize rtn " + kDemo + " out --kv-cache fp8 --bits 8" + kFast + " --json -"));
  ASSERT_EQ(q["kv_scales"].size(), 4u);
  EXPECT_EQ(json_of(run("quantize plan 'rtn int8 kv=fp8' " + kDemo + " --json -"))["out_bytes"], q["out_bytes"]);
  const Json config = Json::parse(std::ifstream(dir / "out/config.json"));
  EXPECT_EQ(config["quantization_config"]["kv_cache_scheme"]["type"], "float");
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 0);
  const auto perplexity = [&](const std::string& cache) -> double {
    const Json j = json_of(run("evaluate perplexity out --device cpu --context 256 --max-windows 8 --json - --kv-cache " + cache));
    EXPECT_EQ(j["kv_cache"], cache);
    return j["perplexity"];
  };
  const double plain = perplexity("bf16");
  EXPECT_NE(perplexity("fp8"), plain);
  EXPECT_NEAR(perplexity("fp8") / plain, 1, 5e-3);
  EXPECT_NEAR(perplexity("int8") / plain, 1, 1e-3);
  const ProcessResult bench = run("runner bench out --device cpu --tokens 5 --prompt-tokens 8 --kv-cache fp8");
  EXPECT_EQ(bench.exit_code, 0) << bench.err;
  EXPECT_EQ(bench.out.find("scale is 1"), std::string::npos) << bench.out;
  EXPECT_NE(run("runner bench --device cpu --tokens 5 --prompt-tokens 8 --kv-cache fp8").out.find("scale is 1"), std::string::npos);
  const Json k = json_of(run("evaluate compare " + kDemo + " " + kDemo + " --device cpu --context 256 --max-windows 4 --kv-cache int8 --json -"));
  EXPECT_GT(k["models"][0]["kl"]["mean"].get<double>(), 0) << "the baseline keeps its keys and values as they are";
}

TEST_F(Commands, ListNamesTheRegistries) {
  const ProcessResult r = run("quantize list");
  EXPECT_EQ(r.exit_code, 0);
  for (const char* word : {"rtn", "gptq", "awq", "marlin", "gptq_v2", "safetensors", "LlamaForCausalLM", "Qwen3ForCausalLM"})
    EXPECT_NE(r.out.find(word), std::string::npos) << word;
}

TEST_F(Commands, HelpVersionAndCompletion) {
  for (const char* program : {"quantize", "evaluate", "runner", "convert"}) {
    EXPECT_EQ(run(std::string(program) + " --help").exit_code, 0);
    EXPECT_NE(run(std::string(program) + " --version").out.find("fewbit"), std::string::npos);
    const ProcessResult script = run(std::string(program) + " --completion bash > script && bash -n script");
    EXPECT_EQ(script.exit_code, 0) << script.err;
    EXPECT_EQ(run(program).exit_code, 2) << "no arguments is a usage error";
  }
}

TEST_F(Commands, CountsThatAreNoneAreRefusedInOneLine) {
  for (const char* command : {"evaluate perplexity --max-windows -1", "evaluate perplexity --max-windows=0",
                              "runner bench --tokens 1.5", "quantize plan rtn --samples many"}) {
    const ProcessResult r = run(command);
    EXPECT_EQ(r.exit_code, 2) << command;
    EXPECT_NE(r.err.find(": expected a whole number of at least 1, found "), std::string::npos) << r.err;
  }
}

TEST_F(Commands, GenerateIsReproducible) {
  const std::string command = "runner generate --device cpu --prompt 'The old house' --max-tokens 12 --json -";
  EXPECT_EQ(json_of(run(command))["ids"], json_of(run(command))["ids"]);
  const std::string sampled = command + " --temperature 0.9 --top-p 0.9 --seed 7";
  const Json a = json_of(run(sampled));
  EXPECT_EQ(a["ids"], json_of(run(sampled))["ids"]);
  EXPECT_EQ(a["ids"].size(), 12u);
}

TEST_F(Commands, SelfCalibration) {
  const ProcessResult r = run("quantize gptq " + kDemo + " out --calib self --samples 2 --seq-len 64 --device cpu");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 0);
}

// What is wrong, the words the one line must hold, and the exit code. Nothing may be left behind.
TEST_F(Commands, BadInputIsOneClearLine) {
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
      {"quantize gptq+awq " + kDemo + " out", {"awq", "behind"}, 2},
      {"quantize gptq " + kDemo + " out --set '*.down_proj=awq'", {"awq", "transforms"}, 2},
      {"quantize gptq nowhere out", {"nowhere"}, 1},
      {"quantize gptq " + kDemo + " taken", {"taken", "exists"}, 2},
      {"quantize gptq " + kDemo + " no/such/folder/out", {"no/such/folder"}, 1},
      {"quantize gptq " + kDemo + " out --calib empty.txt", {"empty.txt"}, 1},
      {"quantize gptq " + kDemo + " out --calib short.txt", {"short.txt"}, 2},
      {"quantize gptq " + kDemo + " out --calib missing.txt", {"missing.txt"}, 1},
      {"quantize gptq " + kDemo + " out --group-size 0", {"group"}, 2},
      {"quantize 'gptq g0' " + kDemo + " out", {"g0"}, 2},
      {"quantize gptq " + kDemo + " out --act-order sideways", {"sideways", "gar"}, 2},
      {"quantize gptq " + kDemo + " out --format exl9", {"exl9", "marlin"}, 2},
      {"quantize gptq " + kDemo + " out --set '*.down_proj'", {"--set"}, 2},
      {"quantize gptq " + kDemo + " out --kv-cache int8", {"kv=int8", "runner"}, 2},
      {"quantize gptq " + kDemo + " out --kv-cache fp8 --format marlin", {"kv=fp8", "compressed-tensors"}, 1},
      {"quantize gptq " + kDemo + " out --set '*.q_proj=kv=fp8'", {"kv=", "whole run"}, 2},
      {"runner bench --kv-cache fp4", {"fp4", "int8"}, 2},
      {"evaluate perplexity --kv-cache fp4", {"fp4", "int8"}, 2},
      {"quantize gptq " + kDemo + " out --resume", {"resume"}, 2},
      {"evaluate perplexity nowhere", {"nowhere"}, 1},
      {"evaluate perplexity --data empty.txt", {"empty.txt"}, 1},
      {"evaluate perplexity --data short.txt --context 256", {"short.txt", "256"}, 2},
      {"evaluate perplexity --context 4096", {"4096", "2048"}, 2},
      {"evaluate perplexity --dtype int7", {"int7", "bf16"}, 2},
      {"evaluate verify " + kDemo, {"quant_report.json"}, 1},
      {"runner bench --tokens 100000", {"2048"}, 2},
      {"runner bench --prompt-tokens 16,4096", {"4096 prompt tokens", "2048"}, 2},
      {"runner bench --batch 1,0", {"--batch", "0"}, 2},
      {"runner bench --csv no/such/t.csv", {"no/such", "cannot write"}, 1},
      {"runner bench --compare a b --batch 1,2", {"--compare", "one shape"}, 2},
      {"runner bench nowhere", {"nowhere"}, 1},
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

TEST_F(Commands, AskingForAGpuWhereNoneIs) {
  if (Exec::cuda_available()) GTEST_SKIP() << "a GPU answers here";
  const ProcessResult r = run("quantize gptq " + kDemo + " out --device cuda");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("GPU"), std::string::npos) << first_line(r.err);
  EXPECT_FALSE(fs::exists(dir / "out"));
}

// Copies the demo model and lets `damage` break it.
class Damaged : public Commands {
 protected:
  void SetUp() override { fs::copy(kDemo, dir / "model", fs::copy_options::recursive); }
  void expect_refused(const std::vector<std::string>& words) {
    for (const std::string command : {"quantize gptq model out", "evaluate perplexity model", "runner bench model", "convert inspect model"}) {
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
  expect_refused({"model.safetensors"});
}
TEST_F(Damaged, LyingHeader) {
  std::fstream f(dir / "model/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  const uint64_t huge = uint64_t{1} << 40;
  f.write(reinterpret_cast<const char*>(&huge), 8);
  f.close();
  expect_refused({"model.safetensors"});
}
TEST_F(Damaged, MissingConfig) {
  fs::remove(dir / "model/config.json");
  expect_refused({"config.json"});
}

TEST_F(Commands, VerifyFindsAFlippedBit) {
  ASSERT_EQ(run("quantize rtn " + kDemo + " out --device cpu").exit_code, 0);
  const Json i = json_of(run("convert inspect out --json -"));
  std::fstream f(dir / "out/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  // A byte in the middle of the data: the packed codes are the bulk of what is I32 and I32 is stored first.
  f.seekp(100000);
  const char byte = static_cast<char>(f.peek() ^ 0x10);
  f.seekp(100000);
  f.write(&byte, 1);
  f.close();
  const ProcessResult v = run("evaluate verify out --device cpu --json -");
  EXPECT_EQ(v.exit_code, 1);
  EXPECT_FALSE(json_of(v)["ok"].get<bool>());
}

TEST_F(Commands, SameInputSameBytes) {
  ASSERT_EQ(run("quantize gptq " + kDemo + " a" + kFast + " --threads 1").exit_code, 0);
  ASSERT_EQ(run("quantize gptq " + kDemo + " b" + kFast + " --threads 2").exit_code, 0);
  EXPECT_EQ(run("cmp a/model.safetensors b/model.safetensors").exit_code, 0);
}

}  // namespace
}  // namespace fewbit::test

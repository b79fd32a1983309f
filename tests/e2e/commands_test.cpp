// The commands as a user types them, on the embedded demo model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/command_test.h"
#include "tests/support/paths.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class Commands : public CommandTest {};

TEST_F(Commands, QuantizeAsWritten) {
  fs::create_directory_symlink(kDemo, dir / "model");
  const ProcessResult r = run("quantize gptq model/ out/");
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(fs::exists(dir / "out/config.json"));
  EXPECT_TRUE(fs::exists(dir / "out/tokenizer.json"));
  EXPECT_TRUE(fs::exists(dir / "out/generation_config.json"));
  const std::string card = bytes_of_file(dir / "out/README.md");
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
  const std::string card = bytes_of_file(dir / "out/README.md");
  EXPECT_EQ(card.rfind("---\nlicense: mit\n---\n\n# model, quantized\n", 0), 0u) << card;
  EXPECT_NE(card.find("quantize 'rtn int4 g64' MODEL OUT --set '*.q_proj=int8' --keep '*.o_proj'\n"), std::string::npos)
      << card;
  EXPECT_EQ(card.substr(card.size() - 11), "The model.\n");
}

TEST_F(Commands, AwqAsWritten) {
  fs::create_directory_symlink(kDemo, dir / "model");
  const ProcessResult r = run("quantize awq model/ out/ --samples 4 --seq-len 256");
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
      const Json file = json("convert inspect out/model.safetensors");
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

TEST_F(Commands, JsonHasTheContractsKeys) {
  const Json q = json("quantize gptq " + kDemo + " out" + kFast);
  for (const char* key : {"recipe", "model", "out", "seconds", "phases", "peak_gpu_bytes", "peak_host_bytes",
                          "source_bytes", "out_bytes", "bits_per_weight", "linears"})
    EXPECT_TRUE(q.contains(key)) << key;
  for (const char* key :
       {"name", "recipe", "packing", "rel_error", "sqnr_db", "loss", "loss_rtn", "rung", "tokens", "seconds"})
    EXPECT_TRUE(q["linears"][0].contains(key)) << key;
  const Json e = json("evaluate perplexity out --device cpu --max-windows 1 --context 128");
  for (const char* key :
       {"perplexity", "stderr", "mean_nll", "tokens", "windows", "context", "protocol", "dtype", "seconds"})
    EXPECT_TRUE(e.contains(key)) << key;
  EXPECT_EQ(e["tokens"], 127);
  const Json b = json("runner bench out --device cpu --tokens 5 --prompt-tokens 8");
  for (const char* key :
       {"load_s", "prefill_tokens_per_s", "ttft_ms", "ms_per_token", "tokens_per_s", "bytes_per_token", "gb_per_s",
        "floor_share", "peak_bytes", "device", "batch", "prompt_tokens", "tokens", "copy_gb_per_s", "read_gb_per_s"})
    EXPECT_TRUE(b.contains(key)) << key;
  EXPECT_FALSE(b.contains("rows")) << "a single shape is the object itself";
  for (const char* key : {"mean", "std", "p50", "p90", "p95", "p99"})
    EXPECT_TRUE(b["ms_per_token"].contains(key)) << key;
  const Json i = json("convert inspect out");
  for (const char* key : {"format", "architecture", "parameters", "bytes", "tensors"})
    EXPECT_TRUE(i.contains(key)) << key;
  EXPECT_EQ(i["format"], "marlin");
  const Json p = json("quantize plan gptq " + kDemo);
  for (const char* key : {"refusals", "peak_gpu_bytes", "peak_host_bytes", "out_bytes", "linears"})
    EXPECT_TRUE(p.contains(key)) << key;
  EXPECT_EQ(p["out_bytes"], q["out_bytes"]) << "the plan predicts the size that is written";
  EXPECT_GT(p["time"]["seconds"], 0);
  for (const char* phase : {"load", "forward", "observe", "quantize", "measure", "pack", "write"})
    EXPECT_TRUE(p["time"]["phases"].contains(phase)) << phase;
  EXPECT_GT(q["planned_total_seconds"], 0);
  EXPECT_TRUE(q["planned_seconds"].contains("forward"));
  EXPECT_TRUE(q["hidden_seconds"].contains("write"));
  EXPECT_FALSE(p["memory"]["stops"].empty());
}

TEST_F(Commands, OfAGpuThatIsNotHereNoTimeIsSaid) {
  const std::string plan = "quantize plan gptq " + kDemo + " --gpu-memory 24GiB --device cpu";
  EXPECT_TRUE(json(plan)["time"].is_null());
  EXPECT_NE(run(plan).out.find("time: not known"), std::string::npos);
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
  const Json p =
      json("quantize plan 'gptq int4 g128' " + kDemo + " --set '*.down_proj=int8' --keep 'model.layers.0.*'");
  for (const Json& l : p["linears"]) {
    const std::string name = l["name"], recipe = l["recipe"];
    if (name.find("layers.0.") != std::string::npos)
      EXPECT_EQ(recipe, "keep") << name;
    else if (name.find("down_proj") != std::string::npos)
      EXPECT_EQ(recipe, "gptq int8 g128 sym") << name;
    else
      EXPECT_EQ(recipe, "gptq int4 g128 sym") << name;
  }
  ASSERT_EQ(
      run("quantize 'gptq int4 g128' " + kDemo + " out --set '*.down_proj=int8' --keep 'model.layers.0.*'" + kFastest)
          .exit_code,
      0);
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 0);
}

// The demo model is tied: its one matrix outside the blocks is quantized under its name.
TEST_F(Commands, TheEmbeddingIsQuantizedWhereItIsNamed) {
  for (const std::string format : {"marlin", "gptq", "compressed-tensors", "gguf:q8_0"}) {
    const bool gguf = format == "gguf:q8_0";
    const std::string rule = gguf ? "rtn" : "int8 g128";
    const Json q = json("quantize rtn " + kDemo + " out --force --format " + format +
                        " --set 'model.embed_tokens=" + rule + "'" + kFastest);
    EXPECT_EQ(q["linears"].back()["name"], "model.embed_tokens") << format;
    EXPECT_LT(q["out_bytes"].get<double>(), 0.6 * q["source_bytes"].get<double>()) << format;
    const ProcessResult v = run("evaluate verify out --device cpu");
    EXPECT_EQ(v.exit_code, 0) << format << v.out << v.err;
    const Json i = json("convert inspect out");
    EXPECT_FALSE(i["quantized"].empty());
    for (const Json& t : i["tensors"])
      if (t["name"] == "model.embed_tokens.weight") {
        EXPECT_EQ(t["dtype"], gguf ? "q8_0" : "none") << format;
      }
    EXPECT_EQ(run("runner bench out --device cpu --tokens 3 --prompt-tokens 4").exit_code, 0);
    fs::remove_all(dir / "out");
  }
  const ProcessResult tied = run("quantize rtn " + kDemo + " out --set 'lm_head=int8'");
  EXPECT_EQ(tied.exit_code, 1);
  EXPECT_NE(tied.err.find("lm_head: is tied to model.embed_tokens"), std::string::npos) << tied.err;
}

// Every method's record has the fields of a record, and what it minimised is no worse than rtn's.
TEST_F(Commands, EveryMethodRecordsItsLosses) {
  for (const std::string recipe : {"rtn", "gptq", "awq", "awq+gptq", "smoothquant", "fp8", "auto"}) {
    const Json q = json("quantize " + recipe + " " + kDemo + " out --force --effort quick" + kFastest);
    for (const Json& l : q["linears"]) {
      for (const char* key : {"name", "recipe", "packing", "rel_error", "sqnr_db", "loss", "loss_rtn", "loss_target",
                              "loss_target_rtn", "rung", "tokens", "seconds", "hash"})
        ASSERT_TRUE(l.contains(key)) << recipe << " " << key;
      EXPECT_GT(l["rel_error"].get<double>(), 0) << recipe;
      EXPECT_GT(l["sqnr_db"].get<double>(), 3) << recipe;
      EXPECT_GT(l["seconds"].get<double>(), 0) << recipe;
      EXPECT_LE(l["loss_target"].get<double>(), l["loss_target_rtn"].get<double>()) << recipe << " " << l["name"];
      const bool free = recipe == "rtn" || recipe == "fp8";
      EXPECT_EQ(l["tokens"].get<int>() > 0, !free) << recipe;
      EXPECT_EQ(l["loss"].get<double>() > 0, !free) << recipe;
    }
    fs::remove_all(dir / "out");
  }
}

// An FP8 cache with calibrated scales and an int8 one cost next to nothing, one of 4 bits little; runner and evaluate
// take them all.
TEST_F(Commands, QuantizedCachesAreCalibratedRunAndMeasured) {
  const Json q = json("quantize rtn " + kDemo + " out --kv-cache fp8 --bits 8" + kFast);
  ASSERT_EQ(q["kv_scales"].size(), 4u);
  EXPECT_EQ(json("quantize plan 'rtn int8 kv=fp8' " + kDemo)["out_bytes"], q["out_bytes"]);
  const Json config = Json::parse(std::ifstream(dir / "out/config.json"));
  EXPECT_EQ(config["quantization_config"]["kv_cache_scheme"]["type"], "float");
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 0);
  const auto perplexity = [&](const std::string& cache) -> double {
    const Json j = json("evaluate perplexity out --device cpu --context 256 --max-windows 8 --kv-cache " + cache);
    EXPECT_EQ(j["kv_cache"], cache);
    return j["perplexity"];
  };
  const double plain = perplexity("bf16");
  EXPECT_NE(perplexity("fp8"), plain);
  EXPECT_NEAR(perplexity("fp8") / plain, 1, 5e-3);
  EXPECT_NEAR(perplexity("int8") / plain, 1, 1e-3);
  EXPECT_NEAR(perplexity("int4") / plain, 1, 2e-2);
  EXPECT_NE(perplexity("kivi2"), plain);
  EXPECT_NEAR(perplexity("kivi2") / plain, 1, 2e-2);
  const ProcessResult bench = run("runner bench out --device cpu --tokens 5 --prompt-tokens 8 --kv-cache fp8");
  EXPECT_EQ(bench.exit_code, 0) << bench.err;
  EXPECT_EQ(bench.out.find("scale is 1"), std::string::npos) << bench.out;
  EXPECT_NE(run("runner bench --device cpu --tokens 5 --prompt-tokens 8 --kv-cache fp8").out.find("scale is 1"),
            std::string::npos);
  const Json k =
      json("evaluate compare " + kDemo + " " + kDemo + " --device cpu --context 256 --max-windows 4 --kv-cache int8");
  EXPECT_GT(k["models"][0]["kl"]["mean"].get<double>(), 0) << "the baseline keeps its keys and values as they are";
}

TEST_F(Commands, ListNamesTheRegistries) {
  const ProcessResult r = run("quantize list");
  EXPECT_EQ(r.exit_code, 0);
  for (const char* word :
       {"rtn", "gptq", "awq", "marlin", "gptq_v2", "safetensors", "LlamaForCausalLM", "Qwen3ForCausalLM"})
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

TEST_F(Commands, GenerateIsReproducible) {
  const std::string command = "runner generate --device cpu --prompt 'The old house' --max-tokens 12";
  EXPECT_EQ(json(command)["ids"], json(command)["ids"]);
  const std::string sampled = command + " --temperature 0.9 --top-p 0.9 --seed 7";
  const Json a = json(sampled);
  EXPECT_EQ(a["ids"], json(sampled)["ids"]);
  EXPECT_EQ(a["ids"].size(), 12u);
  EXPECT_TRUE(a["speculation"].is_null());
}

TEST_F(Commands, SelfCalibration) {
  const std::string self = " --calib self --samples 2 --seq-len 32 --effort quick --device cpu";
  done("quantize gptq " + kDemo + " out" + self);
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 0);
  const ProcessResult r = run("quantize gptq " + kDemo + " other --max-host-memory 6MiB" + self);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("--calib builtin"), std::string::npos) << r.err;
#if !defined(__SANITIZE_ADDRESS__)
  // Killed behind the sampling and before the first block is sealed: what was sampled is there for --resume.
  const std::string preload = "LD_PRELOAD='" + in_build("tests/libfaults.so") + "' KILL_AT=";
  for (int at = 24; !std::filesystem::exists(dir / "again.partial/sampled-text") && at < 100; ++at)
    run(preload + std::to_string(at) + " quantize gptq " + kDemo + " again" + self);
  ASSERT_TRUE(std::filesystem::exists(dir / "again.partial/sampled-text"));
  done("quantize gptq " + kDemo + " again --resume" + self);
  EXPECT_EQ(bytes_of_file(dir / "again/model.safetensors"), bytes_of_file(dir / "out/model.safetensors"));
#endif
}

TEST_F(Commands, IdsCalibrateWithoutATokenizer) {
  done("convert synth m --preset tiny --tokens 2000 --seq-len 128");  // 15 windows
  const std::string ids = " --calib m/calibration.safetensors --device cpu ";
  const Json all = json("quantize gptq m all" + ids);
  EXPECT_EQ(all["samples"], 15);
  EXPECT_EQ(all["seq_len"], 128) << "as long as the file has them";
  EXPECT_EQ(all["note"], "warning: m/calibration.safetensors holds 15 windows instead of 128");
  EXPECT_EQ(all["calibration"], "m/calibration.safetensors");
  const Json some = json("quantize gptq m some" + ids + "--samples 4 --seq-len 100");
  EXPECT_EQ(some["samples"], 4);
  EXPECT_EQ(some["seq_len"], 100);
  EXPECT_EQ(some["note"], "");
  EXPECT_NE(some["linears"][0]["hash"], all["linears"][0]["hash"]);
  EXPECT_EQ(json("quantize plan gptq m" + ids)["peak_host_bytes"],
            json("quantize plan gptq m --samples 15 --seq-len 128 --device cpu")["peak_host_bytes"]);
  const ProcessResult longer = run("quantize gptq m out" + ids + "--seq-len 129");
  EXPECT_EQ(longer.exit_code, 2);
  EXPECT_NE(longer.err.find("128 tokens"), std::string::npos) << longer.err;
  EXPECT_EQ(run("quantize gptq m out --calib builtin" + ids).exit_code, 2) << "sources cannot be mixed";
  const auto writer = container_safetensors.create(dir / "other", {});
  writer->add("input_ids", Tensor::host_from<int32_t>(DType::i32, {1, 4}, std::vector<int32_t>{1, 2, 600, 3}));
  writer->finish();
  const ProcessResult foreign = run("quantize gptq m out --calib other/model.safetensors --device cpu");
  EXPECT_EQ(foreign.exit_code, 1);
  EXPECT_NE(foreign.err.find("vocabulary is [0, 512)"), std::string::npos) << foreign.err;
  EXPECT_FALSE(fs::exists(dir / "out") || fs::exists(dir / "out.partial"));
}

// What is wrong, the words the one line must hold, and the exit code. Nothing may be left behind.
TEST_F(Commands, VerifyFindsAFlippedBit) {
  ASSERT_EQ(run("quantize rtn " + kDemo + " out --device cpu").exit_code, 0);
  const Json i = json("convert inspect out");
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

// What a new user types wrongly: every answer is one line that says the flag, word or file, what was expected, what was
// found, and the nearest name that exists.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class WrongInput : public CommandTest {
 protected:
  // The one line, and nothing left behind.
  std::string answer(const std::string& command, int exit_code) {
    const ProcessResult r = run(command);
    EXPECT_EQ(r.exit_code, exit_code) << command << ": " << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << command << ": " << r.err;
    EXPECT_EQ(r.err.find(command.substr(0, command.find(' ')) + ": "), 0u) << command << ": " << r.err;
    EXPECT_TRUE(fs::is_empty(dir.path())) << command << " left something behind";
    return r.err;
  }
};

TEST_F(WrongInput, TyposAnswerWithTheNearest) {
  const std::string gptq = "quantize gptq " + kDemo + " out ";
  const std::pair<std::string, std::string> cases[] = {
      {"quantize gtpq " + kDemo + " out", "\"gptq\"?"},
      {"quantize rnt " + kDemo + " out", "\"rtn\"?"},
      {"quantize smothquant " + kDemo + " out", "\"smoothquant\"?"},
      {"quantize awq+gtpq " + kDemo + " out", "\"awq+gptq\"?"},
      {"quantize 'gptq itn4' " + kDemo + " out", "\"int4\"?"},
      {"quantize 'gptq asymm' " + kDemo + " out", "\"asym\"?"},
      {"quantize 'rtn nvpf4' " + kDemo + " out", "\"nvfp4\"?"},
      {"quantize 'gptq efort=best' " + kDemo + " out", "\"effort\"?"},
      {"quantize 'gptq effort=bset' " + kDemo + " out", "\"best\"?"},
      {"quantize 'gptq acts=tokn' " + kDemo + " out", "\"token\"?"},
      {"quantize 'auto schemes=int4,nvpf4' " + kDemo + " out", "\"nvfp4\"?"},
      {"quantize auto " + kDemo + " out --schemes int4,fp9", "\"fp8\"?"},
      {gptq + "--format compresed-tensors", "\"compressed-tensors\"?"},
      {"quantize rtn " + kDemo + " out --format gguf:q4k", "\"q4_k\"?"},
      {gptq + "--for vlm", "\"vllm\"?"},
      {gptq + "--grup-size 64", "--group-size?"},
      {"quantize pln gptq " + kDemo, "`quantize plan`?"},
      {"quantize advise " + kDemo + " --gpu rtx4900", "\"rtx4090\"?"},
      {"evaluate perplexty", "perplexity?"},
      {"evaluate perplexity --protocol gtpq", "\"gptq\"?"},
      {"runner bench --heda fp8", "--head?"},
      {"runner plan llama3-8b --device rtx4900", "\"rtx4090\"?"},
      {"runner plan lama3-8b --device h200", "\"llama3-8b\"?"},
      {"convert synth --preset lama3-8b out", "\"llama3-8b\"?"},
  };
  for (const auto& [command, nearest] : cases) {
    const std::string line = answer(command, 2);
    EXPECT_NE(line.find("did you mean " + nearest), std::string::npos) << command << ": " << line;
  }
}

TEST_F(WrongInput, FlagsAndWordsSayWhatTheyTake) {
  const std::string gptq = "quantize gptq " + kDemo + " out ";
  struct Case {
    std::string command;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"quantize quarot+gptq " + kDemo + " out", {"quarot", "rotates", "rotate+gptq int4 acts=token4"}},
      {"quantize exl2 " + kDemo + " out", {"exl2", "auto"}},
      {"quantize 'gptq xyz' " + kDemo + " out", {"RECIPE", "xyz", "expected a method", "example"}},
      {"quantize 'gptq int12' " + kDemo + " out", {"RECIPE", "int12", "expected int2"}},
      {"quantize 'gptq g0' " + kDemo + " out", {"RECIPE", "g0", "expected a group size"}},
      {"quantize 'gptq damp=2' " + kDemo + " out", {"--damp", "between 0 and 1", "\"2\""}},
      {"quantize 'gptq percentile=99' " + kDemo + " out",
       {"percentile=", "acts=tensor", "found acts=off", "leave percentile= out"}},
      {"quantize 'gptq acts=tensor percentile=101' " + kDemo + " out", {"percentile=", "up to 100", "101"}},
      {"quantize 'smoothquant alpha=5' " + kDemo + " out", {"--alpha", "from 0 to 1", "\"5\""}},
      {"quantize 'auto target-bits=20' " + kDemo + " out", {"--target-bits", "between 2 and 16", "20"}},
      {"quantize 'gptq schemes=int4' " + kDemo + " out", {"schemes=", "auto"}},
      {"quantize 'auto budget=some' " + kDemo + " out", {"--budget", "expected all, active", "2.5ms@rtx4090"}},
      {"quantize 'auto schemes=int4,' " + kDemo + " out", {"--schemes", "int3 int4", "nvfp4"}},
      {"quantize 'rtn act=full' " + kDemo + " out", {"act=full", "rtn", "leave it out"}},
      {"quantize ''", {"RECIPE", "--help"}},
      {gptq + "--bits 12", {"--bits", "expected a whole number from 2 to 8", "found 12", "--help"}},
      {gptq + "--bits four", {"--bits", "expected a whole number", "found four"}},
      {gptq + "--samples many", {"--samples", "of at least 1", "found many"}},
      {gptq + "--seq-len 1", {"--seq-len", "from 2 to", "found 1"}},
      {gptq + "--damp much", {"--damp", "expected a number", "much"}},
      {gptq + "--threads -1", {"--threads", "from 0 to 4096", "found -1"}},
      {gptq + "--dtype fp16", {"--dtype", "fp16", "known: float32 bf16"}},
      {gptq + "--device gpu", {"--device", "gpu", "known: auto cpu cuda"}},
      {gptq + "--tp 2", {"--tp", "--for", "which was not given", "--help"}},
      {gptq + "--max-host-memory 8XB", {"--max-host-memory", "expected a size", "8XB"}},
      {gptq + "--max-host-memory", {"--max-host-memory", "expected a value", "found none"}},
      {gptq + "--scratch nowhere", {"--scratch", "nowhere", "folder", "make it first"}},
      {gptq + "--json nowhere/x.json", {"--json", "nowhere/x.json", "folder that exists"}},
      {gptq + "--asym --sym", {"--sym", "--asym", "give one of them", "--help"}},
      {gptq + "--set '*.down_proj'", {"--set", "expected GLOB=RECIPE"}},
      {gptq + "--set '*.dwon_proj=int8'", {"--set '*.dwon_proj'", "no linear", "did you mean '*.down_proj'?"}},
      {gptq + "--keep 'mlp.gate'", {"--keep 'mlp.gate'", "no linear", "names in a block"}},
      {gptq + "--frobnicate", {"unknown flag --frobnicate", "known:", "--group-size"}},
      {gptq + "extra", {"\"extra\"", "too many", "--help"}},
      {"quantize advise " + kDemo, {"--gpu", "required", "advise --help"}},
      {"quantize advise " + kDemo + " --gpu h100 --goal speed", {"--goal", "speed", "memory latency quality"}},
      {"quantize --completion fish", {"--completion", "fish", "known: bash zsh"}},
      {"evaluate frobnicate", {"unknown command", "frobnicate", "perplexity"}},
      {"evaluate compare " + kDemo, {"MODEL", "required", "compare --help"}},
      {"evaluate perplexity --context 1", {"--context", "from 2", "found 1"}},
      {"evaluate verify", {"OUT", "required"}},
      {"runner frobnicate", {"unknown command", "frobnicate", "bench"}},
      {"runner bench --head fp9", {"--head", "fp9", "known: stored"}},
      {"runner bench --acts int9", {"--acts", "int9", "known: bf16"}},
      {"runner bench --kv-cache fp5", {"--kv-cache", "fp5", "int8"}},
      {"runner bench --ops linaer", {"--ops", "linear"}},
      {"runner generate --prompt", {"--prompt", "expected a value"}},
      {"runner generate --device cpu --prompt a --speculate ngram:99", {"--speculate", "from 1 to 31", "ngram:99"}},
      {"runner plan llama3-8b", {"--device", "required", "plan --help"}},
      {"runner plan llama3-8b --device h200 --context 9000", {"--context", "8192 positions", "found 9000"}},
      {"runner plan llama3-8b --device h200 --pp 40", {"--pp", "32 layers", "found 40"}},
      {"runner plan llama3-8b --device h200 --recipe auto", {"--recipe", "states its bits", "found auto"}},
      {"runner plan llama3-8b --device h200 --recipe 'rtn format=gguf:q4_k'", {"--recipe", "tokenizer", "folder"}},
      {"runner generate --top-p 2", {"--top-p", "from 0 to 1", "found 2"}},
      {"convert to mralin " + kDemo + " out", {"FORMAT", "--format", "mralin", "marlin"}},
      {"convert to gguf:q44 " + kDemo + " out", {"gguf:TYPE", "q44", "q4_0"}},
      {"convert synth --preset tiny --format malrin out", {"malrin", "marlin"}},
      {"convert synth --preset tiny", {"OUT", "required"}},
  };
  for (const Case& c : cases) {
    const std::string line = answer(c.command, 2);
    for (const std::string& word : c.says) EXPECT_NE(line.find(word), std::string::npos) << c.command << ": " << line;
  }
}

TEST_F(WrongInput, EqualRefusalsAreOneLine) {
  done("quantize rtn " + kDemo + " packed --quiet");
  const ProcessResult r = run("quantize gptq packed out");
  EXPECT_EQ(r.exit_code, 1) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  for (const char* word : {"28 linears", "already quantized (marlin)", "27 more", "bf16"})
    EXPECT_NE(r.err.find(word), std::string::npos) << r.err;
}

TEST_F(WrongInput, ForceReplacesAConversion) {
  done("quantize rtn " + kDemo + " packed --quiet");
  done("convert to gptq packed out");
  const ProcessResult again = run("convert to gptq packed out");
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.err.find("--force"), std::string::npos) << again.err;
  done("convert to bf16 packed out --force");
  EXPECT_EQ(json("convert inspect out")["format"], "dense");
  fs::create_directories(dir / "other");
  EXPECT_EQ(run("convert to bf16 packed other --force").exit_code, 2);  // no checkpoint: not ours to remove
}

TEST_F(WrongInput, AdviceHoldsThePlansFiguresInTheOrderOfTheGoal) {
  const Json memory = json("quantize advise " + kDemo + " --gpu rtx4090 --engine vllm --goal memory");
  const Json quality = json("quantize advise " + kDemo + " --gpu rtx4090 --engine vllm --goal quality");
  ASSERT_GE(memory["ranked"].size(), 5u);
  for (size_t i = 1; i < memory["ranked"].size(); ++i) {
    EXPECT_LE(memory["ranked"][i - 1]["checkpoint_bytes"], memory["ranked"][i]["checkpoint_bytes"]);
    EXPECT_LE(quality["ranked"][i - 1]["lab_gap_percent"], quality["ranked"][i]["lab_gap_percent"]);
  }
  EXPECT_EQ(quality["ranked"][0]["recipe"], "");  // the model as it is
  const Json& best = memory["ranked"][0];
  const Json plan = json("quantize plan '" + best["recipe"].get<std::string>() + "' " + kDemo + " --for vllm");
  EXPECT_EQ(plan["out_bytes"], best["checkpoint_bytes"]);
  for (const Json& r : memory["refused"]) EXPECT_EQ(r.get<std::string>().find("rtn format=gguf"), 0u) << r;
  const Json llama = json("quantize advise " + kDemo + " --gpu l4 --engine llama.cpp");
  EXPECT_NE(llama["ranked"][0]["recipe"].get<std::string>().find("gguf"), std::string::npos);
}

TEST_F(WrongInput, NumbersThatMustBeAboveZeroSaySo) {
  const std::pair<std::string, std::string> cases[] = {
      {"evaluate certify a b --max-kl 0", "expected a number of nats a token above 0, found 0"},
      {"evaluate certify a b --max-kl-domain -1", "expected a number of nats a token above 0, found -1"},
      {"quantize 'gptq effort=best' " + kDemo + " out --minutes 0", "expected a number of minutes above 0, found 0"},
      {"quantize 'gptq effort=best' " + kDemo + " out --minutes inf",
       "expected a number of minutes above 0, found inf"},
  };
  for (const auto& [command, says] : cases) {
    const std::string line = answer(command, 2);
    EXPECT_NE(line.find(says), std::string::npos) << command << ": " << line;
  }
}

TEST_F(WrongInput, ATextThatIsNotThereIsNamedWithItsFlag) {
  for (const std::string& command : {"quantize gptq " + kDemo + " out --calib nofile.txt --device cpu",
                                     "quantize plan auto " + kDemo + " --calib nofile.txt --device cpu",
                                     "evaluate perplexity " + kDemo + " --data nofile.txt --device cpu"}) {
    const std::string line = answer(command, 2);
    EXPECT_NE(line.find("nofile.txt: there is no such file; give builtin, "), std::string::npos) << line;
    EXPECT_NE(line.find(": --"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace fewbit::test

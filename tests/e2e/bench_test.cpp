// `runner bench` as a user types it, on the embedded demo model.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

class Bench : public CommandTest {};

TEST_F(Bench, AsWritten) {
  const ProcessResult r = run("runner bench --tokens 200");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("per token"), std::string::npos) << r.out;
}

TEST_F(Bench, MakesARowOfEveryCombination) {
  const Json j = json(
      "runner bench --device cpu --prompt-tokens 4,8 --tokens 3 --batch 1,2 --repetitions 2 --markdown t.md "
      "--csv t.csv");
  ASSERT_EQ(j["rows"].size(), 4u);
  EXPECT_EQ(j["repetitions"], 2);
  std::vector<std::vector<int>> shapes;
  for (const Json& row : j["rows"]) {
    shapes.push_back({row["batch"], row["prompt_tokens"], row["tokens"]});
    EXPECT_GT(row["ms_per_token"]["p50"].get<double>(), 0);
    EXPECT_GE(row["std"]["ttft_ms"].get<double>(), 0);
    EXPECT_NEAR(row["floor_share"].get<double>(), row["gb_per_s"].get<double>() / j["read_gb_per_s"].get<double>(),
                1e-9);
  }
  EXPECT_EQ(shapes, (std::vector<std::vector<int>>{{1, 4, 3}, {1, 8, 3}, {2, 4, 3}, {2, 8, 3}}));
  EXPECT_EQ(j["ms_per_token"], j["rows"][0]["ms_per_token"]) << "the object itself speaks of the first row";
  // As many cells in every line: 15 columns between 16 bars; 33 values, none of which holds a comma.
  const auto lines_with = [&](const std::string& name, char mark, long count) {
    std::ifstream in(dir / name);
    int lines = 0;
    for (std::string line; std::getline(in, line);) lines += std::count(line.begin(), line.end(), mark) == count;
    return lines;
  };
  EXPECT_EQ(lines_with("t.md", '|', 16), 6) << "head, rule, four rows";
  EXPECT_EQ(lines_with("t.csv", ',', 32), 5) << "names, four rows";
  // The commas end a list: the next word is the model.
  EXPECT_EQ(run("runner bench --device cpu --batch 1,2 --tokens 1 " + kDemo).exit_code, 0);
}

TEST_F(Bench, RoundsTheHead) {
  const Json stored = json("runner bench --device cpu --prompt-tokens 4 --tokens 2");
  EXPECT_EQ(stored["head"], "stored");
  EXPECT_EQ(stored["kernels"].back(), "1 x dense head");
  EXPECT_EQ(stored["one_launch"], false);
  EXPECT_EQ(stored["steps"], "op by op");
  EXPECT_NE(stored["why_op_by_op"].get<std::string>().find("CPU"), std::string::npos);
  int64_t bytes = stored["bytes_per_token"];
  for (const auto& [head, kind] : {std::pair{"fp8", "1 x fp8a16 head"}, {"int4", "1 x row4 head"}}) {
    const Json j = json(std::string("runner bench --device cpu --prompt-tokens 4 --tokens 2 --head ") + head);
    EXPECT_EQ(j["head"], head);
    EXPECT_EQ(j["kernels"].back(), kind);
    EXPECT_EQ(j["notes"].size(), 1u) << j["notes"];
    EXPECT_LT(j["bytes_per_token"].get<int64_t>(), bytes);
    bytes = j["bytes_per_token"];
  }
  const Json text = json("runner generate --device cpu --prompt Once --max-tokens 4 --head fp8");
  EXPECT_EQ(text["head"], "fp8");
  EXPECT_EQ(text["ids"].size(), 4u);
  EXPECT_NE(run("runner bench --device cpu --head int5").err.find("known: stored bf16 fp8 int4"), std::string::npos);
  // What a rounded head costs is measured as a cache is.
  const std::string scored = " --device cpu --context 64 --max-windows 2";
  EXPECT_NE(json("evaluate perplexity --head fp8" + scored)["perplexity"],
            json("evaluate perplexity" + scored)["perplexity"]);
}

TEST_F(Bench, WeightOnlyFp8HasAKernelOfItsOwn) {
  ASSERT_EQ(run("quantize 'fp8 acts=off' " + kDemo + " q --device cpu").exit_code, 0);
  const Json j = json("runner bench q --device cpu --prompt-tokens 4 --tokens 2");
  EXPECT_EQ(j["kernels"], Json({"28 x fp8a16", "1 x dense head"}));
  EXPECT_EQ(j["notes"], Json::array());
}

TEST_F(Bench, RefusesToRoundAPackedHead) {
  ASSERT_EQ(run("quantize rtn " + kDemo + " q --device cpu --set model.embed_tokens=int8").exit_code, 0);
  const ProcessResult r = run("runner bench --device cpu --tokens 1 --head fp8 q");
  EXPECT_NE(r.exit_code, 0);
  EXPECT_NE(r.err.find("packed already"), std::string::npos) << r.err;
  EXPECT_EQ(json("runner bench --device cpu --tokens 1 --head bf16 q")["kernels"].back(), "1 x dense head");
}

TEST_F(Bench, ComparesTwoCheckpointsInTurn) {
  const Json j = json("runner bench --compare " + kDemo + " " + kDemo +
                      " --device cpu --tokens 8 --prompt-tokens 4 --repetitions 2");
  EXPECT_EQ(j["a"]["bytes_per_token"], j["b"]["bytes_per_token"]);
  EXPECT_GT(j["ratio"].get<double>(), 0);
  EXPECT_GE(j["ratio_stderr"].get<double>(), 0);
  EXPECT_GT(j["b"]["ms_per_token"]["mean"].get<double>(), 0);
  for (const char* key :
       {"ttft_ratio", "ttft_ratio_stderr", "copy_gb_per_s", "read_gb_per_s", "peak_bytes", "device", "tokens"})
    EXPECT_TRUE(j.contains(key)) << key;
}

TEST_F(Bench, UnderLoadMakesARowOfEveryLevel) {
  const Json j = json(
      "runner bench --device cpu --concurrency 1,3 --prompt-tokens uniform:4-40 --tokens 5,1 --requests 6 "
      "--slo ttft=100s,e2e=200s --csv t.csv --markdown t.md");
  ASSERT_EQ(j["rows"].size(), 4u);
  EXPECT_EQ(j["loop"], "closed");
  EXPECT_EQ(j["slo"], (Json{{"ttft_ms", 1e5}, {"itl_ms", nullptr}, {"e2e_ms", 2e5}}));
  for (const Json& row : j["rows"]) {
    const int tokens = std::stoi(row["tokens"].get<std::string>());
    EXPECT_EQ(row["prompt_tokens"], "uniform:4-40");
    EXPECT_EQ(row["requests"], 6);
    EXPECT_EQ(row["total_tokens"], 6 * tokens);
    EXPECT_EQ(row["total_prompt_tokens"], j["rows"][0]["total_prompt_tokens"]) << "the same prompts in every row";
    EXPECT_EQ(row["within_slo"], 6);
    EXPECT_EQ(row["goodput"], row["requests_per_s"]);
    EXPECT_EQ(row["itl_ms"]["p50"].is_null(), tokens == 1);
    for (const char* key : {"ttft_ms", "e2e_ms"}) EXPECT_GE(row[key]["p99"], row[key]["p50"]) << key;
  }
  std::map<std::string, std::set<long>> marks;  // how many stand in the lines of a file
  for (const auto& [name, mark] : {std::pair{"t.csv", ','}, {"t.md", '|'}}) {
    std::ifstream in(dir / name);
    for (std::string line; std::getline(in, line);)
      if (const long n = std::count(line.begin(), line.end(), mark); n > 3) marks[name].insert(n);
  }
  EXPECT_EQ(marks["t.csv"].size(), 1u) << "as many cells in every line";
  EXPECT_EQ(marks["t.md"], std::set<long>{14});
}

TEST_F(Bench, UnderLoadTakesAFileOfArrivals) {
  std::ofstream(dir / "a.jsonl") << R"({"arrival": 0, "prompt_tokens": 20, "tokens": 4})"
                                    "\n\n"
                                 << R"({"arrival": 0.05, "prompt_tokens": 9, "tokens": 2})"
                                    "\n";
  const Json j = json("runner bench --device cpu --concurrency 2 --arrivals a.jsonl");
  EXPECT_EQ(j["loop"], "open");
  EXPECT_EQ(j["rows"][0]["total_prompt_tokens"], 29);
  EXPECT_EQ(j["rows"][0]["total_tokens"], 6);
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"arrival": 1, "prompt_tokens": 20, "tokens": 4, "n": 1})", "unknown key \"n\""},
      {R"({"arrival": 1, "prompt_tokens": 0, "tokens": 4})", "prompt_tokens: expected a whole number from 1"},
      {R"({"arrival": 1, "prompt_tokens": 3})", "tokens: expected a whole number"},
      {R"({"arrival": "1", "prompt_tokens": 3, "tokens": 4})", "arrival: expected seconds"},
      {R"({"arrival": 1, "prompt_tokens": 3, "tokens": 4)", "b.jsonl:2"},
      {R"({"arrival": 0.1, "prompt_tokens": 3, "tokens": 4})", "sort the lines"},
      {"[]", "expected {"},
  };
  for (const auto& [line, says] : wrong) {
    std::ofstream(dir / "b.jsonl") << R"({"arrival": 0.5, "prompt_tokens": 20, "tokens": 4})"
                                   << "\n"
                                   << line << "\n";
    const ProcessResult r = run("runner bench nowhere --device cpu --concurrency 2 --arrivals b.jsonl");
    EXPECT_EQ(r.exit_code, 1) << line;
    EXPECT_NE(r.err.find(says), std::string::npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  }
}

// No model is opened for them: there is none.
TEST_F(Bench, UnderLoadRefusesWhatMakesNoSense) {
  const std::pair<const char*, const char*> wrong[] = {
      {"--concurrency 0", "expected a whole number from 1"},
      {"--concurrency 2 --batch 2", "--batch"},
      {"--concurrency 2 --repetitions 2", "--repetitions"},
      {"--concurrency 2 --trace t.json", "--trace"},
      {"--concurrency 2 --ops", "--ops"},
      {"--concurrency 2 --tp 1", "--tp"},
      {"--concurrency 2 --speculate mtp", "one sequence"},
      {"--concurrency 2 --speculate draft", "--draft"},
      {"--speculate ngram", "--concurrency"},
      {"--rate 2", "--concurrency"},
      {"--slo ttft=1s", "--concurrency"},
      {"--no-prefix-cache", "--concurrency"},
      {"--concurrency 2 --rate 0", "expected a number"},
      {"--concurrency 2 --rate 2 --arrivals a.jsonl", "--arrivals"},
      {"--concurrency 2 --tokens 3 --arrivals a.jsonl", "--tokens"},
      {"--concurrency 2 --tokens uniform:9-3", "found uniform:9-3"},
      {"--concurrency 2 --prompt-tokens uniform:3", "found uniform:3"},
      {"--concurrency 2 --prompt-tokens normal:3-9", "uniform:64-512"},
      {"--tokens uniform:3-9", "a range is for --concurrency"},
      {"--concurrency 2 --slo ttft=200", "\"ttft=200\""},
      {"--concurrency 2 --slo tpot=20ms", "\"tpot=20ms\""},
      {"--concurrency 2 --slo itl=20ms,itl=30ms", "each once"},
      {"--concurrency 2 --slo itl=-20ms", "\"itl=-20ms\""},
  };
  for (const auto& [flags, says] : wrong) {
    const ProcessResult r = run(std::string("runner bench nowhere --device cpu ") + flags);
    EXPECT_EQ(r.exit_code, 2) << flags << ": " << r.err;
    EXPECT_NE(r.err.find(says), std::string::npos) << flags << ": " << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << flags;
  }
}

// Before anything else: no model is opened, no file written.
TEST_F(Bench, SingleOpsNeedAGpu) {
  for (const char* command : {"runner bench --ops --device cpu", "runner bench --ops=all --device cpu --json o.json",
                              "runner bench nowhere --ops block,linear --device cpu --csv o.csv",
                              "runner bench --ops small --ops-models 8b,70b --device cpu"}) {
    const ProcessResult r = run(command);
    EXPECT_EQ(r.exit_code, 1) << command;
    EXPECT_NE(r.err.find("GPU"), std::string::npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_FALSE(std::filesystem::exists(dir / "o.json") || std::filesystem::exists(dir / "o.csv"));
  }
  const ProcessResult help = run("runner bench --help");
  for (const char* section : {"small", "attention", "prefill", "block", "layer", "bytes", "head", "linear"})
    EXPECT_NE(help.out.find(std::string(section) + " ("), std::string::npos) << section;
}

TEST_F(Bench, SingleOpsOnAGpu) {
  FEWBIT_NEEDS_GPU();
  const Json j = json("runner bench " + kDemo + " --ops head,small --csv t.csv --markdown t.md");
  EXPECT_EQ(j["model"], kDemo);
  EXPECT_GT(j["read_gb_per_s"].get<double>(), 0);
  ASSERT_FALSE(j["rows"].empty());
  for (const Json& row : j["rows"]) {
    EXPECT_EQ(row["error"], nullptr) << row;
    EXPECT_GT(row["us"].get<double>(), 0) << row;
    EXPECT_EQ(row["peer"].is_null(), row["section"] == "small" || row["type"] == "bf16") << row;
  }
  std::ifstream in(dir / "t.csv");
  size_t lines = 0;
  for (std::string line; std::getline(in, line);) ++lines;
  EXPECT_EQ(lines, j["rows"].size() + 1);
  EXPECT_TRUE(std::filesystem::exists(dir / "t.md"));
}

// The demo model has four layers; ops that ran as one share an event.
TEST_F(Bench, WritesATraceOfEveryOp) {
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
  EXPECT_EQ(categories["ends"], 2 * 3) << "embedding; final norm and head in one; choice";
  for (const char* pass : {"prefill", "decode step"}) EXPECT_EQ(linears[pass].size(), 4u * 7) << pass;
}

}  // namespace
}  // namespace fewbit::test

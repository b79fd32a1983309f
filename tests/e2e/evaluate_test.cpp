// `evaluate` as a user types it.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/support/command_test.h"
#include "tests/support/paths.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

const std::string kTasks = in_source("calib_data/tasks/sample.jsonl");
const std::string kShort = " --device cpu --context 128 --max-windows 3";
// Perplexities of transformers (ProtocolsEqualTransformers).
constexpr double kGptqDemo = 226.317144, kLlamaCppDemo = 94.496437, kGptqLab = 105.822119, kLlamaCppLab = 85.928633;

class Evaluate : public CommandTest {
 protected:
  void write(const std::string& name, const std::string& content) { std::ofstream(dir / name) << content; }
  std::string read(const std::string& name) { return bytes_of_file(dir / name); }
};

// float32 figures of transformers 5.17 on the CPU (scripts/interop/evaluate --windows 8).
TEST_F(Evaluate, ProtocolsEqualTransformers) {
  FEWBIT_NEEDS_REFERENCE("corpus/wikitext2_test_raw.txt");
  struct Case {
    const char *model, *protocol;
    double perplexity;
  };
  for (const Case& c : {Case{"demo-llama-4m", "gptq", kGptqDemo}, Case{"demo-llama-4m", "llama.cpp", kLlamaCppDemo},
                        Case{"lab-qwen3-10m", "gptq", kGptqLab}, Case{"lab-qwen3-10m", "llama.cpp", kLlamaCppLab}}) {
    FEWBIT_NEEDS_REFERENCE(std::string("models/") + c.model);
    const Json j = json("evaluate perplexity " + reference(std::string("models/") + c.model).string() + " --data " +
                        reference("corpus/wikitext2_test_raw.txt").string() + " --protocol " + c.protocol +
                        " --dtype float32 --max-windows 8 --device cpu");
    EXPECT_NEAR(j["perplexity"].get<double>(), c.perplexity, c.perplexity * tol::kProtocol)
        << c.model << " " << c.protocol;
    EXPECT_EQ(j["protocol"], c.protocol);
  }
}

// Every golden folder: the command's float32 figure is the reference implementation's.
TEST_F(Evaluate, TheLossOfEveryGolden) {
  FEWBIT_NEEDS_REFERENCE("goldens/models");
  int models = 0;
  for (const auto& entry : fs::directory_iterator(reference("goldens/models"))) {
    const fs::path golden = entry.path() / "golden.safetensors";
    if (!fs::exists(golden)) continue;
    const double expected = Golden("goldens/models/" + entry.path().filename().string() + "/golden.safetensors")
                                .get("mean_nll")
                                .as<float>()[0];
    const Json j = json("evaluate perplexity " + entry.path().string() + " --data " + golden.string() +
                        " --dtype float32 --device cpu --quiet");
    EXPECT_NEAR(j["mean_nll"].get<double>(), expected, expected * tol::kNll) << entry.path();
    ++models;
  }
  EXPECT_GT(models, 0);
}

// A published FP8 checkpoint in float32 is its codes times their scales, and the command says so; in bf16, and of what
// fewbit itself wrote, inputs are rounded as an engine rounds them.
TEST_F(Evaluate, SaysWhetherInputsAreRounded) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/deepseek-v3-fp8");
  const std::string model = reference("goldens/models/deepseek-v3-fp8").string(),
                    data = " --device cpu --data " + model + "/golden.safetensors";
  const ProcessResult exact = run("evaluate perplexity " + model + data + " --dtype float32");
  EXPECT_NE((exact.out + exact.err).find("inputs stay unrounded"), std::string::npos) << exact.out << exact.err;
  EXPECT_EQ(json("evaluate perplexity " + model + data + " --dtype float32")["inputs"], "exact");
  EXPECT_EQ(json("evaluate perplexity " + model + data)["inputs"], "rounded");
  EXPECT_EQ(json("evaluate compare " + model + " " + model + data + " --dtype float32")["base_perplexity"],
            json("evaluate perplexity " + model + data + " --dtype float32")["perplexity"]);
  done("quantize 'fp8 block128' " + kDemo + " own --format fp8 --device cpu");
  const std::string own = "evaluate perplexity own --dtype float32" + kShort;
  const Json rounded = json(own);
  EXPECT_EQ(rounded["inputs"], "rounded");
  fs::remove(dir / "own/quant_report.json");  // as others would publish it
  EXPECT_NE(json(own)["mean_nll"], rounded["mean_nll"]);
}

TEST_F(Evaluate, ProtocolsAndOffload) {
  const Json plain = json("evaluate perplexity" + kShort);
  EXPECT_EQ(plain["tokens"], 3 * 127);
  EXPECT_GT(plain["bits_per_byte"].get<double>(), 0);
  EXPECT_GT(plain["word_perplexity"].get<double>(), plain["perplexity"].get<double>());
  EXPECT_GT(plain["phases"]["linears"].get<double>(), 0);
  const Json sliding = json("evaluate perplexity --protocol sliding --stride 32" + kShort);
  EXPECT_EQ(sliding["tokens"], 127 + 2 * 32);
  EXPECT_EQ(sliding["stride"], 32);
  const Json offload = json("evaluate perplexity --offload" + kShort);
  EXPECT_NEAR(offload["mean_nll"].get<double>(), plain["mean_nll"].get<double>(), 1e-3);
}

TEST_F(Evaluate, ChatsThroughATemplate) {
  write("chat.jsonl", R"({"messages": [{"role": "user", "content": "Where does the river end, and who told you so?"}, )"
                      R"({"role": "assistant", "content": "At the sea."}]})");
  const Json j = json("evaluate perplexity --data chat.jsonl --chat-template chatml --device cpu --context 16");
  EXPECT_GT(j["tokens"].get<int>(), 15);
  const ProcessResult r = run("evaluate perplexity --data chat.jsonl --device cpu");
  EXPECT_EQ(r.exit_code, 2) << "the demo model has no template of its own";
  EXPECT_NE(r.err.find("--chat-template"), std::string::npos) << r.err;
}

TEST_F(Evaluate, CompareWithItselfIsNothing) {
  const Json j =
      json("evaluate compare " + kDemo + " " + kDemo + " --dtype float32 --layers --noise-floor --worst 3" + kShort);
  const Json& m = j["models"][0];
  EXPECT_LT(m["kl"]["max"].get<double>(), 1e-6);
  EXPECT_EQ(m["top1"], 1.0);
  EXPECT_EQ(m["shift"]["tokens"][6], m["tokens"]) << "all within one per cent";
  EXPECT_EQ(m["worst"].size(), 3u);
  EXPECT_TRUE(m["worst"][0]["context"].is_string());
  EXPECT_EQ(m["layers"].size(), 4u);
  EXPECT_GT(m["layers"][3]["states"]["sqnr_db"].get<double>(), 150);
  EXPECT_GT(j["noise_floor"]["kl"]["mean"].get<double>(), 0) << "bf16 arithmetic is no float32";
  EXPECT_LT(j["noise_floor"]["kl"]["mean"].get<double>(), 1e-2);
}

TEST_F(Evaluate, TheBaselinesLogitsAreCached) {
  ASSERT_EQ(run("quantize rtn " + kDemo + " rtn4 --device cpu").exit_code, 0);
  const std::string command = "evaluate compare " + kDemo + " rtn4" + kShort;
  const Json direct = json(command), first = json(command + " --base-cache cache"),
             second = json(command + " --base-cache cache");
  EXPECT_EQ(first["models"][0]["kl"], second["models"][0]["kl"]) << "the run that writes the cache reads it too";
  const double kl = direct["models"][0]["kl"]["mean"];
  EXPECT_GT(kl, 0);
  EXPECT_NEAR(first["models"][0]["kl"]["mean"].get<double>(), kl, kl * 1e-3);
  const ProcessResult other = run(command + " --base-cache cache --dtype float32");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("dtype"), std::string::npos) << other.err;
}

TEST_F(Evaluate, TasksCountFlips) {
  ASSERT_EQ(run("quantize rtn --bits 3 " + kDemo + " rtn3 --device cpu").exit_code, 0);
  const Json j = json("evaluate tasks rtn3 " + kTasks + " --baseline " + kDemo + " --few-shot 1 --device cpu");
  EXPECT_EQ(j["items"], 32);
  EXPECT_EQ(j["answers"].size(), 32u);
  const double difference = j["accuracy"].get<double>() - j["baseline"]["accuracy"].get<double>();
  EXPECT_NEAR(j["flips"]["difference"].get<double>(), difference, 1e-9);
  EXPECT_NEAR((j["flips"]["won"].get<double>() - j["flips"]["lost"].get<double>()) / 32, difference, 1e-9);
  EXPECT_EQ(run("evaluate tasks " + kTasks + " --device cpu").exit_code, 0) << "the demo model by itself";
}

TEST_F(Evaluate, SweepAndReport) {
  fs::create_directory_symlink(kDemo, dir / "demo");
  const Json swept = json(
      "evaluate sweep demo --recipe 'rtn int4' --recipe 'gptq int4 effort=quick' --out made --samples 4 "
      "--seq-len 128 "
      "--html sweep.html" +
      kShort);
  ASSERT_EQ(swept["models"].size(), 2u);
  EXPECT_TRUE(fs::exists(dir / "made/gptq-int4-effort=quick/config.json"));
  const Json bench = json("runner bench made/rtn-int4 --device cpu --tokens 3 --prompt-tokens 4");
  write("bench.json", bench.dump());
  const Json j = json(
      "evaluate report made/rtn-int4 made/gptq-int4-effort=quick --html page.html --markdown card.md --bench "
      "bench.json" +
      kShort);
  EXPECT_EQ(j["models"][0]["kl"], swept["models"][0]["kl"]) << "the same checkpoints, the same figures";
  EXPECT_GT(j["models"][0]["bits_per_weight"].get<double>(), 4);
  EXPECT_GT(j["models"][0]["ms_per_token"].get<double>(), 0);
  const std::string page = read("page.html"), card = read("card.md");
  for (const char* word : {"<svg", "prefers-color-scheme: dark", "viewport", "rtn-int4",
                           "<span>quantize</span> <span>'rtn</span> <span>int4", "ms per token", "class=\"heat\"",
                           "Roofline of CPU", "class=\"roof\"", "prompt of 4</td>", "step after 4</td>"})
    EXPECT_NE(page.find(word), std::string::npos) << word;
  for (const char* word : {"http://", "https://", "<script", "src=", "@import", "url("})
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  EXPECT_NE(card.find("| rtn-int4 | rtn int4 |"), std::string::npos) << card;
  EXPECT_EQ(std::count(page.begin(), page.end(), '<'), std::count(page.begin(), page.end(), '>'));
}

// A bench under load as `runner bench --concurrency` writes it, with figures that are known.
Json bench_under_load() {
  Json j = Json::parse(R"({"model": "demo", "device": "CPU", "loop": "closed", "rate": null, "arrivals": null})");
  for (const int n : {8, 1, 32})
    j["rows"].push_back({{"concurrency", n},
                         {"prompt_tokens", "uniform:4-40"},
                         {"tokens", "5"},
                         {"ttft_ms", {{"p50", 11.25 * n}, {"p99", 13.75 * n}}},
                         {"itl_ms", {{"p50", 2.25 + n}, {"p99", 3.5 + n}}},
                         {"tokens_per_s", 100.5 * n}});
  return j;
}

TEST_F(Evaluate, TheReportDrawsLatencyAgainstLoad) {
  fs::create_directory_symlink(kDemo, dir / "demo");
  write("load.json", bench_under_load().dump());
  const std::string report =
      "evaluate report demo --base demo --html page.html --markdown card.md" + kShort + " --bench ";
  done(report + "load.json");
  const std::string page = read("page.html"), card = read("card.md");
  EXPECT_NE(card.find("| demo | 8 | – | 90.00 | 110.00 | 10.25 | 11.50 | 804.0 |"), std::string::npos) << card;
  size_t at = 0;  // the rows stand in order of load, whatever the order of the file
  for (const char* row : {"<td>1</td><td>–</td><td>11.25</td><td>13.75</td><td>3.25</td><td>4.50</td><td>100.5</td>",
                          "<td>8</td><td>–</td><td>90.00</td><td>110.00</td><td>10.25</td><td>11.50</td><td>804.0</td>",
                          "<td>32</td><td>–</td><td>360.00</td><td>440.00</td><td>34.25</td><td>35.50</td>"}) {
    at = page.find(row, at);
    ASSERT_NE(at, std::string::npos) << row;
  }
  for (const char* word : {"at once 8: p50 90 ms", "at once 32: p99 440 ms", "at once 1: p99 4.5 ms",
                           "at once 32: throughput 3216 tokens/s", "prompts of uniform:4-40 tokens, 5 tokens each"})
    EXPECT_NE(page.find(word), std::string::npos) << word;
  fs::remove(dir / "page.html");
  Json other = bench_under_load(), torn = bench_under_load();
  other.erase("loop"), torn["rows"][1].erase("itl_ms");  // as `--ops` writes it, and one that is damaged
  for (const auto& [content, says] : {std::pair{other, "expected the JSON of `runner bench`"}, {torn, "itl_ms"}}) {
    write("wrong.json", content.dump());
    const ProcessResult r = run(report + "wrong.json");
    EXPECT_EQ(r.exit_code, 1);
    EXPECT_NE(r.err.find("wrong.json"), std::string::npos) << r.err;
    EXPECT_NE(r.err.find(says), std::string::npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_FALSE(fs::exists(dir / "page.html"));
  }
}

TEST_F(Evaluate, ASweepTakesRecipesThatMeasureBeforeTheyPlan) {
  fs::create_directory_symlink(kDemo, dir / "demo");
  const Json j = json(
      "evaluate sweep demo --recipe 'auto target-bits=4.5' --recipe 'rtn int4 kv=fp8' --out made --samples 4 --seq-len "
      "128 "
      "--html sweep.html" +
      kShort);
  ASSERT_EQ(j["models"].size(), 2u);
  EXPECT_LE(j["models"][0]["bits_per_weight"].get<double>(), 4.5);
  EXPECT_TRUE(Json::parse(read("made/auto-target-bits=4.5/quant_report.json")).contains("auto"));
  EXPECT_FALSE(Json::parse(read("made/rtn-int4-kv=fp8/quant_report.json"))["kv_scales"].empty())
      << "the calibration reaches recipes that need it for their cache alone";
}

// What a browser makes of the page, light on a desktop and on a phone: every chart is there and nothing is
// wider than the window.
TEST_F(Evaluate, TheReportOpensInABrowser) {
  const std::string browser = run("which chromium chromium-browser google-chrome | head -n 1 | tr -d '\\n'").out;
  if (browser.empty()) GTEST_SKIP() << "no browser: chromium is not installed";
  fs::create_directory_symlink(kDemo, dir / "demo");
  ASSERT_EQ(
      run("evaluate sweep demo --recipe 'rtn int4' --recipe 'rtn int8' --out made --html page.html" + kShort).exit_code,
      0);
  write("probed.html", read("page.html") +
                           "<script>document.title = [document.querySelectorAll('svg').length, "
                           "document.querySelectorAll('.heat').length,"
                           " document.documentElement.scrollWidth <= innerWidth].join(' ')</script>");
  for (const char* size : {"1200,900", "500,900"}) {  // 500 is the narrowest window of a headless browser
    const ProcessResult r =
        run(browser + " --headless --no-sandbox --disable-gpu --user-data-dir=profile --window-size=" + size +
            " --dump-dom file://" + (dir / "probed.html").string());
    ASSERT_EQ(r.exit_code, 0) << r.err;
    EXPECT_NE(r.out.find("<title>5 56 true</title>"), std::string::npos)
        << size << ": " << r.out.substr(r.out.find("<title>"), 60)
        << " (charts, cells of 4 layers x 7 linears x 2 models, no overflow)";
  }
}

TEST_F(Evaluate, BadInputIsNamed) {
  write("broken.jsonl", "{\"text\": \"a\"}\n{\"body\": 1}\n");
  write("task.jsonl", "{\"question\": \"q\", \"choices\": [\"a\", \"b\"]}\n");
  write("empty.jsonl", "");
  fs::copy(kDemo, dir / "other", fs::copy_options::recursive);
  Json tokenizer = Json::parse(std::ifstream(dir / "other/tokenizer.json"));
  tokenizer["model"]["merges"].erase(0);
  std::ofstream(dir / "other/tokenizer.json") << tokenizer.dump();
  fs::copy(kDemo, dir / "small", fs::copy_options::recursive);
  struct Case {
    std::string command;
    std::vector<std::string> says;
    int exit_code;
  };
  for (const Case& c : std::vector<Case>{
           {"evaluate perplexity --protocol gtpq", {"gtpq", "llama.cpp"}, 2},
           {"evaluate perplexity --protocol llama.cpp --context 4096", {"4096", "1024"}, 2},
           {"evaluate perplexity --stride 7", {"--stride", "sliding"}, 2},
           {"evaluate perplexity --data broken.jsonl", {"broken.jsonl", "line 2", "messages"}, 1},
           {"evaluate perplexity --data empty.jsonl", {"empty.jsonl", "empty"}, 1},
           {"evaluate compare " + kDemo + " other", {"other", "different tokenizers"}, 2},
           {"evaluate compare " + kDemo + " nowhere", {"nowhere"}, 1},
           {"evaluate compare " + kDemo + " " + kDemo + " --context 4096", {"4096", "1024"}, 2},
           {"evaluate tasks task.jsonl", {"task.jsonl", "line 1", "no answer"}, 1},
           {"evaluate tasks empty.jsonl", {"empty.jsonl"}, 1},
           {"evaluate tasks --few-shot 32 " + kTasks, {"--few-shot", "32"}, 2},
           {"evaluate report " + kDemo + " --html page.html", {"--base"}, 2},
           {"evaluate report " + kDemo + " --base " + kDemo + " --bench task.jsonl --html page.html",
            {"task.jsonl"},
            1},
           {"evaluate sweep " + kDemo + " --recipe 'gtpq int4' --out made", {"gtpq"}, 2},
           {"evaluate sweep " + kDemo + " --recipe 'rtn int4' --recipe 'gptq int4' --recipe 'rtn int4' --out made",
            {"\"rtn int4\" and \"rtn int4\"", "made/rtn-int4", "give one"},
            2},
       }) {
    const ProcessResult r = run(c.command + " --device cpu");
    EXPECT_EQ(r.exit_code, c.exit_code) << c.command << ": " << r.err;
    for (const std::string& word : c.says) EXPECT_NE(r.err.find(word), std::string::npos) << c.command << ": " << r.err;
  }
  EXPECT_FALSE(fs::exists(dir / "page.html") || fs::exists(dir / "made")) << "something was left behind";
}

}  // namespace
}  // namespace fewbit::test

// `evaluate verify` finds every flipped bit of a checkpoint and names what it is in, warns of what is not the model's,
// and says of older folders what it could not check.
#include <algorithm>
#include <fstream>
#include <random>

#include "src/core/files/checksums.h"
#include "src/core/files/sha256.h"
#include "src/eval/verify_files.h"
#include "tests/support/command_test.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class Verify : public CommandTest {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir / name, std::ios::binary) << bytes;
  }
  std::string read(const std::string& name) { return bytes_of_file(dir / name); }
  // SHA256SUMS as whoever changes a file on purpose would write it.
  void sum_again(const std::string& out) {
    Checksums sums;
    for (const auto& entry : fs::directory_iterator(dir / out))
      if (const std::string name = entry.path().filename().string(); name != kChecksumsFile)
        sums[name] = sha256_of_file(entry.path());
    write(out + "/SHA256SUMS", checksums_text(sums));
  }
  VerifyResult files_of(const std::string& out) {
    VerifyResult r;
    verify_files(dir / out, r, {});
    return r;
  }
  static bool names(const std::vector<VerifyProblem>& all, const std::string& file) {
    return std::any_of(all.begin(), all.end(), [&](const VerifyProblem& p) { return p.file == file; });
  }
};

// A config that Python wrote, as Nemotron-H is published: numbers that are no JSON go through every command, and the
// folder that is written has them still.
TEST_F(Verify, AConfigWithNumbersThatAreNotFinite) {
  const std::string golden = "goldens/models/nemotron-h";
  FEWBIT_NEEDS_REFERENCE(golden);
  fs::create_directory(dir / "m");
  fs::copy_file(reference(golden + "/model.safetensors"), dir / "m/model.safetensors");
  Json config = Json::parse(bytes_of_file(reference(golden + "/config.json")));
  config.erase("hybrid_override_pattern");
  config.erase("num_hidden_layers");
  config["layers_block_type"] = {"mamba", "mlp", "mamba", "attention", "mamba", "moe"};
  std::string text = config.dump(2);
  text.insert(text.find('{') + 1, "\n  \"time_step_limit\": [\n    0.0,\n    Infinity\n  ],\n  \"of_others\": NaN,");
  write("m/config.json", text);
  const std::string data = reference(golden + "/golden.safetensors").string();
  const double expected = Golden(golden + "/golden.safetensors").get("mean_nll").as<float>()[0];
  EXPECT_NEAR(json("evaluate perplexity m --dtype float32 --device cpu --data " + data)["mean_nll"].get<double>(),
              expected, expected * tol::kNll);
  done("quantize rtn m out --device cpu");
  EXPECT_NE(read("out/config.json").find("\"time_step_limit\": [\n    0.0,\n    Infinity\n  ]"), std::string::npos);
  EXPECT_NE(read("out/config.json").find("\"of_others\": NaN"), std::string::npos);
  EXPECT_EQ(Json::parse(read("out/quant_report.json"))["config"]["time_step_limit"][1], "Infinity") << "JSON for all";
  done("evaluate verify out --device cpu");
  std::string changed = read("out/config.json");
  write("out/config.json", changed.replace(changed.find("Infinity"), 8, "-Infinity"));
  EXPECT_TRUE(names(files_of("out").problems, "config.json"));
}

// A random bit of a random file, half of those of weights in the header, whose bytes are few.
TEST_F(Verify, FindsEveryFlippedBitAndNamesIt) {
  constexpr int kFlips = 110;  // of each format
  std::mt19937_64 rng(1);
  int found = 0, all = 0;
  for (const char* how : {"rtn", "rtn --format gptq --shard-size 1MB", "fp8", "rtn --format gguf:q4_k",
                          "'rtn w8a8' --format compressed-tensors"}) {
    done("quantize " + std::string(how) + " " + kDemo + " out --device cpu");
    EXPECT_TRUE(files_of("out").problems.empty() && files_of("out").warnings.empty()) << how;
    std::vector<std::string> names_in;
    for (const auto& entry : fs::directory_iterator(dir / "out")) names_in.push_back(entry.path().filename().string());
    for (int i = 0; i < kFlips; ++i) {
      const std::string& name = names_in[rng() % names_in.size()];
      const bool weights = name.find(".safetensors") != std::string::npos || name.find(".gguf") != std::string::npos;
      std::fstream file(dir / ("out/" + name), std::ios::binary | std::ios::in | std::ios::out);
      const auto bytes = static_cast<uint64_t>(fs::file_size(dir / ("out/" + name)));
      const auto at = static_cast<std::streamoff>(rng() % (weights && i % 2 ? std::min<uint64_t>(bytes, 4096) : bytes));
      file.seekg(at);
      const auto before = static_cast<char>(file.get());
      const auto flip = [&](char c) { file.seekp(at), file.put(c), file.flush(); };
      flip(static_cast<char>(before ^ (1 << rng() % 8)));
      const VerifyResult r = files_of("out");
      flip(before);
      const bool named = names(name == "README.md" ? r.warnings : r.problems, name);
      EXPECT_TRUE(named) << how << ": " << name << ", byte " << at;
      found += named;
      ++all;
    }
    fs::remove_all(dir / "out");
  }
  EXPECT_EQ(found, all);
  EXPECT_GE(all, 500);
}

TEST_F(Verify, NamesTensorsAndWarnsOfWhatIsNotTheModels) {
  done("quantize rtn " + kDemo + " out --device cpu");
  const Json whole = json("evaluate verify out --device cpu");
  EXPECT_GT(whole["tensors"], 28);
  EXPECT_EQ(whole["files"], 8);
  EXPECT_NE(whole["made_by"].get<std::string>().find("from " + kDemo), std::string::npos) << whole["made_by"];
  write("out/README.md", read("out/README.md") + "\nmy words\n");
  write("out/notes.txt", "mine");
  const Json edited = json("evaluate verify out --device cpu");
  EXPECT_EQ(edited["warnings"].size(), 2u);
  fs::remove(dir / "out/notes.txt");
  // The last tensor of the file, then a companion that is gone.
  std::string bytes = read("out/model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write("out/model.safetensors", bytes);
  fs::remove(dir / "out/tokenizer_config.json");
  const ProcessResult r = run("evaluate verify out --device cpu --json -");
  EXPECT_EQ(r.exit_code, 1);
  const Json broken = json_of(r);
  ASSERT_EQ(broken["problems"].size(), 2u) << r.out;
  EXPECT_EQ(broken["problems"][0]["file"], "tokenizer_config.json");
  EXPECT_EQ(broken["problems"][1]["file"], "model.safetensors");
  EXPECT_NE(broken["problems"][1]["tensor"], "");
}

// Changed on purpose, with sums to match: the report's digests and the config it was written with still say so.
TEST_F(Verify, AChangedConfigIsFoundBySeveral) {
  done("quantize rtn " + kDemo + " out --device cpu");
  Json config = Json::parse(read("out/config.json"));
  config["rms_norm_eps"] = 1e-3;
  write("out/config.json", config.dump(2));
  sum_again("out");
  const VerifyResult r = files_of("out");
  ASSERT_TRUE(names(r.problems, "config.json"));
  EXPECT_TRUE(std::any_of(r.problems.begin(), r.problems.end(), [](const VerifyProblem& p) {
    return p.what.find("rms_norm_eps is 0.001") != std::string::npos;
  }));
}

TEST_F(Verify, AnOlderFolderIsCheckedAsFarAsItGoes) {
  done("quantize rtn " + kDemo + " out --device cpu");
  Json report = Json::parse(read("out/quant_report.json"));
  for (const char* key : {"schema", "tensors", "companions", "config", "made_from", "made_by"}) report.erase(key);
  write("out/quant_report.json", report.dump());
  fs::remove(dir / "out/SHA256SUMS");
  const Json old = json("evaluate verify out --device cpu");
  EXPECT_EQ(old["ok"], true);
  EXPECT_EQ(old["linears"], 28);
  EXPECT_EQ(old["unchecked"].size(), 4u) << old["unchecked"];
  report["schema"] = 2;  // then they must be there
  write("out/quant_report.json", report.dump());
  EXPECT_TRUE(names(files_of("out").problems, "SHA256SUMS"));
  EXPECT_TRUE(names(files_of("out").problems, "quant_report.json"));
}

TEST_F(Verify, ConversionsKeepTheChain) {
  done("quantize rtn " + kDemo + " out --device cpu");
  done("convert to gptq out gptq --threads 1");
  done("convert to bf16 gptq dense --threads 1");
  const std::string chain = json("evaluate verify dense --device cpu")["made_by"];
  size_t at = 0;
  for (const std::string& step :
       {std::string("convert to bf16"), std::string("from gptq"), std::string("convert to gptq"),
        std::string("from out"), std::string("quantize 'rtn'"), "from " + kDemo}) {
    at = chain.find(step, at);
    ASSERT_NE(at, std::string::npos) << step << " in " << chain;
  }
  const Json report = json("evaluate report gptq --base " + kDemo + " --device cpu --context 128 --max-windows 2");
  EXPECT_NE(report["models"][0]["made_from"].get<std::string>().find("made by quantize 'rtn'"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test

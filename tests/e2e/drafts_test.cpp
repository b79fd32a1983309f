// `runner generate --speculate` as a user types it, on the embedded demo model.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

class Drafts : public CommandTest {};

TEST_F(Drafts, LeaveTheTextAndAreReported) {
  const std::string command =
      "runner generate --device cpu --prompt 'Once upon a time there was a house, and in the house' --max-tokens 96";
  const Json drafted = json(command + " --speculate ngram:5");
  EXPECT_EQ(drafted["ids"], json(command)["ids"]);
  const Json& s = drafted["speculation"];
  EXPECT_EQ(s["draft"], "ngram");
  EXPECT_EQ(s["k"], 5);
  int64_t accepted = 0, steps = 0;
  for (const Json& position : s["by_position"]) {
    EXPECT_LE(position["accepted"], position["reached"]);
    accepted += position["accepted"].get<int64_t>();
  }
  for (const Json& pass : s["passes"]) steps += pass["count"].get<int64_t>();
  EXPECT_EQ(s["accepted"], accepted);
  EXPECT_EQ(s["steps"], steps);
  for (const char* key : {"drafted_steps", "drafted", "alpha", "tokens_per_step", "tokens_per_drafted_step",
                          "predicted_tokens_per_drafted_step", "cost", "speed_up", "held_back", "seconds"})
    EXPECT_TRUE(s.contains(key)) << key;
}

// A copy of the model in 4 bits as its draft, and one in 3.
TEST_F(Drafts, OfAModelLeaveTheText) {
  for (const std::string out : {"int4", "int3"}) {
    done("quantize 'rtn " + out + " g64' " + kDemo + " " + out + " --device cpu");
    const std::string command =
        "runner generate " + kDemo + " --device cpu --prompt 'Once upon a time' --max-tokens 64";
    const Json plain = json(command), drafted = json(command + " --speculate draft:3 --draft " + out);
    EXPECT_EQ(drafted["ids"], plain["ids"]) << out;
    EXPECT_EQ(drafted["speculation"]["draft"], "draft");
    EXPECT_EQ(drafted["speculation"]["k"], 3);
    EXPECT_GT(drafted["speculation"]["alpha"], .3) << out;
    EXPECT_EQ(json(command + " --draft " + out)["speculation"]["k"], 4);
    EXPECT_EQ(json(command + " --temperature 1 --draft " + out)["ids"].size(), 64u);
  }
}

TEST_F(Drafts, OfAnotherTokenizerAreRefused) {
  std::filesystem::create_directory(dir / "other");
  for (const auto& entry : std::filesystem::directory_iterator(kDemo))
    std::filesystem::copy(entry.path(), dir / "other" / entry.path().filename());
  Json tokenizer = Json::parse(bytes_of_file(dir / "other" / "tokenizer.json"));
  Json& vocab = tokenizer["model"]["vocab"];
  const auto swapped = [&](int64_t id) {
    for (auto& [token, value] : vocab.items())
      if (value == id) return token;
    return std::string();
  };
  const std::string a = swapped(300), b = swapped(301);
  std::swap(vocab[a], vocab[b]);
  std::ofstream(dir / "other" / "tokenizer.json") << tokenizer.dump();
  const std::string command = "runner generate " + kDemo + " --device cpu --prompt a --max-tokens 8";
  const ProcessResult r = run(command + " --draft other");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("as token 300"), std::string::npos) << r.err;
  EXPECT_EQ(run(command + " --speculate draft").exit_code, 2);
  EXPECT_EQ(run(command + " --speculate ngram --draft " + kDemo).exit_code, 2);
}

}  // namespace
}  // namespace fewbit::test

// `runner generate --speculate` as a user types it, on the embedded demo model.
#include <gtest/gtest.h>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

class Drafts : public CommandTest {};

TEST_F(Drafts, LeaveTheTextAndAreReported) {
  const std::string command = "runner generate --device cpu --prompt 'a b c d' --max-tokens 96";
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
                          "predicted_tokens_per_drafted_step", "cost", "speed_up", "stopped_after", "seconds"})
    EXPECT_TRUE(s.contains(key)) << key;
}

}  // namespace
}  // namespace fewbit::test

// Models that ranks share: every family of the goldens, by itself and on 2 and 4 processes (tests/ranks/tp_member.cpp).
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

const std::string kMember = in_build("tests/tp_member ");

class TensorParallel : public ::testing::TestWithParam<int> {};

// "llama" -> "float32 … "
std::map<std::string, std::string> outcomes(const std::string& printed) {
  std::map<std::string, std::string> found;
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find(": "); at != std::string::npos) found[line.substr(0, at)] = line.substr(at + 2);
  return found;
}

TEST_P(TensorParallel, EveryFamilyIsAsOnOneRank) {
  FEWBIT_NEEDS_REFERENCE("goldens/models");
  const ProcessResult r = run_ranks(GetParam(), kMember + "'" + reference("goldens/models").string() + "'", 300);
  ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
  std::map<std::string, std::string> found = outcomes(r.out);
  int run = 0;
  for (const auto& [model, line] : found) {
    if (line.starts_with("refused")) continue;
    std::istringstream words(line);
    std::string word, steps;
    double f32 = 1, bf16 = 1;
    words >> word >> f32 >> word >> bf16 >> word >> steps;
    EXPECT_LE(f32, tol::kSharedModelF32) << model << ": " << line;
    EXPECT_LE(bf16, tol::kSharedModelBf16) << model << ": " << line;
    EXPECT_EQ(steps, "same") << model << ": " << line;
    ++run;
  }
  EXPECT_GE(run, 20) << r.out;
  // Fused q, k, v and gate, up; one key/value head of two ranks; sinks and biases; stacked, shared and grouped experts;
  // branches with a factor, attention beside the MLP, scaled queries, weighed inputs of experts; latent attention.
  for (const char* model :
       {"phi3-fused", "gemma4", "gpt-oss-bf16", "qwen2-moe", "glm4-moe", "glm4", "qwen2-bias", "granitemoe", "cohere2",
        "ministral3", "llama4-text", "deepseek-v2-mla", "deepseek-v3-mla", "deepseek-v32-topk12", "glm-moe-dsa-topk12"})
    EXPECT_TRUE(GetParam() != 2 || found[model].starts_with("float32")) << model << ": " << found[model];
  for (const char* model : {"qwen3-next", "qwen3.5", "lfm2", "nemotron-h", "kimi-linear"})
    EXPECT_NE(found[model].find("recurrent layers"), std::string::npos) << model << ": " << found[model];
  EXPECT_NE(found["gemma4-e2b"].find("keys and values of another one"), std::string::npos) << found["gemma4-e2b"];
  EXPECT_NE(found["deepseek-v4"].find("attention over shared keys"), std::string::npos) << found["deepseek-v4"];
  for (const char* model : {"olmo3", "minimax-m2"})
    EXPECT_NE(found[model].find("self_attn.q_norm norms all heads at once"), std::string::npos) << found[model];
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorParallel, ::testing::Values(2, 4));

}  // namespace
}  // namespace fewbit::test

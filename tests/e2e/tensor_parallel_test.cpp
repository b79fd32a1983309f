// --tp as a user gives it: packed checkpoints on several processes, and what is refused.
#include <cmath>

#include "tests/support/command_test.h"
#include "tests/support/mpirun.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

class SharedModel : public CommandTest {
 protected:
  ProcessResult on_ranks(int ranks, const std::string& command) {
    return run_ranks(ranks, command, 120, dir.path().string());
  }
  Json json_on_ranks(int ranks, const std::string& command) {
    const ProcessResult r = on_ranks(ranks, command + " --json -");
    EXPECT_EQ(r.exit_code, 0) << command << "\n" << r.err;
    return json_of(r);
  }
  // The error of a command that must be refused.
  std::string refusal(const ProcessResult& r) {
    EXPECT_EQ(r.exit_code, 2) << r.out << r.err;
    EXPECT_EQ(r.out, "");
    return r.err;
  }
};

const std::string kScore = " --device cpu --context 128 --max-windows 4";

TEST_F(SharedModel, PackedCheckpointsScoreTheSame) {
  struct Case {
    std::string recipe;
    double limit;
  };
  // The last two round their inputs: static scales, and for each rank's part of a token.
  const Case cases[] = {{"rtn int4 g32 format=gptq", tol::kPackedPerplexity},
                        {"rtn int4 g64 asym format=compressed-tensors", tol::kPackedPerplexity},
                        {"rtn int4 g128 format=marlin", tol::kPackedPerplexity},
                        {"rtn nvfp4", tol::kPackedPerplexity},
                        {"rtn int8 g32 format=gguf:q8_0", tol::kPackedPerplexity},
                        {"fp8 block128", tol::kPackedPerplexityCoarse},
                        {"rtn w8a8", tol::kPackedPerplexityCoarse}};
  for (const Case& c : cases) {
    const bool gguf = c.recipe.find("gguf") != std::string::npos;
    const std::string out = gguf ? "out.gguf" : "out";
    done("quantize '" + c.recipe + "' " + kDemo + " " + out + " --force" + kFastest);
    const std::string score = "evaluate perplexity " + out + kScore;
    const double alone = json(score)["perplexity"], together = json_on_ranks(2, score + " --tp 2")["perplexity"];
    EXPECT_LE(std::fabs(together / alone - 1), c.limit) << c.recipe << ": " << alone << " and " << together;
  }
}

TEST_F(SharedModel, StepsSpeakOfTheRanks) {
  const Json b = json_on_ranks(2, "runner bench " + kDemo + " --device cpu --tokens 3 --prompt-tokens 16 --tp 2");
  EXPECT_EQ(b["tp"], 2);
  EXPECT_GT(b["all_reduce_ms"], 0);
  const std::string ask =
      "runner generate " + kDemo + " --device cpu --dtype float32 --max-tokens 16 --prompt 'The sea'";
  for (const char* sampling : {"", " --temperature 1 --seed 3"}) {
    const Json alone = json(ask + sampling);
    EXPECT_EQ(json_on_ranks(2, ask + sampling + " --tp 2")["ids"], alone["ids"]);
  }
  const ProcessResult spoken = on_ranks(2, ask + " --tp 2");
  EXPECT_EQ(spoken.out.find("The sea"), spoken.out.rfind("The sea")) << spoken.out;  // of one rank
  // A cache of codes with a scale for each head, and one block at a time.
  const std::string score = "evaluate perplexity " + kDemo + kScore + " --dtype float32";
  for (const auto& [how, limit] :
       {std::pair(" --kv-cache int8", tol::kLogitsQuantizedCache), std::pair(" --offload", tol::kSharedModelF32)}) {
    const double alone = json(score + how)["perplexity"],
                 together = json_on_ranks(2, score + how + " --tp 2")["perplexity"];
    EXPECT_LE(std::fabs(together / alone - 1), limit) << how;
  }
}

TEST_F(SharedModel, Refusals) {
  EXPECT_NE(refusal(run("runner bench " + kDemo + " --tp 2")).find("mpirun -n 2"), std::string::npos);
  const auto refused = [&](int ranks, const std::string& command, const std::string& words) {
    const std::string error = refusal(on_ranks(ranks, command));
    EXPECT_NE(error.find(words), std::string::npos) << command << "\n" << error;
  };
  refused(2, "evaluate perplexity " + kDemo, "2 processes were started; expected --tp 2");
  refused(2, "runner generate " + kDemo + " --tp 3", "2 processes were started; expected --tp 2");
  refused(2, "runner bench --ops linear", "expected --tp 2");
  refused(2, "evaluate verify " + kDemo, "runs as one process");
  refused(3, "runner bench " + kDemo + " --tp 3", "4 heads are no multiple of 3; 2 key/value heads are neither");
  done("quantize 'rtn int4 g256' " + kDemo + " out" + kFastest);
  refused(2, "evaluate perplexity out --tp 2", "self_attn.o_proj first): inputs 0 to 128 are no whole groups of 256");
}

}  // namespace
}  // namespace fewbit::test

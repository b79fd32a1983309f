// Runs that do not come to their end by themselves: memory that runs out half-way, a device that is lost, a
// machine that does not compute the same twice.
#include "src/quant/loop/run_ends.h"

#include <gtest/gtest.h>

#include "src/quant/loop/determinism.h"
#include "src/quant/loop/pipeline.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class RunEnds : public ::testing::Test {
 protected:
  void open(const fs::path& model) {
    c.emplace(Checkpoint::open(model));
    plan = make_plan(*c, {.base = parse_recipe("gptq int4 g128 effort=quick"), .tokens = 4 * 128, .dtype = DType::f32});
    std::string note;
    windows = draw_calibration(Tokenizer::open(c->dir), builtin_calibration(), 4, 128, 0, &note);
  }
  QuantReport run(const QuantJob& job) { return run_pipeline(ex, *c, plan, windows, job); }
  std::string weights(const std::string& out) const { return bytes_of_file(dir / (out + "/model.safetensors")); }
  // Throws once, in the third block.
  static std::function<void(const std::string&, double)> failing(ErrorKind kind, const std::string& what, int& times) {
    return [&times, kind, what](const std::string& phase, double f) {
      if (phase == "quantizing blocks" && f > 0.6 && times-- > 0) fail(kind, what);
    };
  }

  Exec ex = Exec::cpu();
  std::optional<Checkpoint> c;
  QuantPlan plan;
  Windows windows;
  TempDir dir;
};

TEST_F(RunEnds, OutOfMemoryHalfWayGoesOnWithLessAndTheSameBytes) {
  open(builtin_model_dir());
  QuantJob job{.recipe = "gptq", .out = dir / "whole"};
  run(job);
  int times = 2;
  job.out = dir / "out";
  job.progress = failing(ErrorKind::memory, "out of GPU memory", times);
  const QuantReport r = run(job);
  EXPECT_LT(times, 0);
  EXPECT_EQ(weights("out"), weights("whole"));
  EXPECT_NE(
      r.note.find("out of GPU memory in block 2, which was begun again with what lies between stops computed again"),
      std::string::npos)
      << r.note;
  EXPECT_EQ(r.linears.size(), 28u);
  times = 100;  // nothing helps
  job.out = dir / "never";
  const std::string message = message_of([&] { run(job); }, ErrorKind::memory);
  EXPECT_NE(message.find("2 blocks are kept in"), std::string::npos) << message;
  EXPECT_NE(message.find("--resume"), std::string::npos) << message;
}

TEST_F(RunEnds, LessIsKeptStepByStep) {
  MemoryPlan m;
  m.stored = {{3}};
  m.experts_at_once = 4;
  m.slot = m.beside = 1;
  m.lanes = 4;
  for (const char* step : {"one after the other", "no copies beside", "no states on the device", "computed again",
                           "one expert", "states on disk"})
    EXPECT_NE(keep_less(m).find(step), std::string::npos) << step;
  EXPECT_EQ(keep_less(m), "");
}

TEST_F(RunEnds, ALostDeviceEndsWithTheWayToGoOn) {
  open(builtin_model_dir());
  int times = 1;
  QuantJob job{.recipe = "gptq", .out = dir / "out"};
  job.progress = failing(ErrorKind::device, "CUDA: the device has fallen off the bus", times);
  const std::string message = message_of([&] { run(job); }, ErrorKind::device);
  EXPECT_NE(message.find("fallen off the bus; 2 blocks are kept in"), std::string::npos) << message;
  EXPECT_NE(message.find("--resume"), std::string::npos) << message;
  job.resume = true;
  run(job);
  EXPECT_TRUE(fs::exists(dir / "out/SHA256SUMS"));
}

TEST_F(RunEnds, AMachineThatDoesNotComputeTheSameTwiceIsRefused) {
  open(builtin_model_dir());
  QuantJob job{.recipe = "gptq", .out = dir / "out", .check_determinism = true};
  run(job);
  bool changed = false;
  job.out = dir / "other";
  job.progress = [&](const std::string& phase, double) {
    if (phase != "quantizing a block twice" || changed) return;
    windows.ids[5] ^= 1;  // which the first time has read, and the second has not
    changed = true;
  };
  const std::string message = message_of([&] { run(job); }, ErrorKind::numeric);
  EXPECT_NE(message.find("twice gives different bytes: model.layers.0."), std::string::npos) << message;
  EXPECT_FALSE(fs::exists(dir / "other.partial"));
}

}  // namespace
}  // namespace fewbit::test

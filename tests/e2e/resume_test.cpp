// A run that is stopped, killed or damaged and resumed writes the same bytes as one that was not; two runs never share
// an OUT.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "formats/container.h"
#include "src/core/stopwatch.h"
#include "src/quant/journal/journal.h"
#include "src/quant/loop/pipeline.h"
#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

struct Bench {
  Exec ex = Exec::cpu();
  Checkpoint c = Checkpoint::open(builtin_model_dir());
  QuantPlan plan;
  Windows windows;

  explicit Bench(const std::string& recipe) {
    plan = make_plan(c, {.base = parse_recipe(recipe), .tokens = 4 * 128, .dtype = DType::f32});
    std::string note;
    windows = draw_calibration(Tokenizer::open(c.dir), builtin_calibration(), 4, 128, 0, &note);
  }
};

class Resume : public ::testing::TestWithParam<const char*> {};

TEST_P(Resume, StoppedAndResumedGivesTheSameBytes) {
  Bench b(GetParam());
  const TempDir dir;
  QuantJob whole{.recipe = GetParam(), .out = dir / "whole"};
  run_pipeline(b.ex, b.c, b.plan, b.windows, whole);

  QuantJob job{.recipe = GetParam(), .out = dir / "out"};
  int asked = 0;
  job.stop_requested = [&] { return ++asked > 2; };  // after two sealed blocks
  try {
    run_pipeline(b.ex, b.c, b.plan, b.windows, job);
    FAIL() << "the run was not stopped";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 75);
    EXPECT_NE(std::string(e.what()).find("--resume"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(job.out));
  job.stop_requested = {};
  job.resume = true;
  const QuantReport r = run_pipeline(b.ex, b.c, b.plan, b.windows, job);
  EXPECT_EQ(r.linears.size(), linears_of(b.c.spec).size());
  EXPECT_EQ(bytes_of_file(dir / "out/model.safetensors"), bytes_of_file(dir / "whole/model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(dir / "out.partial"));
}
INSTANTIATE_TEST_SUITE_P(Recipes, Resume,
                         ::testing::Values("rtn int4 g128", "gptq int4 g128", "gptq int3 g64 effort=reference", "awq",
                                           "awq+gptq int4 g128 effort=quick"));

TEST(Journal, ResumeWithOtherSettingsIsRefused) {
  Bench b("gptq int4 g128");
  const TempDir dir;
  QuantJob job{.recipe = "gptq", .out = dir / "out"};
  int asked = 0;
  job.stop_requested = [&] { return ++asked > 1; };
  EXPECT_THROW(run_pipeline(b.ex, b.c, b.plan, b.windows, job), Error);
  Bench other("gptq int4 g64");
  job.stop_requested = {};
  job.resume = true;
  try {
    run_pipeline(other.ex, other.c, other.plan, other.windows, job);
    FAIL() << "resumed with another recipe";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("other settings"), std::string::npos);
  }
}

// The commands as a user types them, several at once and killed anywhere.
class OwnedRun : public CommandTest {
 protected:
  static constexpr const char* kRecipe = "gptq --effort quick";
  std::string command(const std::string& out, const std::string& more = "") const {
    return std::string("quantize ") + kRecipe + " " + kDemo + " " + out + kFastest + " --threads 1 " + more;
  }
  // Comes back when the process is gone and its lock with it, which --foreground sees to.
  ProcessResult killed(const std::string& command, double seconds) {
    return run("timeout --foreground -s KILL " + std::to_string(seconds) + " " + command);
  }
  // How long the command takes when nobody kills it, and the bytes that it writes.
  double whole_run() {
    const Stopwatch watch;
    done(command("whole"));
    whole = bytes_of_file(dir / "whole/model.safetensors");
    return watch.seconds();
  }
  std::string weights(const std::string& out) const { return bytes_of_file(dir / (out + "/model.safetensors")); }

  std::string whole;
};

TEST_F(OwnedRun, OfTwoAtOneOutOneIsRefusedAndTheOtherIsRight) {
  whole_run();
  for (int round = 0; round < 3; ++round) {
    ProcessResult first, second;
    std::thread other([&] { first = run(command("out")); });
    second = run(command("out"));
    other.join();
    if (first.exit_code != 0) std::swap(first, second);
    EXPECT_EQ(first.exit_code, 0) << first.err;
    EXPECT_EQ(second.exit_code, 2) << second.out << second.err;
    EXPECT_TRUE(second.err.find("in use by another run") != std::string::npos ||
                second.err.find("exists") != std::string::npos)
        << second.err;
    EXPECT_EQ(weights("out"), whole);
    EXPECT_FALSE(std::filesystem::exists(dir / "out.partial"));
    std::filesystem::remove_all(dir / "out");
  }
}

TEST_F(OwnedRun, KilledAnywhereItResumesToTheSameBytes) {
  const double seconds = whole_run();
  constexpr int kMoments = 6;
  for (int i = 1; i <= kMoments; ++i) {
    const std::string out = "out" + std::to_string(i);
    const ProcessResult r = killed(command(out), seconds * i / kMoments);
    if (std::filesystem::exists(dir / (out + ".partial"))) {
      if (recorded_blocks(dir / (out + ".partial")) > 1) {
        const ProcessResult again = run(command(out));
        EXPECT_EQ(again.exit_code, 2) << again.err;
        EXPECT_NE(again.err.find(std::filesystem::exists(dir / out) ? "exists" : "--resume"), std::string::npos)
            << again.err;
      }
      done(command(out, "--resume"));
    } else if (!std::filesystem::exists(dir / out)) {
      EXPECT_NE(r.exit_code, 0);
      done(command(out));
    }
    EXPECT_EQ(weights(out), whole) << "killed after " << i << " sixths";
    EXPECT_FALSE(std::filesystem::exists(dir / (out + ".partial")));
  }
}

TEST_F(OwnedRun, SaysWhereItStands) {
  EXPECT_EQ(run("quantize status out").exit_code, 1);
  const double seconds = whole_run();
  for (int tenths = 5; tenths < 10; ++tenths) {  // late enough that a block is sealed, before it is done
    killed(command("out", "--restart"), seconds * tenths / 10);
    if (recorded_blocks(dir / "out.partial") > 0) break;
  }
  if (std::filesystem::exists(dir / "out")) GTEST_SKIP() << "the run was over before it was killed";
  const Json stopped = json("quantize status out");
  EXPECT_EQ(stopped["state"], "stopped");
  EXPECT_EQ(stopped["blocks"], 4);
  EXPECT_TRUE(stopped["remaining_seconds"].is_null());
  const std::string resume = stopped["resume"];
  EXPECT_NE(resume.find(" --resume"), std::string::npos) << resume;
  EXPECT_EQ(resume.find("--restart"), std::string::npos) << resume;
  const ProcessResult told = run("quantize status out");
  EXPECT_NE(told.out.find("go on with: "), std::string::npos) << told.out;
  done(command("out", "--resume"));
  EXPECT_EQ(weights("out"), whole);
  const Json finished = json("quantize status out");
  EXPECT_EQ(finished["state"], "finished");
  EXPECT_EQ(finished["report"]["linears"].size(), 28u);
}

TEST_F(OwnedRun, ForceLeavesTheOldOrTheNewOneWhole) {
  const double seconds = whole_run();
  done("quantize rtn " + kDemo + " old --device cpu");
  const std::string old = bytes_of_file(dir / "old/model.safetensors");
  ASSERT_NE(old, whole);
  std::filesystem::copy(dir / "old", dir / "out", std::filesystem::copy_options::recursive);
  int kept = 0, replaced = 0;
  for (int i = 0; i < 12; ++i) {
    // Most of them near the end, where the one takes the other's place.
    killed(command("out", "--force --restart"), seconds * (i < 3 ? 0.3 * i + 0.1 : 0.7 + 0.05 * (i - 3)));
    const std::string now = weights("out");
    ASSERT_TRUE(now == old || now == whole) << i;
    EXPECT_TRUE(std::filesystem::exists(dir / "out/quant_report.json"));
    ++(now == old ? kept : replaced);
    if (now == old) continue;
    done("quantize rtn " + kDemo + " out --device cpu --force --restart");
    ASSERT_EQ(weights("out"), old);
  }
  EXPECT_GT(kept, 0);
  done(command("out", "--force --restart"));
  EXPECT_EQ(weights("out"), whole);
  EXPECT_FALSE(std::filesystem::exists(dir / "out.partial"));
}

TEST_F(OwnedRun, SaysWhatCannotBe) {
  done("quantize rtn " + kDemo + " out --device cpu");
  const std::string before = weights("out");
  std::filesystem::create_directory(dir / "foreign.partial");
  std::ofstream(dir / "foreign.partial/thesis.txt") << "years of work";
  std::filesystem::copy(kDemo, dir / "model");
  struct Case {
    std::string command, says;
    int exit_code;
  };
  for (const Case& c : {Case{"quantize rtn model foreign", "no owner's mark", 2},
                        {"quantize rtn model foreign --restart", "no owner's mark", 2},
                        {"quantize rtn model model --force", "is MODEL", 2},
                        {"quantize rtn model model/out", "lies in MODEL", 2},
                        {"quantize rtn model . --force", "holds MODEL", 2},
                        {"convert to bf16 out out/bf16", "lies in MODEL", 2},
                        {"convert to bf16 out out", "is MODEL", 2},
                        {"quantize rtn model out --resume --restart", "--restart", 2},
                        {"quantize gptq model out --resume", "is finished, by recipe \"rtn\"", 2}}) {
    const ProcessResult r = run(c.command);
    EXPECT_EQ(r.exit_code, c.exit_code) << c.command << r.err;
    EXPECT_NE(r.err.find(c.says), std::string::npos) << c.command << ": " << r.err;
  }
  EXPECT_EQ(bytes_of_file(dir / "foreign.partial/thesis.txt"), "years of work");
  EXPECT_EQ(weights("out"), before);
  EXPECT_EQ(bytes_of_file(dir / "model/model.safetensors"), bytes_of_file(kDemo + "/model.safetensors"));
  // What a run leaves that is killed behind its last step.
  const std::filesystem::path left = dir / ".out.partial-1-0";
  std::filesystem::create_directory(left);
  std::ofstream(left / "owner") << "{\"fewbit run\":2}\n";
  const Json report = json("quantize rtn model out --resume");
  EXPECT_EQ(report.at("recipe"), "rtn");
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_EQ(weights("out"), before);
}

// A model that changed, another --allow-rtn: named, and nothing is written.
TEST_F(OwnedRun, AChangedModelIsNotResumed) {
  const TempDir models;
  std::filesystem::copy(kDemo, models / "m");
  Bench b("gptq int4 g128");
  QuantJob job{.recipe = "gptq", .out = dir / "out"};
  const auto run = [&](bool resume, bool allow_rtn) {
    const Checkpoint c = Checkpoint::open(models / "m");
    int asked = 0;
    job.resume = resume;
    job.allow_rtn = allow_rtn;
    job.stop_requested = [&] { return ++asked > 2; };
    run_pipeline(b.ex, c, b.plan, b.windows, job);
  };
  EXPECT_NE(message_of([&] { run(false, false); }, ErrorKind::stopped), "");
  EXPECT_NE(message_of([&] { run(true, true); }, ErrorKind::usage).find("allow-rtn (then false, now true)"),
            std::string::npos);
  const std::filesystem::path file = models / "m/model.safetensors";
  std::string bytes = bytes_of_file(file);
  for (size_t i = bytes.size() - 200000; i < bytes.size() - 100000; ++i) bytes[i] = static_cast<char>(bytes[i] ^ 128);
  std::ofstream(file, std::ios::binary) << bytes;
  const std::string message = message_of([&] { run(true, false); }, ErrorKind::usage);
  EXPECT_NE(message.find("model.safetensors (then "), std::string::npos) << message;
  EXPECT_EQ(message.find("seed"), std::string::npos) << message;
}

TEST_F(OwnedRun, ADamagedBlockIsDoneAgainAndSaid) {
  Bench b("gptq int4 g128");
  QuantJob job{.recipe = "gptq", .out = dir / "whole"};
  run_pipeline(b.ex, b.c, b.plan, b.windows, job);
  job.out = dir / "out";
  int asked = 0;
  job.stop_requested = [&] { return ++asked > 3; };
  EXPECT_NE(message_of([&] { run_pipeline(b.ex, b.c, b.plan, b.windows, job); }, ErrorKind::stopped), "");
  EXPECT_FALSE(std::filesystem::exists(dir / "out.partial/block-00001")) << "bytes are written once";
  const std::string tensor = "model.layers.1.mlp.down_proj.B";
  const std::filesystem::path file = dir / "out.partial/checkpoint/shard-00001.safetensors";
  const auto at = static_cast<size_t>(container_safetensors.open(file).tensors.at(tensor).begin) + 1000;
  std::string bytes = bytes_of_file(file);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  job.stop_requested = {};
  job.resume = true;
  const QuantReport r = run_pipeline(b.ex, b.c, b.plan, b.windows, job);
  EXPECT_NE(r.note.find("block 1 was damaged (" + tensor + ") and is done again"), std::string::npos) << r.note;
  EXPECT_EQ(weights("out"), weights("whole"));
}

}  // namespace
}  // namespace fewbit::test

// A run that is stopped and resumed writes the same bytes as one that was not.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "src/quant/loop/pipeline.h"
#include "tests/support/support.h"

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

}  // namespace
}  // namespace fewbit::test

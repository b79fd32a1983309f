// The background does what it is given in order, once, and tells of errors; a run that uses it writes the same bytes.
#include "src/quant/loop/background.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "src/core/error.h"
#include "src/core/inline_parallel.h"
#include "src/core/parallel.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

TEST(Background, KeepsTheOrder) {
  for (const bool beside : {true, false}) {
    std::vector<int> done;
    Background b(beside);
    for (int i = 0; i < 100; ++i) b.give("write", kWaitingBytes / 4, [&done, i] { done.push_back(i); });
    b.wait();
    ASSERT_EQ(done.size(), 100u);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
    EXPECT_EQ(b.times().busy.count("write"), 1u);
    EXPECT_EQ(b.times().hidden.count("write"), beside ? 1u : 0u);
  }
}

TEST(Background, ATicketIsDoneWithAllBeforeIt) {
  std::atomic<int> done = 0;
  Background b(true);
  b.give("pack", 0, [&] { ++done; });
  const Background::Ticket second = b.give("pack", 0, [&] { ++done; });
  b.wait_for(second);
  EXPECT_GE(done, 2);
}

TEST(Background, AnErrorEndsTheWorkAndReachesTheGiver) {
  for (const bool beside : {true, false}) {
    Background b(beside);
    bool later = false;
    const auto all = [&] {
      b.give("write", 0, [] { fail(ErrorKind::io, "the disk is full"); });
      b.give("write", 0, [&] { later = true; });
      b.wait();
    };
    EXPECT_EQ(message_of(all, ErrorKind::io), "the disk is full");
    EXPECT_FALSE(later);
  }
}

// Hangs where the three are not in it at once.
TEST(Background, ThreadsWorkSideBySideAndWhatIsBehindAllComesAfterThem) {
  std::atomic<int> begun = 0, done = 0;
  int seen = 0;
  Background b(true, false, 3);
  for (int i = 0; i < 3; ++i)
    b.give(
        "pack", 0,
        [&] {
          for (++begun; begun < 3;) std::this_thread::yield();
          ++done;
        },
        Background::When::any_time);
  b.give("write", 0, [&] { seen = done; });
  b.wait();
  EXPECT_EQ(seen, 3);
  EXPECT_GT(b.times().working, 0);
  EXPECT_LE(b.times().working, b.times().busy.at("pack") + b.times().busy.at("write"));
}

// Hangs where it does.
TEST(Background, WhatMayBeDoneAtAnyTimeDoesNotWaitForWhatIsBehindAll) {
  std::atomic<bool> packed = false;
  Background b(true, false, 2);
  b.give("write", 0, [&] {
    while (!packed) std::this_thread::yield();
  });
  b.give(
      "pack", 0, [&] { packed = true; }, Background::When::any_time);
  b.wait();
  EXPECT_TRUE(packed);
}

TEST(Background, NothingIsDoneBehindAnErrorOfOneOfSeveralThreads) {
  bool sealed = false;
  const auto all = [&] {
    Background b(true, false, 4);
    for (int i = 0; i < 20; ++i)
      b.give(
          "pack", 0,
          [i] {
            if (i == 7) fail(ErrorKind::io, "the codes are gone");
          },
          Background::When::any_time);
    b.give("write", 0, [&] { sealed = true; });
    b.wait();
  };
  EXPECT_EQ(message_of(all, ErrorKind::io), "the codes are gone");
  EXPECT_FALSE(sealed);
}

TEST(Background, WhatWasGivenIsDoneBeforeItGoes) {
  for (const int threads : {1, 3}) {
    std::atomic<int> done = 0;
    {
      Background b(true, false, threads);
      for (int i = 0; i < 10; ++i)
        b.give(
            "pack", 0, [&] { ++done; }, i % 4 == 3 ? Background::When::behind_all : Background::When::any_time);
    }
    EXPECT_EQ(done, 10);
  }
}

TEST(InlineParallel, CoversTheRangeOnItsOwnThread) {
  const std::thread::id here = std::this_thread::get_id();
  const InlineParallel alone;
  int64_t sum = 0;
  parallel_for(1000, 7, [&](int64_t begin, int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    for (int64_t i = begin; i < end; ++i) sum += i;
  });
  EXPECT_EQ(sum, 499500);
}

class Overlap : public ::testing::TestWithParam<const char*> {};

TEST_P(Overlap, GivesTheSameBytes) {
  const TempDir dir;
  synthesize(dir / "model", {.preset = "tiny"}, {});
  const Checkpoint c = Checkpoint::open(dir / "model");
  const QuantPlan plan = make_plan(c, {.base = parse_recipe(GetParam()), .tokens = 512, .seq_len = 128});
  Windows windows;
  if (plan.calibrates()) {
    windows.count = 4;
    windows.length = 128;
    for (int i = 0; i < 512; ++i) windows.ids.push_back(i * 7 % static_cast<int>(c.spec.vocab));
  }
  Exec ex = Exec::cpu();
  QuantReport reports[2];
  for (const bool beside : {false, true})
    reports[beside] = run_pipeline(ex, c, plan, windows,
                                   {.recipe = GetParam(),
                                    .out = dir / (beside ? "beside" : "alone"),
                                    .overlaps = beside,
                                    .seconds_before = beside ? 100. : 0.});
  const std::string file = plan.format->gguf ? "model.gguf" : "model.safetensors";
  EXPECT_EQ(bytes_of_file(dir / ("beside/" + file)), bytes_of_file(dir / ("alone/" + file)));
  ASSERT_EQ(reports[0].linears.size(), reports[1].linears.size());
  for (size_t i = 0; i < reports[0].linears.size(); ++i) {
    EXPECT_EQ(reports[0].linears[i].name, reports[1].linears[i].name);
    EXPECT_EQ(reports[0].linears[i].hash, reports[1].linears[i].hash);
  }
  EXPECT_TRUE(reports[0].hidden_seconds.empty());
  EXPECT_EQ(reports[1].hidden_seconds.count("write"), 1u);
  EXPECT_GT(reports[0].floor_seconds, 0);
  EXPECT_EQ(reports[0].phases.count("start"), 0u);
  EXPECT_EQ(reports[1].phases.at("start"), 100);
  EXPECT_GT(reports[1].floor_seconds, 100) << "nothing goes on before the run is there";
  EXPECT_GE(reports[1].seconds, reports[1].floor_seconds);
}
INSTANTIATE_TEST_SUITE_P(Recipes, Overlap,
                         ::testing::Values("rtn int4 g64", "gptq int4 g64 effort=quick",
                                           "awq+gptq int4 g64 effort=quick", "gptq int3 g64 effort=best",
                                           "rtn format=gguf:q8_0"));

}  // namespace
}  // namespace fewbit::test

// The disk that a run takes at its peak, and what is refused.
#include "src/quant/plan/disk_plan.h"

#include <gtest/gtest.h>

#include <fstream>

#include "src/quant/plan/plan.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

QuantPlan plan_of(int64_t blocks, int64_t bytes, int64_t others) {
  QuantPlan plan;
  plan.format = &checkpoint_format("marlin");
  for (int64_t i = 0; i < blocks; ++i) {
    PlannedLinear& p = plan.linears.emplace_back();
    p.linear.layer = i;
    p.out_bytes = bytes;
  }
  plan.out_bytes = blocks * bytes + others;
  return plan;
}

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(DiskPlan, IsOutAndWhatCannotBeWrittenIntoItAtOnce) {
  DiskJob job{.shard_bytes = 4 * kGiB};
  QuantPlan large = plan_of(80, kGiB, 2 * kGiB), small = plan_of(2, kGiB, 2 * kGiB);
  const auto near = [](int64_t found, int64_t expected) {
    EXPECT_GE(found, expected);
    EXPECT_LE(found, expected + expected / 64);
  };
  near(peak_out_bytes(large, job), 82 * kGiB);
  near(peak_out_bytes(small, job), 4 * kGiB);
  // Routers that a transform may write in another type: blocks wait for their shard.
  for (QuantPlan* plan : {&large, &small}) plan->transforms.push_back(nullptr);
  near(peak_out_bytes(large, job), 82 * kGiB);
  job.routers = true;
  near(peak_out_bytes(large, job), 82 * kGiB + 5 * kGiB);
  near(peak_out_bytes(small, job), 4 * kGiB + 2 * kGiB);
  QuantPlan gguf = plan_of(80, kGiB, 2 * kGiB);
  gguf.format = &checkpoint_format("gguf");
  near(peak_out_bytes(gguf, job), 162 * kGiB);
}

TEST(DiskPlan, WhatDoesNotFitIsRefusedWithTheWayOut) {
  const TempDir dir;
  DiskJob job{.out = dir / "not/yet/there", .shard_bytes = kGiB};
  QuantPlan plan = plan_of(4, kGiB << 20, 0);
  DiskPlan disk = plan_disk(plan, job);
  ASSERT_EQ(disk.needs.size(), 1u);
  EXPECT_EQ(disk.needs[0].folder, dir.path());
  EXPECT_GT(disk.needs[0].free, 0);
  for (const char* word : {"TiB", "free at", "OUT on another file system"})
    EXPECT_NE(disk.refusal.find(word), std::string::npos) << disk.refusal;
  EXPECT_NE(disk_lines(disk).find("refused: "), std::string::npos);
  plan = plan_of(4, 1000, 0);
  EXPECT_EQ(plan_disk(plan, job).refusal, "");
  plan.memory.scratch = kGiB << 20;
  disk = plan_disk(plan, job);
  EXPECT_EQ(disk.needs.at(0).what, "OUT and scratch");
  EXPECT_NE(disk.refusal, "");
}

TEST(DiskPlan, WhatAFileHasRoomForAndDoesNotHoldIsNotTaken) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "out.partial/checkpoint");
  const std::filesystem::path file = dir / "out.partial/checkpoint/shard-00001.safetensors";
  std::ofstream(file, std::ios::binary) << std::string(1 << 20, 'x');
  std::filesystem::resize_file(file, 64 << 20);
  const QuantPlan plan = plan_of(4, kGiB, 0);
  DiskJob job{.out = dir / "out", .shard_bytes = kGiB};
  const int64_t before = plan_disk(plan, job).needs.at(0).bytes;
  job.partial = dir / "out.partial";
  EXPECT_NEAR(plan_disk(plan, job).needs.at(0).bytes, before - (1 << 20), 1 << 20);
}

TEST(DiskPlan, WhatARunHasWrittenCountsAsTaken) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "out.partial/block-00000");
  const std::filesystem::path file = dir / "out.partial/block-00000/model.safetensors";
  std::ofstream(file, std::ios::binary) << std::string(3 << 20, 'x');
  const QuantPlan plan = plan_of(4, kGiB, 0);
  DiskJob job{.out = dir / "out", .shard_bytes = kGiB};
  const int64_t before = plan_disk(plan, job).needs.at(0).bytes;
  job.partial = dir / "out.partial";
  EXPECT_EQ(plan_disk(plan, job).needs.at(0).bytes, before - (3 << 20));
}

}  // namespace
}  // namespace fewbit::test

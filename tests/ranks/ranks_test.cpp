// Several processes: each test starts rank_member under mpirun.
#include "src/ranks/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "tests/support/devices.h"
#include "tests/support/mpirun.h"
#include "tests/support/paths.h"

namespace fewbit::test {
namespace {

const std::string kMember = in_build("tests/rank_member ");

int count(const std::string& text, const std::string& words) {
  int n = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++n;
  return n;
}

class SeveralRanks : public ::testing::TestWithParam<int> {};

TEST_P(SeveralRanks, Collectives) {
  const ProcessResult r = run_ranks(GetParam(), kMember + "collectives");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(count(r.out, fmt::format(" of {}: ok", GetParam())), GetParam()) << r.out << r.err;
}

TEST_P(SeveralRanks, ThreadsFitTheProcessors) {
  const ProcessResult r = run_ranks(GetParam(), kMember + "threads");
  EXPECT_EQ(r.exit_code, 0) << r.err;
}

TEST_P(SeveralRanks, FactorsMadeTogether) {
  const ProcessResult r = run_ranks(GetParam(), kMember + "factors");
  EXPECT_EQ(r.exit_code, 0) << r.err;
}

TEST_P(SeveralRanks, CollectivesWithoutMpi) {
  const ProcessResult r = run_local_ranks(GetParam(), kMember + "collectives");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(count(r.out, fmt::format(" of {}: ok", GetParam())), GetParam()) << r.out << r.err;
}

INSTANTIATE_TEST_SUITE_P(Ranks, SeveralRanks, ::testing::Values(1, 2, 3, 4));

// The last line of fewbit's own, among those of the launcher.
std::string last_own_line(const std::string& text) {
  const size_t at = text.rfind("rank_member: rank ");
  return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
}

TEST(Ranks, AFailureIsNamedAndEndsAll) {
  const ProcessResult r = run_ranks(3, kMember + "last-fails", 10);
  EXPECT_EQ(r.exit_code, 1) << r.err;
  EXPECT_EQ(last_own_line(r.err), "rank_member: rank 2 on " + host_name() + ": model.safetensors: made to fail")
      << r.err;
}

TEST(Ranks, WhatAllRefuseIsSaidOnce) {
  const ProcessResult r = run_ranks(3, kMember + "all-fail", 10);
  EXPECT_EQ(r.exit_code, 2) << r.err;
  EXPECT_EQ(count(r.err, "refused by all"), 1) << r.err;
  EXPECT_EQ(last_own_line(r.err), "rank_member: rank 0 on " + host_name() + ": refused by all");
}

// Processes whose working directory is `folder`.
int processes_in(const std::filesystem::path& folder) {
  int n = 0;
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc"))
    n += std::filesystem::read_symlink(process.path() / "cwd", error) == folder;
  return n;
}

TEST(Ranks, AKilledRankEndsAll) {
  const TempDir dir;
  const ProcessResult r = run_ranks(3, kMember + "last-is-killed", 10, dir.path().string());  // 124: not in 10 s
  EXPECT_EQ(processes_in(dir.path()), 0);
  EXPECT_NE(r.exit_code, 0);
  EXPECT_NE(r.exit_code, 124) << r.err;
  EXPECT_EQ(count(r.out, "ok"), 0) << r.out;
  EXPECT_EQ(count(r.err, "rank_member: rank 2 on " + host_name() + " is gone without a word"), 1) << r.err;
}

TEST(Ranks, AFailureEndsAllWithoutMpi) {
  const TempDir dir;
  const ProcessResult r = run_local_ranks(3, kMember + "last-fails", 10);
  EXPECT_EQ(r.exit_code, 1) << r.err;
  EXPECT_EQ(last_own_line(r.err), "rank_member: rank 2 on " + host_name() + ": model.safetensors: made to fail")
      << r.err;
  const ProcessResult killed = run_local_ranks(3, kMember + "last-is-killed", 10, dir.path().string());
  EXPECT_EQ(killed.exit_code, 137) << killed.err;
  EXPECT_EQ(count(killed.err, "rank_member: rank 2 on " + host_name() + " is gone without a word"), 1) << killed.err;
  EXPECT_EQ(processes_in(dir.path()), 0);
}

TEST(Ranks, ThatAreStoppedGoOnWithoutMpi) {
  const ProcessResult r = run_local_ranks(2, kMember + "all-are-stopped");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(count(r.out, "ok"), 2) << r.out;
}

// From GPU to GPU and through host memory.
TEST(Ranks, CudaTensorsOfTwoGpus) {
  try {
    Exec::cuda(1);
  } catch (const Error& e) {
    GTEST_SKIP() << "needs two GPUs: " << e.what();
  }
  for (const char* nccl : {"1", "0"}) {
    const ProcessResult r = run_ranks(2, std::string("env FEWBIT_NCCL=") + nccl + " " + kMember + "gpus", 120);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_EQ(count(r.out, *nccl == '1' ? "tensors by NCCL" : "tensors by host memory"), 2) << r.out;
  }
}

TEST(Ranks, LengthsMustAgree) {
  const ProcessResult r = run_ranks(2, kMember + "short-message", 10);
  EXPECT_EQ(r.exit_code, 1) << r.err;
  EXPECT_NE(last_own_line(r.err).find("another length"), std::string::npos) << r.err;
}

Launch launch_with(const std::map<std::string, const char*>& environment) {
  return launch_from([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second;
  });
}

TEST(Ranks, LaunchersAreKnownByTheirEnvironment) {
  EXPECT_TRUE(launch_with({}).alone());
  EXPECT_TRUE(launch_with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).alone());  // a batch script itself
  EXPECT_TRUE(launch_with({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).alone());
  // mpirun inside a job of Slurm.
  const Launch open_mpi = launch_with({{"OMPI_COMM_WORLD_RANK", "3"},
                                       {"OMPI_COMM_WORLD_SIZE", "4"},
                                       {"PMIX_RANK", "3"},
                                       {"SLURM_PROCID", "0"},
                                       {"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_EQ(open_mpi.rank, 3);
  EXPECT_EQ(open_mpi.size, 4);
  const Launch mpich = launch_with({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(mpich.rank, 1);
  EXPECT_EQ(mpich.size, 2);
  const Launch slurm = launch_with({{"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "6"}, {"PMIX_RANK", "5"}});
  EXPECT_EQ(slurm.rank, 5);
  EXPECT_EQ(slurm.size, 6);
  const Launch local = launch_with({{"FEWBIT_RANK", "1"}, {"FEWBIT_RANKS", "2"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(local.rank, 1);
  EXPECT_EQ(local.size, 2);
  EXPECT_EQ(launch_with({{"PMIX_RANK", "1"}}).size, 0);
  EXPECT_FALSE(launch_with({{"PMIX_RANK", "0"}}).alone());
}

TEST(Ranks, EvenBands) {
  EXPECT_EQ(even_bands(10, 1), (std::vector<int64_t>{0, 10}));
  EXPECT_EQ(even_bands(10, 4), (std::vector<int64_t>{0, 2, 5, 7, 10}));
  EXPECT_EQ(even_bands(2, 4), (std::vector<int64_t>{0, 0, 1, 1, 2}));
  EXPECT_EQ(even_bands(300, 2, 128), (std::vector<int64_t>{0, 128, 300}));
  EXPECT_EQ(even_bands(0, 2), (std::vector<int64_t>{0, 0, 0}));
}

// One process: nothing to start, and every collective leaves its own values.
FEWBIT_DEVICE_TEST(Ranks, OneProcess) {
  Ranks ranks = Ranks::join({});
  EXPECT_TRUE(ranks.alone());
  EXPECT_EQ(ranks.size(), 1);
  const Tensor host = random_normal(DType::f32, {6, 5}, 1);
  const Tensor t = ex.to_device(host), all = ex.alloc_zeros(DType::f32, {6, 5});
  const std::vector<int64_t> begin{0, 6};
  ranks.broadcast(ex, t);
  ranks.all_reduce_sum(ex, t);
  ranks.all_gather_rows(ex, t, begin);
  ranks.gather_rows(ex, t, all, begin);
  ranks.barrier();
  EXPECT_EQ(first_difference(ex.to_host(all), host), "");
  ranks.finish();
}

}  // namespace
}  // namespace fewbit::test

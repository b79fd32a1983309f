#pragma once
// Starts several processes as a user would, by the mpirun of the MPI that the build found.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/process.h"

// Begins a test of several processes, which says SKIPPED where the build has no MPI or its mpirun is gone.
#define FEWBIT_NEEDS_MPIRUN()                                  \
  if (!std::filesystem::exists(::fewbit::test::mpirun_path())) \
  GTEST_SKIP() << "no mpirun: the build has no MPI, or it is gone"

namespace fewbit::test {

// Exit code 124 where it takes longer than `seconds`. Open MPI is told that it may run as root, and more processes than
// there are cores.
inline ProcessResult run_ranks(int ranks, const std::string& command, int seconds = 60,
                               const std::string& folder = "") {
  return run_program(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe "
      "ASAN_OPTIONS=detect_leaks=0 timeout " +
          std::to_string(seconds) + " '" + mpirun_path() + "' -n " + std::to_string(ranks) + " " + command,
      folder);
}

}  // namespace fewbit::test

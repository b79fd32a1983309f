#pragma once
// Starts several processes as a user would, by the mpirun of the MPI that the build found, or without one by
// scripts/local_ranks.
#include <filesystem>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace fewbit::test {

// Exit code 124 where it takes longer than `seconds`. Open MPI is told that it may run as root, and more processes than
// there are cores.
inline ProcessResult run_local_ranks(int ranks, const std::string& command, int seconds = 60,
                                     const std::string& folder = "") {
  return run_program("ASAN_OPTIONS=detect_leaks=0 timeout " + std::to_string(seconds) + " '" +
                         in_source("scripts/local_ranks") + "' " + std::to_string(ranks) + " " + command,
                     folder);
}
inline ProcessResult run_ranks(int ranks, const std::string& command, int seconds = 60,
                               const std::string& folder = "") {
  if (!std::filesystem::exists(mpirun_path())) return run_local_ranks(ranks, command, seconds, folder);
  return run_program(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe "
      "ASAN_OPTIONS=detect_leaks=0 timeout " +
          std::to_string(seconds) + " '" + mpirun_path() + "' -n " + std::to_string(ranks) + " " + command,
      folder);
}

}  // namespace fewbit::test

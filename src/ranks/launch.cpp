#include "src/ranks/launch.h"

#include <array>
#include <cstdlib>

#include "src/ranks/local_calls.h"

namespace fewbit {
namespace {

// What launchers set. A line stands above those that its launcher may inherit: mpirun inside a job of Slurm runs under
// a step of Slurm's own. PMIx, by itself, says no size.
struct Launcher {
  const char *rank, *size, *by;
};
constexpr std::array<Launcher, 5> kLaunchers{{
    {"FEWBIT_RANK", "FEWBIT_RANKS", kLocalLauncher},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun of Open MPI"},
    {"PMI_RANK", "PMI_SIZE", "a launcher that speaks PMI"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"},
    {"PMIX_RANK", nullptr, "a launcher that speaks PMIx"},
}};

}  // namespace

Launch launch_from(const Environment& get) {
  for (const Launcher& l : kLaunchers) {
    const char* rank = get(l.rank);
    const char* size = l.size ? get(l.size) : "0";
    if (rank && size) return {std::atoi(rank), std::atoi(size), l.by};
  }
  return {};
}

Launch launch_from_environment() {
  return launch_from([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace fewbit

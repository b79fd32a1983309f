#include "src/ranks/load_mpi.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "src/core/error.h"

namespace fewbit {

const MpiCalls* load_mpi(const Launch& launch) {
  namespace fs = std::filesystem;
  const std::string started = launch.size == 0 ? fmt::format("started by {}", launch.by)
                                               : fmt::format("started as one of {} by {}", launch.size, launch.by);
  const fs::path module =
      (fs::read_symlink("/proc/self/exe").parent_path() / ".." / "lib" / "fewbit" / "fewbit_mpi.so").lexically_normal();
  if (!fs::exists(module))
    fail(ErrorKind::usage, fmt::format("{}, but this build has no MPI (no {}): install libopenmpi-dev and build again, "
                                       "or start one process",
                                       started, module.string()));
  // Global: parts of Open MPI are modules themselves and look for its symbols.
  void* handle = dlopen(module.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (!handle)
    fail(ErrorKind::usage,
         fmt::format("{}, but MPI cannot be loaded: {}; install its libraries on every machine", started, dlerror()));
  const auto calls_of = reinterpret_cast<MpiCallsOf>(dlsym(handle, "fewbit_mpi_calls"));
  const MpiCalls* calls = calls_of ? calls_of() : nullptr;
  if (!calls || calls->version != MpiCalls::kVersion)
    fail(ErrorKind::usage, fmt::format("{}: of another build than this program; install both anew", module.string()));
  return calls;
}

}  // namespace fewbit

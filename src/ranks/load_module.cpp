#include "src/ranks/load_module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "src/core/error.h"
#include "src/ranks/local_calls.h"

namespace fewbit {
namespace {

std::filesystem::path module_path(const char* name) {
  const std::filesystem::path bin = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return (bin / ".." / "lib" / "fewbit" / name).lexically_normal();
}

[[noreturn]] void fail_version(const std::filesystem::path& module) {
  fail(ErrorKind::usage, fmt::format("{}: of another build than this program; install both anew", module.string()));
}

}  // namespace

const MpiCalls* load_mpi(const Launch& launch) {
  if (launch.by == kLocalLauncher) return local_calls();
  namespace fs = std::filesystem;
  const std::string started = launch.size == 0 ? fmt::format("started by {}", launch.by)
                                               : fmt::format("started as one of {} by {}", launch.size, launch.by);
  const fs::path module = module_path("fewbit_mpi.so");
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
  if (!calls || calls->version != MpiCalls::kVersion) fail_version(module);
  return calls;
}

const NcclCalls* load_nccl() {
  const std::filesystem::path module = module_path("fewbit_nccl.so");
  void* handle = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return nullptr;
  const auto calls_of = reinterpret_cast<NcclCallsOf>(dlsym(handle, "fewbit_nccl_calls"));
  const NcclCalls* calls = calls_of ? calls_of() : nullptr;
  if (!calls || calls->version != NcclCalls::kVersion) fail_version(module);
  return calls;
}

}  // namespace fewbit

#pragma once
// What the environment says about how this process was started.
#include <functional>
#include <string>

namespace fewbit {

// Of a launcher (mpirun, srun) that started several processes together; one process where nothing says so.
struct Launch {
  int rank = 0;
  int size = 1;      // 0: several, or one; only MPI knows
  std::string by{};  // "mpirun of Open MPI"
  bool alone() const { return size == 1; }
};

using Environment = std::function<const char*(const char*)>;
// `get` is std::getenv but in tests.
Launch launch_from(const Environment& get);
Launch launch_from_environment();

}  // namespace fewbit

#pragma once
// ExecPoint: orders what several Execs of one GPU are given. For those who let threads with an Exec each work on one
// device.
#include <memory>

#include "kernels/exec/exec.h"

namespace fewbit {

// A point in an Exec's stream: behind all that it was given before. Empty on the CPU.
struct ExecPoint {
  std::unique_ptr<void, void (*)(void*)> event{nullptr, +[](void*) {}};
};

namespace cuda {
ExecPoint point_of(const Exec&);
void wait_for(Exec&, const ExecPoint&);
void share_memory_alone(const Exec&);
}  // namespace cuda

inline ExecPoint point_of([[maybe_unused]] const Exec& ex) {
#ifdef FEWBIT_HAS_CUDA
  if (ex.on_cuda()) return cuda::point_of(ex);
#endif
  return {};
}

// What `ex` is given from now on comes after the point.
inline void wait_for([[maybe_unused]] Exec& ex, [[maybe_unused]] const ExecPoint& point) {
#ifdef FEWBIT_HAS_CUDA
  if (ex.on_cuda()) cuda::wait_for(ex, point);
#endif
}

// Memory that one Exec of the device has freed goes to another only when the first is done with it; without this the
// other's stream may be made to wait for it.
inline void share_memory_alone([[maybe_unused]] const Exec& ex) {
#ifdef FEWBIT_HAS_CUDA
  if (ex.on_cuda()) cuda::share_memory_alone(ex);
#endif
}

}  // namespace fewbit

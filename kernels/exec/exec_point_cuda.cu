// Points in an Exec's stream are events without times. They are used again: to make one, or to let go of it, the driver
// waits for whoever else launches, which beside threads that do nothing else took a millisecond.
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/exec/exec_cuda.h"
#include "kernels/exec/exec_point.h"

namespace fewbit::cuda {

namespace {

// Events of all devices that nobody holds. They go with the process: at its end the driver may be gone before them.
struct Events {
  std::mutex mutex{};
  std::vector<std::pair<int, cudaEvent_t>> free{};
};
Events& events() {
  static auto* all = new Events;
  return *all;
}

struct Held {
  int device = 0;
  cudaEvent_t event = nullptr;
};

Held* take_event(int device) {
  Events& all = events();
  {
    const std::lock_guard lock(all.mutex);
    for (auto& e : all.free)
      if (e.first == device) {
        auto* held = new Held{device, e.second};
        std::swap(e, all.free.back());
        all.free.pop_back();
        return held;
      }
  }
  cudaEvent_t event = nullptr;
  FEWBIT_CUDA_CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return new Held{device, event};
}

void give_event(void* p) {
  const std::unique_ptr<Held> held(static_cast<Held*>(p));
  Events& all = events();
  const std::lock_guard lock(all.mutex);
  all.free.emplace_back(held->device, held->event);
}

cudaEvent_t event_of(const ExecPoint& point) { return static_cast<const Held*>(point.event.get())->event; }

}  // namespace

ExecPoint point_of(const Exec& ex) {
  FEWBIT_CUDA_CALL(cudaSetDevice(ex.cuda_state().device));
  ExecPoint p;
  p.event = {take_event(ex.cuda_state().device), &give_event};
  FEWBIT_CUDA_CALL(cudaEventRecord(event_of(p), ex.cuda_state().stream));
  return p;
}

void wait_for(Exec& ex, const ExecPoint& point) {
  FEWBIT_CUDA_CALL(cudaSetDevice(ex.cuda_state().device));
  FEWBIT_CUDA_CALL(cudaStreamWaitEvent(ex.cuda_state().stream, event_of(point), 0));
}

void share_memory_alone(const Exec& ex) {
  cudaMemPool_t pool = nullptr;
  int waits = 0;
  FEWBIT_CUDA_CALL(cudaDeviceGetDefaultMemPool(&pool, ex.cuda_state().device));
  FEWBIT_CUDA_CALL(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &waits));
}

}  // namespace fewbit::cuda

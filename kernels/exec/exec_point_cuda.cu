// Points in an Exec's stream are events without times.
#include "kernels/exec/exec_cuda.h"
#include "kernels/exec/exec_point.h"

namespace fewbit::cuda {

ExecPoint point_of(const Exec& ex) {
  FEWBIT_CUDA_CALL(cudaSetDevice(ex.cuda_state().device));
  cudaEvent_t event = nullptr;
  FEWBIT_CUDA_CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  ExecPoint p;
  p.event = {event, +[](void* e) { cudaEventDestroy(static_cast<cudaEvent_t>(e)); }};
  FEWBIT_CUDA_CALL(cudaEventRecord(event, ex.cuda_state().stream));
  return p;
}

void wait_for(Exec& ex, const ExecPoint& point) {
  FEWBIT_CUDA_CALL(cudaSetDevice(ex.cuda_state().device));
  FEWBIT_CUDA_CALL(cudaStreamWaitEvent(ex.cuda_state().stream, static_cast<cudaEvent_t>(point.event.get()), 0));
}

void share_memory_alone(const Exec& ex) {
  cudaMemPool_t pool = nullptr;
  int waits = 0;
  FEWBIT_CUDA_CALL(cudaDeviceGetDefaultMemPool(&pool, ex.cuda_state().device));
  FEWBIT_CUDA_CALL(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &waits));
}

}  // namespace fewbit::cuda

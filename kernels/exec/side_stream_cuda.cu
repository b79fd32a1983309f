// Copies beside the stream of an Exec: a stream that does not block, and two pinned buffers of its own for host memory
// that is not pinned.
#include <vector>

#include "kernels/exec/exec_cuda.h"
#include "kernels/exec/side_stream.h"

namespace fewbit {

struct CudaSide {
  explicit CudaSide(int device_index) : device(device_index) {}
  ~CudaSide() {
    cudaSetDevice(device);
    if (stream) cudaStreamSynchronize(stream);
    for (const std::vector<cudaEvent_t>& all : {fences, landed})
      for (cudaEvent_t e : all)
        if (e) cudaEventDestroy(e);
    if (stream) cudaStreamDestroy(stream);
  }
  CudaSide(const CudaSide&) = delete;
  CudaSide& operator=(const CudaSide&) = delete;

  int device = 0;
  cudaStream_t stream = nullptr;
  std::vector<cudaEvent_t> fences{}, landed{};  // landed: made by the first copy that uses it
  cuda::Staging staging{};
};

namespace cuda {

std::unique_ptr<CudaSide, void (*)(CudaSide*)> make_side(Exec& ex, int fences) {
  const int device = ex.cuda_state().device;
  std::unique_ptr<CudaSide, void (*)(CudaSide*)> side{new CudaSide(device), +[](CudaSide* s) { delete s; }};
  FEWBIT_CUDA_CALL(cudaSetDevice(device));
  FEWBIT_CUDA_CALL(cudaStreamCreateWithFlags(&side->stream, cudaStreamNonBlocking));
  side->fences.resize(static_cast<size_t>(fences), nullptr);
  side->landed.resize(static_cast<size_t>(fences), nullptr);
  for (cudaEvent_t& e : side->fences) FEWBIT_CUDA_CALL(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  return side;
}

void fence(const Exec& ex, CudaSide& side, int i) {
  FEWBIT_CUDA_CALL(cudaEventRecord(side.fences.at(static_cast<size_t>(i)), ex.cuda_state().stream));
}

void wait_fence(CudaSide& side, int i) {
  FEWBIT_CUDA_CALL(cudaSetDevice(side.device));
  FEWBIT_CUDA_CALL(cudaStreamWaitEvent(side.stream, side.fences.at(static_cast<size_t>(i)), 0));
}

void side_copy(CudaSide& side, ConstTensorView from, TensorView to) {
  const auto bytes = static_cast<size_t>(from.bytes());
  FEWBIT_CUDA_CALL(cudaSetDevice(side.device));  // a thread of its own begins with device 0
  if (from.device.kind == Device::cpu)
    side.staging.upload(side.stream, from.data, to.data, bytes);
  else
    FEWBIT_CUDA_CALL(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToHost, side.stream));
  FEWBIT_CUDA_CALL(cudaStreamSynchronize(side.stream));
}

void begin_copy(const Exec& ex, CudaSide& side, int i, ConstTensorView from, TensorView to) {
  fence(ex, side, i);
  wait_fence(side, i);
  cudaEvent_t& landed = side.landed.at(static_cast<size_t>(i));
  if (!landed) FEWBIT_CUDA_CALL(cudaEventCreateWithFlags(&landed, cudaEventDisableTiming));
  const auto bytes = static_cast<size_t>(from.bytes());
  const auto way = to.device.kind == Device::cpu ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  FEWBIT_CUDA_CALL(cudaMemcpyAsync(to.data, from.data, bytes, way, side.stream));
  FEWBIT_CUDA_CALL(cudaEventRecord(landed, side.stream));
}

void land_copy(const Exec& ex, CudaSide& side, int i) {
  FEWBIT_CUDA_CALL(cudaStreamWaitEvent(ex.cuda_state().stream, side.landed.at(static_cast<size_t>(i)), 0));
}

void copy_behind(const Exec& ex, ConstTensorView from, TensorView to) {
  const CudaState& s = ex.cuda_state();
  FEWBIT_CUDA_CALL(cudaSetDevice(s.device));
  const auto bytes = static_cast<size_t>(from.bytes());
  FEWBIT_CUDA_CALL(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToHost, s.stream));
}

}  // namespace cuda
}  // namespace fewbit

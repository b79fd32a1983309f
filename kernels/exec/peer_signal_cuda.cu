#include <cuda.h>

#include "kernels/exec/exec_cuda.h"
#include "kernels/exec/peer_signal.h"

namespace fewbit {
namespace {

using StreamWord = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// The driver's functions, found at run time so that nothing links libcuda. Null where the driver is too old.
StreamWord found(const char* name) {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  FEWBIT_CUDA_CALL(cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &result));
#else
  FEWBIT_CUDA_CALL(cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &result));
#endif
  return result == cudaDriverEntryPointSuccess ? reinterpret_cast<StreamWord>(f) : nullptr;
}

StreamWord writer() {
  static const StreamWord f = found("cuStreamWriteValue32");
  return f;
}
StreamWord waiter() {
  static const StreamWord f = found("cuStreamWaitValue32");
  return f;
}

void call(StreamWord f, const CudaState& s, const void* word, uint32_t value, unsigned how) {
  FEWBIT_ASSERT(f != nullptr);
  FEWBIT_CUDA_CALL(cudaSetDevice(s.device));
  if (const CUresult status = f(s.stream, reinterpret_cast<CUdeviceptr>(word), value, how); status != CUDA_SUCCESS)
    fail(ErrorKind::device, "CUDA: a word between two GPUs: error " + std::to_string(static_cast<int>(status)));
}

}  // namespace

bool has_stream_words() { return writer() && waiter(); }

void copy_to_peer(Exec& ex, ConstTensorView from, void* to) {
  const CudaState& s = ex.cuda_state();
  FEWBIT_CUDA_CALL(cudaSetDevice(s.device));
  const auto bytes = static_cast<size_t>(from.bytes());
  FEWBIT_CUDA_CALL(cudaMemcpyAsync(to, from.data, bytes, cudaMemcpyDeviceToDevice, s.stream));
}

// Behind a barrier: whoever sees the word sees what was copied before it.
void write_word(Exec& ex, void* word, uint32_t value) {
  call(writer(), ex.cuda_state(), word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

void await_word(Exec& ex, const void* word, uint32_t value) {
  call(waiter(), ex.cuda_state(), word, value, CU_STREAM_WAIT_VALUE_GEQ);
}

}  // namespace fewbit

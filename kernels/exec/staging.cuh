#pragma once
// Staging: two pinned buffers through which large copies from and to unpinned host memory pass, filled and emptied by
// all threads while the other one is on its way.
#include <cuda_runtime.h>

#include <cstddef>

namespace fewbit::cuda {

class Staging {
 public:
  static constexpr size_t kBytes = size_t{32} << 20;  // of each buffer

  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // In stream order. The host memory is free, or filled, when they return.
  void upload(cudaStream_t, const void* host, void* device, size_t bytes);
  void download(cudaStream_t, const void* device, void* host, size_t bytes);

 private:
  void make();

  void* buffers_[2] = {nullptr, nullptr};     // made on first use
  cudaEvent_t free_[2] = {nullptr, nullptr};  // behind the last copy that used the buffer
  int next_ = 0;
};

}  // namespace fewbit::cuda

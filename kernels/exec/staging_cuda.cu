#include <algorithm>
#include <cstring>

#include "kernels/exec/exec_cuda.h"
#include "kernels/exec/staging.cuh"
#include "src/core/parallel.h"

namespace fewbit::cuda {
namespace {

constexpr int64_t kGrain = int64_t{1} << 20;  // bytes one thread copies at a time

void copy_by_all(const char* from, char* to, size_t bytes) {
  parallel_for(static_cast<int64_t>(bytes), kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

}  // namespace

Staging::~Staging() {
  for (int i = 0; i < 2; ++i) {
    if (free_[i]) cudaEventDestroy(free_[i]);
    if (buffers_[i]) cudaFreeHost(buffers_[i]);
  }
}

void Staging::make() {
  for (int i = 0; i < 2 && !free_[i]; ++i) {
    FEWBIT_CUDA_CALL(cudaHostAlloc(&buffers_[i], kBytes, cudaHostAllocDefault));
    FEWBIT_CUDA_CALL(cudaEventCreateWithFlags(&free_[i], cudaEventDisableTiming));
  }
}

void Staging::upload(cudaStream_t stream, const void* host, void* device, size_t bytes) {
  make();
  const auto* src = static_cast<const char*>(host);
  auto* dst = static_cast<char*>(device);
  // Small tensors also change buffers from call to call, so that filling one overlaps the transfer of the other.
  for (size_t done = 0; done < bytes;) {
    const size_t chunk = std::min(kBytes, bytes - done);
    const int i = next_;
    next_ ^= 1;
    FEWBIT_CUDA_CALL(cudaEventSynchronize(free_[i]));
    copy_by_all(src + done, static_cast<char*>(buffers_[i]), chunk);
    FEWBIT_CUDA_CALL(cudaMemcpyAsync(dst + done, buffers_[i], chunk, cudaMemcpyHostToDevice, stream));
    FEWBIT_CUDA_CALL(cudaEventRecord(free_[i], stream));
    done += chunk;
  }
}

// The first touch of fresh host memory is all threads' too.
void Staging::download(cudaStream_t stream, const void* device, void* host, size_t bytes) {
  make();
  const auto* src = static_cast<const char*>(device);
  auto* dst = static_cast<char*>(host);
  const size_t chunks = (bytes + kBytes - 1) / kBytes;
  const auto size_of = [&](size_t c) { return std::min(kBytes, bytes - c * kBytes); };
  for (size_t c = 0; c <= chunks; ++c) {
    if (c < chunks) {  // what still reads this buffer stands in front of it in the stream
      FEWBIT_CUDA_CALL(cudaMemcpyAsync(buffers_[c % 2], src + c * kBytes, size_of(c), cudaMemcpyDeviceToHost, stream));
      FEWBIT_CUDA_CALL(cudaEventRecord(free_[c % 2], stream));
    }
    if (c == 0) continue;
    FEWBIT_CUDA_CALL(cudaEventSynchronize(free_[(c - 1) % 2]));
    copy_by_all(static_cast<const char*>(buffers_[(c - 1) % 2]), dst + (c - 1) * kBytes, size_of(c - 1));
  }
}

}  // namespace fewbit::cuda

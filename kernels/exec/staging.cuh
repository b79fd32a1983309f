#pragma once
// The two pinned buffers through which large copies from and to unpinned host memory pass.
#include <cstring>

#include "kernels/exec/exec_cuda.h"
#include "src/core/parallel.h"

namespace fewbit::cuda {

constexpr int64_t kStagingGrain = int64_t{1} << 20;  // bytes one thread copies at a time

using StagingBuffers = void* [2];
using StagingEvents = cudaEvent_t[2];

static void make_staging(StagingBuffers& buffers, StagingEvents& events) {
  for (int i = 0; i < 2 && !events[i]; ++i) {
    FEWBIT_CUDA_CALL(cudaHostAlloc(&buffers[i], CudaState::kStaging, cudaHostAllocDefault));
    FEWBIT_CUDA_CALL(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
  }
}

// One buffer is emptied by all threads while the other is filled; the first touch of fresh host memory is theirs too.
static void staged_download(cudaStream_t stream, StagingBuffers& buffers, StagingEvents& events, const void* from,
                            void* to, size_t bytes) {
  constexpr size_t kChunk = CudaState::kStaging;
  const auto* src = static_cast<const char*>(from);
  auto* dst = static_cast<char*>(to);
  const size_t chunks = (bytes + kChunk - 1) / kChunk;
  const auto size_of = [&](size_t c) { return std::min(kChunk, bytes - c * kChunk); };
  make_staging(buffers, events);
  for (size_t c = 0; c <= chunks; ++c) {
    if (c < chunks) {  // what still reads this buffer stands in front of it in the stream
      FEWBIT_CUDA_CALL(cudaMemcpyAsync(buffers[c % 2], src + c * kChunk, size_of(c), cudaMemcpyDeviceToHost, stream));
      FEWBIT_CUDA_CALL(cudaEventRecord(events[c % 2], stream));
    }
    if (c == 0) continue;
    FEWBIT_CUDA_CALL(cudaEventSynchronize(events[(c - 1) % 2]));
    const auto* buffer = static_cast<const char*>(buffers[(c - 1) % 2]);
    char* out = dst + (c - 1) * kChunk;
    parallel_for(static_cast<int64_t>(size_of(c - 1)), kStagingGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(out + begin, buffer + begin, static_cast<size_t>(end - begin));
    });
  }
}

}  // namespace fewbit::cuda

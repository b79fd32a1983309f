#pragma once
// Programmatic dependent launch: kernels that begin while their predecessor in the stream still runs (compute
// capability 9.0; elsewhere one kernel runs after the other).
//
// A kernel started by launch_overlapping() must call await_predecessor() before it reads anything that an earlier
// kernel wrote, and before it writes anything at all. Up to there it may touch only what no kernel of the stream writes
// early (weights). allow_successor() lets the next such kernel begin. Every kernel that calls it also waits, so waiting
// for the predecessor is waiting for all kernels before it.
//
// A kernel that calls allow_successor() after its own wait lets the next one begin only when all kernels before it have
// ended. Right behind such a kernel, what it does not write itself may be read at once, but past the L1: a line there
// may hold neighbours of what is still being written.
#include <utility>

#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {

__device__ __forceinline__ void await_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void allow_successor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The attributes of such a launch; a launch without clusters takes only the first.
struct OverlapAttributes {
  cudaLaunchAttribute v[2]{};
  explicit OverlapAttributes(int cluster) {
    v[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    v[0].val.programmaticStreamSerializationAllowed = 1;
    v[1].id = cudaLaunchAttributeClusterDimension;
    v[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
};

// Launches in clusters of `cluster` blocks.
template <class... Params, class... Args>
void launch_clusters(CudaState& s, int cluster, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                     Args&&... args) {
  // All kernels ask for the same division of L1 and shared memory: to change it a multiprocessor must first run empty.
  FEWBIT_CUDA_CALL(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  OverlapAttributes attributes(cluster);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = s.stream;
  config.attrs = attributes.v;
  config.numAttrs = !s.sm90() ? 0 : cluster > 1 ? 2 : 1;
  FEWBIT_CUDA_CALL(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}
template <class... Params, class... Args>
void launch_overlapping(CudaState& s, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, Args&&... args) {
  launch_clusters(s, 1, kernel, grid, block, shared, std::forward<Args>(args)...);
}

// A launch of a kernel that takes one job, in clusters of `cluster` blocks, prepared once and made many times.
class ClusterLaunch {
 public:
  ClusterLaunch(CudaState& s, const void* kernel, int cluster, int blocks, int threads, size_t shared)
      : kernel_(kernel), attributes_(cluster) {
    FEWBIT_CUDA_CALL(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    config_.gridDim = dim3(static_cast<unsigned>(blocks));
    config_.blockDim = dim3(static_cast<unsigned>(threads));
    config_.dynamicSmemBytes = shared;
    config_.stream = s.stream;
    config_.attrs = attributes_.v;
    config_.numAttrs = 2;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  template <class Job>
  void operator()(Job job) const {
    void* arguments[] = {&job};
    FEWBIT_CUDA_CALL(cudaLaunchKernelExC(&config_, kernel_, arguments));
  }
  int most_clusters() const {  // that can run at the same time
    int clusters = 0;
    FEWBIT_CUDA_CALL(cudaOccupancyMaxActiveClusters(&clusters, kernel_, &config_));
    return clusters;
  }

 private:
  const void* kernel_;
  OverlapAttributes attributes_;
  cudaLaunchConfig_t config_{};
};

// Static shared memory of a block of the kernel, in bytes: what is planned beside it must leave room for it.
inline size_t static_shared_bytes(const void* kernel) {
  cudaFuncAttributes of{};
  FEWBIT_CUDA_CALL(cudaFuncGetAttributes(&of, kernel));
  return of.sharedSizeBytes;
}

}  // namespace fewbit::cuda

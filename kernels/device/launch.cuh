#pragma once
// Launches that overlap their predecessor (programmatic dependent launch, compute capability 9.0). A kernel started by
// `launch_overlapping` may begin while the kernel before it in the stream still runs. It must call await_predecessor()
// before it reads anything an earlier kernel wrote, and before it writes anything at all; up to there it may only touch
// what no kernel of the stream writes early (weights). allow_successor() lets the next such kernel begin; every kernel
// that calls it also waits, so waiting for the predecessor is waiting for all before it. A kernel that calls it after
// its own wait lets the next one begin only when all before it have ended: right behind such a kernel, what it does not
// write itself may be read at once, past the first-level cache (lines of it may hold the neighbours of what is still
// written).
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

// What such a launch asks for; a launch without clusters takes the first alone.
struct OverlapAttributes {
  cudaLaunchAttribute v[2]{};
  explicit OverlapAttributes(int cluster) {
    v[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    v[0].val.programmaticStreamSerializationAllowed = 1;
    v[1].id = cudaLaunchAttributeClusterDimension;
    v[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
};

// In clusters of `cluster` blocks.
template <class... Params, class... Args>
void launch_clusters(CudaState& s, int cluster, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
                     Args&&... args) {
  // One split of the L1 for all of them: a multiprocessor must run dry before it can change it.
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

// Launches like those of `launch_overlapping` in clusters of `cluster` blocks, of a kernel that takes one job.
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
  int most_clusters() const {  // that run at the same time
    int clusters = 0;
    FEWBIT_CUDA_CALL(cudaOccupancyMaxActiveClusters(&clusters, kernel_, &config_));
    return clusters;
  }

 private:
  const void* kernel_;
  OverlapAttributes attributes_;
  cudaLaunchConfig_t config_{};
};

}  // namespace fewbit::cuda

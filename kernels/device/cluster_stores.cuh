#pragma once
// What the blocks of a cluster tell each other without waiting for their own stores (compute capability 9.0).
#include "kernels/device/hopper.cuh"

namespace fewbit::cuda {

#ifdef FEWBIT_SM90A

// The two halves of cluster_sync(), of which the first orders nothing: for blocks that want to know that all have
// begun.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory"); }
// Stores a value to the same place of the shared memory of another block of the cluster, whose barrier expects its
// bytes.
__device__ __forceinline__ void send_to_block(int block, float* to, uint64_t* barrier, float value) {
  asm volatile(
      "{\n.reg .b32 there, bar;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 bar, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [bar];\n}\n" ::"r"(shared_address(to)),
      "r"(shared_address(barrier)), "r"(block), "r"(__float_as_uint(value))
      : "memory");
}

#endif

}  // namespace fewbit::cuda

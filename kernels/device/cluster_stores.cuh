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
// Stores a value in shared memory of block `rank`, asynchronously: its four bytes arrive at a barrier there.
__device__ __forceinline__ void store_in_cluster(uint32_t shared, uint32_t barrier, int rank, float value) {
  const uint32_t to = address_in_cluster(shared, rank), arrival = address_in_cluster(barrier, rank);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];\n" ::"r"(to),
               "r"(__float_as_uint(value)), "r"(arrival)
               : "memory");
}

#endif

}  // namespace fewbit::cuda

#pragma once
// Barriers within a block: mbarrier in shared memory, where some threads arrive and others wait (compute capability
// 8.0), and the numbered hardware barriers for part of a block's threads.
#include <cstdint>

namespace fewbit::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ uint32_t shared_address(uint32_t address) { return address; }
__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(shared_address(barrier))
               : "memory");
}
// Returns when the phase of this parity is complete. A fresh barrier behaves as if a phase of parity 1 were complete.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  const auto at = shared_address(barrier);
  uint32_t done = 0;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(at), "r"(parity)
                 : "memory");
  } while (!done);
}

// `threads` threads of the block wait for each other at one of its 16 numbered barriers (number 0 is that of
// __syncthreads()).
__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

// Counts as an arrival there, without waiting.
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

// How many lanes of a warp arrive at a barrier. One is enough where something orders what the other lanes did before
// its arrival: a warp barrier, or a wait of the whole warp for what they started. compute-sanitizer's racecheck follows
// each lane for itself, so a build for it lets all of them arrive.
#ifdef FEWBIT_RACECHECK
inline constexpr int kArrivingLanes = 32;
#else
inline constexpr int kArrivingLanes = 1;
#endif

}  // namespace fewbit::cuda

#pragma once
// Barriers in shared memory of which one side only waits (compute capability 8.0), and those of part of a block.
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
// Returns when the phase of this parity is complete; the phase before the first counts as one of parity 1.
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

// `threads` threads of the block meet at one of its 16 numbered barriers (0 is __syncthreads').
__device__ __forceinline__ void meet_threads(int number, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

// Counts as having come without waiting.
__device__ __forceinline__ void arrive_threads(int number, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

// Lanes of a warp that arrive at a barrier. One is enough where something orders what the other lanes did
// before its arrival: a warp barrier, or a warp-wide wait for what they gave. compute-sanitizer's racecheck
// follows lane by lane, so a build for it lets all of them arrive.
#ifdef FEWBIT_RACECHECK
inline constexpr int kArrivingLanes = 32;
#else
inline constexpr int kArrivingLanes = 1;
#endif

}  // namespace fewbit::cuda

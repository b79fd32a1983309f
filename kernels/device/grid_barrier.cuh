#pragma once
// Arrival counters in device memory, by which blocks of one launch wait for each other (a grid barrier, or one of some
// of the blocks). One thread of a block makes each call but the last, behind a barrier of the threads whose writes are
// meant: those writes are then visible to whoever has waited for the arrival. All blocks that wait must be resident
// together.
#include <cstdint>

namespace fewbit::cuda {

__device__ __forceinline__ void count_arrival(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// Returns once at least `least` arrivals have been counted.
__device__ __forceinline__ void await_count(const uint32_t* counter, uint32_t least) {
  uint32_t seen = 0;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < least);
}
// Arrives without waiting: true for the last of `expected`, which also zeroes the counter.
__device__ __forceinline__ bool arrives_last(uint32_t* counter, uint32_t expected) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  const bool last = before == expected - 1;
  if (last) *counter = 0;
  return last;
}
// Called by all threads of a block that has waited: counter[1] counts such blocks, and the last of `expected` zeroes
// both words for the next launch.
__device__ __forceinline__ void leave_barrier(uint32_t* counter, uint32_t expected) {
  if (threadIdx.x == 0 && atomicAdd(counter + 1, 1u) == expected - 1) counter[0] = counter[1] = 0;
}

}  // namespace fewbit::cuda

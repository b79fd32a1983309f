#pragma once
// Blocks of a launch that wait for each other at a counter in device memory. One thread of a block does each of these,
// behind a barrier of the threads whose writes are meant; what they wrote before is seen after by all that were waited
// for. Blocks that wait must be resident together.
#include <cstdint>

namespace fewbit::cuda {

__device__ __forceinline__ void count_arrival(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ void await_count(const uint32_t* counter, uint32_t least) {
  uint32_t seen = 0;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < least);
}
// Arrives without waiting: true for the last of `expected`, which zeroes the counter.
__device__ __forceinline__ bool arrives_last(uint32_t* counter, uint32_t expected) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  const bool last = before == expected - 1;
  if (last) *counter = 0;
  return last;
}

}  // namespace fewbit::cuda

#pragma once
// Several jobs in one launch, whose blocks stand one job behind the other.

namespace fewbit::cuda {

// The job of a block: the first of `count` whose end lies behind it. `ends`, ascending: blocks of this job and those
// before it.
__device__ __forceinline__ int job_of_block(const int* ends, int count, int block) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (block < ends[middle])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace fewbit::cuda

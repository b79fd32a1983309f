#pragma once
// What the choice of a kernel needs to know of a GPU: plain numbers, so that the choice can be asked without one.
#include <cstdint>

namespace fewbit {

struct GpuTraits {
  int capability = 90;          // compute capability, major * 10 + minor
  int sms = 132;                // multiprocessors
  int64_t max_shared = 232448;  // bytes of shared memory that a block can ask for

  bool hopper() const { return capability / 10 == 9; }  // wgmma, the bulk copy engine, clusters
  bool fp8_tensor_cores() const { return capability >= 89; }
};

}  // namespace fewbit

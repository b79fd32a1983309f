#pragma once
// What the choice of a kernel needs to know of a GPU: plain numbers, so that the choice can be asked without one.
#include <cstdint>
#include <span>

namespace fewbit {

struct GpuTraits {
  int capability = 90;          // compute capability, major * 10 + minor
  int sms = 132;                // multiprocessors
  int64_t max_shared = 232448;  // bytes of shared memory that a block can ask for

  bool hopper() const { return capability / 10 == 9; }  // wgmma, the bulk copy engine, clusters
  bool fp8_tensor_cores() const { return capability >= 89; }
};

// A GPU of each compute capability that people have; multiprocessors and shared memory from NVIDIA's CUDA C++
// Programming Guide ("Compute Capabilities") and the data sheets of the GPUs.
struct KnownGpu {
  const char* name;
  GpuTraits traits;
};
std::span<const KnownGpu> known_gpus();

}  // namespace fewbit

// Compiles the kernel of decode_layers_kernel.cuh that shares n tiles, for packed weights with zero points.
#include "kernels/decode/decode_layers_kernel.cuh"

namespace fewbit::cuda::decode_step {

Kernel zeros_sharing_kernel(int64_t head_dim, DType cache, bool whole_step) {
  return find_kernel<PackedWeights<true, true>>(head_dim, cache, whole_step);
}

}  // namespace fewbit::cuda::decode_step

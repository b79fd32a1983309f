// Compiles the kernel of decode_layers_kernel.cuh that shares n tiles, for packed weights without zero points.
#include "kernels/decode/decode_layers_kernel.cuh"

namespace fewbit::cuda::decode_step {

Kernel packed_sharing_kernel(int64_t head_dim, DType cache, bool whole_step) {
  return find_kernel<PackedWeights<false, true>>(head_dim, cache, whole_step);
}

}  // namespace fewbit::cuda::decode_step

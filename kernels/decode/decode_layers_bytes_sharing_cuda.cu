// Compiles the kernel of decode_layers_kernel.cuh that shares n tiles, for E4M3 weights.
#include "kernels/decode/decode_layers_bytes.cuh"

namespace fewbit::cuda::decode_step {

Kernel bytes_sharing_kernel(int64_t head_dim, DType cache, bool whole_step) {
  return find_kernel<ByteWeights<true>>(head_dim, cache, whole_step);
}

}  // namespace fewbit::cuda::decode_step

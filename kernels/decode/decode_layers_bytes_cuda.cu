// Compiles the kernel of decode_layers_kernel.cuh for E4M3 weights.
#include "kernels/decode/decode_layers_bytes.cuh"

namespace fewbit::cuda::decode_step {

WeightKind byte_weights_kind() { return weights_kind<ByteWeights<>>(&bytes_sharing_kernel); }

}  // namespace fewbit::cuda::decode_step

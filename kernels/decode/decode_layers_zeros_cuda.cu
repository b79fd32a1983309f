// Compiles the kernel of decode_layers_kernel.cuh for packed weights with zero points.
#include "kernels/decode/decode_layers_kernel.cuh"

namespace fewbit::cuda::decode_step {

WeightKind zero_weights_kind() { return weights_kind<PackedWeights<true>>(&zeros_sharing_kernel); }

}  // namespace fewbit::cuda::decode_step

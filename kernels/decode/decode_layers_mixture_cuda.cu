// Compiles the kernel of decode_layers_kernel.cuh for packed experts.
#include "kernels/decode/decode_layers_kernel.cuh"

namespace fewbit::cuda::decode_step {

WeightKind mixture_weights_kind() { return weights_kind<MixtureWeights>(); }

}  // namespace fewbit::cuda::decode_step

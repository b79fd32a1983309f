// The kernel of decode_layers_kernel.cuh for packed weights with zero points.
#include "kernels/decode/decode_layers_kernel.cuh"

namespace fewbit::cuda {

StepKind zero_step_kind() { return kind_of<StepPackedOf<true>>(); }

}  // namespace fewbit::cuda

// The kernel of decode_layers_kernel.cuh for weights in bytes.
#include "kernels/decode/decode_layers_bytes.cuh"

namespace fewbit::cuda {

StepKind byte_step_kind() { return kind_of<StepBytes>(); }

}  // namespace fewbit::cuda

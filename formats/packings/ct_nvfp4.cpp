// compressed-tensors "nvfp4-pack-quantized": `weight_packed` U8 [N, K/2], `weight_scale` F8_E4M3 [N, K/16],
// `weight_global_scale` F32 [1], which divides, and `input_global_scale`, which divides too, where activations
// are quantized. docs/formats/fp4.md has the bytes.
#include "formats/packings/fp4_tensors.h"

namespace fewbit {
namespace {

constexpr fp4::Layout kLayout{.spec = kNvfp4,
                              .activations = ActQuant::tensor,
                              .codes = "weight_packed",
                              .scales = "weight_scale",
                              .global = "weight_global_scale",
                              .input = "input_global_scale",
                              .stored = fp4::Stored::reciprocal};

}  // namespace

constinit const Packing packing_ct_nvfp4 =
    fp4::packing_of<kLayout>("ct_nvfp4", "compressed-tensors nvfp4-pack-quantized");

}  // namespace fewbit

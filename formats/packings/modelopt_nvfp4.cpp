// NVFP4 as ModelOpt stores it: `weight` U8 [N, K/2], `weight_scale` F8_E4M3 [N, K/16], `weight_scale_2` F32, a
// scalar that multiplies, and `input_scale`, which multiplies too, where activations are quantized.
// docs/formats/fp4.md has the bytes.
#include "formats/packings/fp4_tensors.h"

namespace fewbit {
namespace {

constexpr fp4::Layout kLayout{.spec = kNvfp4,
                              .activations = ActQuant::tensor,
                              .codes = "weight",
                              .scales = "weight_scale",
                              .global = "weight_scale_2",
                              .input = "input_scale",
                              .single_rank = 0};

}  // namespace

constinit const Packing packing_modelopt_nvfp4 = fp4::packing_of<kLayout>("modelopt_nvfp4", "ModelOpt NVFP4");

}  // namespace fewbit

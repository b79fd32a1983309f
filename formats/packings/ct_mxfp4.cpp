// compressed-tensors "mxfp4-pack-quantized": `weight_packed` U8 [N, K/2] and `weight_scale` U8 [N, K/32], powers
// of two (E8M0). docs/formats/fp4.md has the bytes.
#include "formats/packings/fp4_tensors.h"

namespace fewbit {
namespace {

constexpr fp4::Layout kLayout{
    .spec = kMxfp4,
    .activations = ActQuant::token,
    .codes = "weight_packed",
    .scales = "weight_scale",
};

}  // namespace

constinit const Packing packing_ct_mxfp4 =
    fp4::packing_of<kLayout>("ct_mxfp4", "compressed-tensors mxfp4-pack-quantized");

}  // namespace fewbit

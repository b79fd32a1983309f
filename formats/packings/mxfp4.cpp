// MXFP4 as models are published in it: powers of two (E8M0) per 32 inputs. By gpt-oss's names, a layer's experts in one
// tensor of `_blocks` U8 [E, N, K/32, 16] and one of `_scales` U8 [E, N, K/32], which the model layer takes apart and
// puts together: this is one expert's linear out of them. By DeepSeek V4's, `weight` I8 [N, K/2] and `scale` F8_E8M0
// [N, K/32]. docs/formats/fp4.md has the bytes.
#include "formats/packings/fp4_tensors.h"

namespace fewbit {
namespace {

constexpr fp4::Layout kStacked{
    .spec = kMxfp4,
    .activations = ActQuant::none,
    .codes = "blocks",
    .scales = "scales",
};
constexpr fp4::Layout kDeepSeek{
    .spec = kMxfp4,
    .activations = ActQuant::none,
    .codes = "weight",
    .scales = "scale",
    .codes_type = DType::i8,
    .scales_type = DType::f8_e8m0,
};

}  // namespace

constinit const Packing packing_mxfp4 =
    fp4::packing_of<kStacked>("mxfp4", "MXFP4 of one expert out of gpt-oss's blocks and scales");
constinit const Packing packing_mxfp4_v4 =
    fp4::packing_of<kDeepSeek>("mxfp4_v4", "MXFP4 weights by the names of DeepSeek V4");

}  // namespace fewbit

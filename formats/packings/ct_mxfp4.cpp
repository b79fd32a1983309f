// compressed-tensors "mxfp4-pack-quantized": `weight_packed` U8 [N, K/2] and `weight_scale` U8 [N, K/32], powers
// of two (E8M0). docs/formats/fp4.md has the bytes.
#include "formats/packings/fp4_tensors.h"

namespace fewbit {
namespace {

constexpr fp4::Layout kLayout{.spec = kMxfp4,
                              .activations = ActQuant::token,
                              .codes = "weight_packed",
                              .scales = "weight_scale"};

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  return fp4::refuses(kLayout, spec, out, in, act_order);
}

std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in, bool) {
  return fp4::tensors(kLayout, spec, out, in);
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q) {
  return fp4::pack(kLayout, linear, q);
}

QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  return fp4::unpack(kLayout, linear, spec, {out, in}, source);
}

}  // namespace

constinit const Packing packing_ct_mxfp4 = {.name = "ct_mxfp4",
                                    .summary = "compressed-tensors mxfp4-pack-quantized",
                                    .refuses = refuses,
                                    .tensors = tensors,
                                    .pack = pack,
                                    .unpack = unpack};

}  // namespace fewbit

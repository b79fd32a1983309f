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

constinit const Packing packing_ct_nvfp4 = {.name = "ct_nvfp4",
                                    .summary = "compressed-tensors nvfp4-pack-quantized",
                                    .refuses = refuses,
                                    .tensors = tensors,
                                    .pack = pack,
                                    .unpack = unpack};

}  // namespace fewbit

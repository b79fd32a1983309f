// compressed-tensors "float-quantized" (FP8): `weight` F8_E4M3 [N, K] in plain order and multipliers: one per
// output ([N, 1]), per group ([N, G]), per block ([ceil(N/128), ceil(K/128)]) or one of all ([1]).
// Activations in bf16, dynamic per token, or static with `input_scale`. docs/formats/compressed-tensors.md
// has the bytes.
#include "formats/packings/ct_tensors.h"

namespace fewbit {
namespace {

constexpr ct::ByteWeights kE4m3{.dtype = DType::f8_e4m3, .known_as = "float-quantized"};

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (spec.grid != Grid::f8_e4m3 || spec.bits != 8 || !spec.symmetric)
    return "float-quantized holds FP8 (E4M3), not " + spec.str();
  if (std::string why = ct::refuses_scales(spec, out, in); !why.empty()) return why;
  if (spec.group == -1 && spec.out_group != 1 && !ct::per_tensor(spec, out))
    return "whole rows share a scale with no other output or with all " + std::to_string(out) + ", not with " +
           std::to_string(spec.out_group);
  if (act_order) return "float-quantized has no room for reordered groups (act-order)";
  return "";
}

}  // namespace

constinit const Packing packing_ct_float =
    ct::packing_of<kE4m3, refuses>("ct_float", "compressed-tensors float-quantized: FP8 weights");

}  // namespace fewbit

// compressed-tensors "int-quantized" (W8A8): `weight` I8 [N, K] in plain order, signed: the neutral code
// minus 128. Symmetric, one scale per output ([N, 1]) or one of all ([1]); activations dynamic per token, or
// static with `input_scale`. docs/formats/compressed-tensors.md has the bytes.
#include "formats/packings/ct_tensors.h"

namespace fewbit {
namespace {

constexpr ct::ByteWeights kInt8{.dtype = DType::i8, .known_as = "int-quantized", .flip = 0x80};

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (spec.grid != Grid::integer || spec.bits != 8 || !spec.symmetric)
    return "int-quantized holds int8 sym, not " + spec.str();
  if (spec.activations == ActQuant::none)
    return "int-quantized is for int8 activations; weight-only int8 is pack-quantized";
  if (std::string why = ct::refuses_scales(spec, out, in); !why.empty()) return why;
  if (spec.group != -1)
    return "int-quantized has one scale per output (group -1), not one per " + std::to_string(spec.group) + " inputs";
  if (spec.out_group != 1 && !ct::per_tensor(spec, out))
    return "int-quantized has a scale per output or one of all, not one for " + std::to_string(spec.out_group) +
           " outputs";
  if (act_order) return "int-quantized has no groups to reorder (act-order)";
  return "";
}

}  // namespace

constinit const Packing packing_ct_int =
    ct::packing_of<kInt8, refuses>("ct_int", "compressed-tensors int-quantized: W8A8 in plain order");

}  // namespace fewbit

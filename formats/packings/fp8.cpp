// FP8 as vLLM's "fp8" method and ModelOpt store it: `weight` F8_E4M3 [N, K] in plain order, `weight_scale` F32,
// a multiplier, one of all ([1]) or one per output ([N]), and `input_scale` F32 [1] where activations are
// static. Its readers always quantize activations. transformers names the two `weight_scale_inv`, which multiplies all
// the same, and `activation_scale`; such a file has one scale for all. docs/formats/fp8.md has the bytes.
#include "formats/packings/ct_tensors.h"

namespace fewbit {
namespace {

constexpr ct::ByteWeights kE4m3{.dtype = DType::f8_e4m3, .known_as = "fp8", .flat = true};
constexpr ct::ByteWeights kScalar{
    .dtype = DType::f8_e4m3, .known_as = "fp8", .scales = "weight_scale_inv", .input = "activation_scale"};

std::string refuses_any(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (spec.grid != Grid::f8_e4m3 || spec.bits != 8 || !spec.symmetric) return "it holds FP8 (E4M3), not " + spec.str();
  if (spec.activations == ActQuant::none)
    return "its readers quantize activations, dynamically or with a static scale; weight-only FP8 goes to "
           "compressed-tensors";
  if (std::string why = ct::refuses_scales(spec, out, in); !why.empty()) return why;
  if (spec.group != -1 || (spec.out_group != 1 && !ct::per_tensor(spec, out)))
    return "it has one scale per output or one of all " + std::to_string(out) + " outputs, not one for " +
           std::to_string(spec.out_group) + " outputs and " + std::to_string(spec.group_size(in)) + " inputs";
  if (act_order) return "FP8 has no groups to reorder (act-order)";
  return "";
}

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (std::string why = refuses_any(spec, out, in, act_order); !why.empty()) return why;
  return spec.scale_dtype == DType::f32 ? "" : "its scales are f32, not " + std::string(name_of(spec.scale_dtype));
}

std::string refuses_rows(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (std::string why = refuses_any(spec, out, in, act_order); !why.empty()) return why;
  return ct::per_tensor(spec, out) ? "" : "it has one scale of all " + std::to_string(out) + " outputs";
}

}  // namespace

constinit const Packing packing_fp8 =
    ct::packing_of<kE4m3, refuses>("fp8", "FP8 weights with one scale, or one per output");
constinit const Packing packing_fp8_scalar =
    ct::packing_of<kScalar, refuses_rows>("fp8_scalar", "FP8 weights with one scale, by transformers' names");

}  // namespace fewbit

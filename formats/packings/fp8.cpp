// FP8 as vLLM's "fp8" method and ModelOpt store it: `weight` F8_E4M3 [N, K] in plain order, `weight_scale` F32,
// a multiplier, one of all ([1]) or one per output ([N]), and `input_scale` F32 [1] where activations are
// static. Its readers always quantize activations. docs/formats/fp8.md has the bytes.
#include "formats/packings/ct_tensors.h"

namespace fewbit {
namespace {

constexpr ct::ByteWeights kE4m3{.dtype = DType::f8_e4m3, .flat = true};

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (spec.grid != Grid::f8_e4m3 || spec.bits != 8 || !spec.symmetric)
    return "it holds FP8 (E4M3), not " + spec.str();
  if (spec.activations == ActQuant::none)
    return "its readers quantize activations, dynamically or with a static scale; weight-only FP8 goes to "
           "compressed-tensors";
  if (std::string why = ct::refuses_scales(spec, out, in); !why.empty()) return why;
  if (spec.scale_dtype != DType::f32)
    return "its scales are f32, not " + std::string(name_of(spec.scale_dtype));
  if (spec.group != -1 || (spec.out_group != 1 && !ct::per_tensor(spec, out)))
    return "it has one scale per output or one of all " + std::to_string(out) + " outputs, not one for " +
           std::to_string(spec.out_group) + " outputs and " + std::to_string(spec.group_size(in)) + " inputs";
  if (act_order) return "FP8 has no groups to reorder (act-order)";
  return "";
}

std::vector<TensorPlan> tensors(const QuantSpec& spec, int64_t out, int64_t in, bool) {
  return ct::byte_tensors(kE4m3, spec, out, in);
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(refuses(q.spec, q.out(), q.in(), q.group_of.has_value()).empty());
  return ct::pack_bytes(kE4m3, linear, q);
}

QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  if (const std::string why = refuses(spec, out, in, false); !why.empty())
    fail(ErrorKind::unsupported, std::string(linear) + ": cannot be read as fp8: " + why);
  return ct::unpack_bytes(kE4m3, linear, spec, {out, in}, source);
}

}  // namespace

constinit const Packing packing_fp8 = {.name = "fp8",
                                       .summary = "FP8 weights with one scale, or one per output",
                                       .refuses = refuses,
                                       .tensors = tensors,
                                       .pack = pack,
                                       .unpack = unpack};

}  // namespace fewbit

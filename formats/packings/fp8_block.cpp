// Block FP8 as DeepSeek publishes it: `weight` F8_E4M3 [N, K] in plain order and `weight_scale_inv` F32
// [ceil(N/bn), ceil(K/bk)], which, whatever its name says, multiplies. Activations are quantized when a layer
// runs, per token and block of inputs. docs/formats/fp8.md has the bytes.
#include "formats/packings/ct_tensors.h"

namespace fewbit {
namespace {

constexpr ct::ByteWeights kE4m3{.dtype = DType::f8_e4m3, .known_as = "block FP8", .scales = "weight_scale_inv"};

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (out < 1 || in < 1) return "the shape " + Shape{out, in}.str() + " is empty";
  if (spec.grid != Grid::f8_e4m3 || spec.bits != 8 || !spec.symmetric) return "it holds FP8 (E4M3), not " + spec.str();
  if (spec.scale_dtype != DType::f32) return "its scales are f32, not " + std::string(name_of(spec.scale_dtype));
  if (spec.activations != ActQuant::token)
    return "readers of block FP8 quantize activations dynamically, so the recipe must too";
  if (spec.group < 2 || spec.out_group < 2)
    return "it has a scale per block of outputs and inputs, not one for " + std::to_string(spec.out_group) +
           " outputs and " + std::to_string(spec.group_size(in)) + " inputs";
  if (act_order) return "block FP8 has no groups to reorder (act-order)";
  return "";
}

}  // namespace

constinit const Packing packing_fp8_block =
    ct::packing_of<kE4m3, refuses>("fp8_block", "FP8 weights with a scale per 128 x 128 block");

}  // namespace fewbit

// Block FP8 as DeepSeek publishes it: `weight` F8_E4M3 [N, K] in plain order and scales [ceil(N/bn), ceil(K/bk)], F32,
// BF16 or powers of two (F8_E8M0), which multiply whatever their name says: `weight_scale_inv`, and since V4 `scale`.
// Activations are quantized when a layer runs, per token and block of inputs. docs/formats/fp8.md has the bytes.
#include "formats/packings/ct_tensors.h"

namespace fewbit {
namespace {

constexpr ct::ByteWeights kInverse{.dtype = DType::f8_e4m3, .known_as = "block FP8", .scales = "weight_scale_inv"};
constexpr ct::ByteWeights kPlain{.dtype = DType::f8_e4m3, .known_as = "block FP8", .scales = "scale"};

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (out < 1 || in < 1) return "the shape " + Shape{out, in}.str() + " is empty";
  if (spec.grid != Grid::f8_e4m3 || spec.bits != 8 || !spec.symmetric) return "it holds FP8 (E4M3), not " + spec.str();
  if (spec.scale_dtype != DType::f32 && spec.scale_dtype != DType::bf16 && spec.scale_dtype != DType::f8_e8m0)
    return "its scales are f32, bf16 or powers of two, not " + std::string(name_of(spec.scale_dtype));
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
    ct::packing_of<kInverse, refuses>("fp8_block", "FP8 weights with a scale per block, 128 x 128 say");
constinit const Packing packing_fp8_block_v4 =
    ct::packing_of<kPlain, refuses>("fp8_block_v4", "the same by the names of DeepSeek V4");

}  // namespace fewbit

#pragma once
// What the packings with weights in plain order share (docs/formats/compressed-tensors.md, fp8.md, fp4.md):
// scales in the type of the neutral form's scale_dtype, single values, and weights of one byte a value.
// Internal to formats/packings.
//
//   weight_scale  F16 | BF16 | F32   [N, G], one per output and group; G = 1 for one per output ("channel");
//                 | F8_E8M0          in block FP8 also powers of two, read as U8 too
//                                    [ceil(N/bn), ceil(K/bk)] for blocks of bn outputs x bk inputs
//                                    [1] for one of all ("tensor": out_group = N, group -1)
//   input_scale   F32                [1], where activations are static
#include <string>

#include "formats/packing.h"

namespace fewbit::ct {

// Whether one scale serves the whole matrix: the strategy "tensor". A single output is a channel.
inline bool per_tensor(const QuantSpec& spec, int64_t out) {
  return spec.out_group == out && out > 1 && spec.group == -1;
}

// Why shapes, groups or the type of scales cannot be written; "" = they can. Groups must divide the inputs,
// or be one group: nobody reads a short last one.
std::string refuses_scales(const QuantSpec& spec, int64_t out, int64_t in);

TensorPlan scale_plan(const QuantSpec& spec, int64_t out, int64_t in);
Tensor scales_to_file(const QuantizedLinear& q, const Shape& shape);
// The tensor of `plan` as [ceil(out / out_group), G] f32. Error{checkpoint} naming the tensor: missing, wrong
// shape, or a scale that is not finite.
Tensor scales_from_file(const TensorSource& source, std::string_view linear, const TensorPlan& plan,
                        const QuantSpec& spec, Shape out_in);

// One value in a tensor of its own: written as f32 of `shape` ([1] or []), read as a scalar, [1] or [1, 1] of
// any float type.
TensorPlan single_plan(const char* suffix, Shape shape);
NamedTensor single_tensor(std::string_view linear, const TensorPlan& plan, double value);
// Error{checkpoint} unless it is positive and finite.
double single_from_file(const TensorSource& source, std::string_view linear, const TensorPlan& plan);

// `weight`, one byte a value of type `dtype`, stored as code ^ flip; then scales and input_scale.
struct ByteWeights {
  DType dtype;
  const char* known_as;  // in messages: "float-quantized"
  uint8_t flip = 0;
  const char* scales = "weight_scale";
  bool flat = false;  // scales of outputs are written as [N], not [N, 1]; both are read
  const char* input = "input_scale";
};
std::vector<TensorPlan> byte_tensors(ByteWeights kind, const QuantSpec& spec, int64_t out, int64_t in);
PackedLinear pack_bytes(ByteWeights kind, std::string_view linear, const QuantizedLinear& q);
QuantizedLinear unpack_bytes(ByteWeights kind, std::string_view linear, const QuantSpec& spec, Shape out_in,
                             const TensorSource& source);

// The packing of one such kind, which takes what `kRefuses` lets pass.
template <const ByteWeights& kKind, auto kRefuses>
constexpr Packing packing_of(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .refuses = kRefuses,
          .tensors = [](const QuantSpec& spec, int64_t out, int64_t in,
                        bool) { return byte_tensors(kKind, spec, out, in); },
          .pack =
              [](std::string_view linear, const QuantizedLinear& q) {
                FEWBIT_ASSERT(kRefuses(q.spec, q.out(), q.in(), q.group_of.has_value()).empty());
                return pack_bytes(kKind, linear, q);
              },
          .unpack =
              [](std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in, const TensorSource& source) {
                if (const std::string why = kRefuses(spec, out, in, false); !why.empty())
                  fail(ErrorKind::unsupported,
                       std::string(linear) + ": cannot be read as " + kKind.known_as + ": " + why);
                return unpack_bytes(kKind, linear, spec, {out, in}, source);
              }};
}

}  // namespace fewbit::ct

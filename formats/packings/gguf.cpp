// Packings gguf_q4_0, gguf_q4_1, gguf_q5_0, gguf_q5_1, gguf_q8_0: codes of an integer grid in GGUF's simple
// blocks, 32 consecutive inputs of one output each; the tensor of a linear is u8 [N, bytes of a row]. The
// fields of a block stand in formats/gguf/simple_blocks.cpp.
//
// An asymmetric grid has an integer zero z, the blocks a minimum m = f16(-z d): a reader of the file gets
// d code + m, which differs from d (code - z) by the rounding of m, at most 2^-11 of it. Blocks whose minima
// are no such products hold other grids and are refused by unpack().
#include <cmath>

#include "formats/gguf/block_codes.h"
#include "formats/packing.h"
#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

using gguf::BlockCodes;
using gguf::BlockType;
using gguf::kSimpleBlock;

std::string refuses(const BlockType& type, const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  const std::string name(type.name);
  if (out < 1 || in < 1) return "the shape " + Shape{out, in}.str() + " is empty";
  if (spec.grid != Grid::integer || spec.bits != type.grid->bits || spec.symmetric != type.grid->symmetric)
    return name + " holds " + type.grid->str() + ", not " + spec.str();
  if (spec.activations != ActQuant::none) return name + " is for weight-only linears, not " + spec.str();
  if (spec.group_size(in) != kSimpleBlock)
    return name + " has groups of 32 inputs, not " + std::to_string(spec.group_size(in)) + " (say g32)";
  if (in % kSimpleBlock != 0) return name + " wants K % 32 = 0; K = " + std::to_string(in);
  if (spec.scale_dtype != DType::f16)
    return name + " has f16 scales, not " + std::string(fewbit::name_of(spec.scale_dtype));
  if (spec.out_group != 1) return name + " has a scale for every output";
  if (act_order) return name + " has no reordered groups (act-order)";
  return "";
}

std::vector<TensorPlan> tensors(const BlockType& type, int64_t out, int64_t in) {
  // A plan for a shape that is refused is asked for its names only.
  const int64_t blocks = (in + kSimpleBlock - 1) / kSimpleBlock;
  return {{.suffix = std::string(type.name), .dtype = DType::u8, .shape = {out, blocks * type.bytes}}};
}

PackedLinear pack(const BlockType& type, std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(refuses(type, q.spec, q.out(), q.in(), q.group_of.has_value()).empty());
  const int64_t groups = q.groups();
  Tensor file = Tensor::host(DType::u8, {q.out(), groups * type.bytes});
  parallel_for(q.out(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * groups; i < end * groups; ++i) {
      BlockCodes c{.d = q.scales.as<float>()[i]};
      if (q.zeros) c.m = round_to_f16(-static_cast<float>(q.zeros->as<uint8_t>()[i]) * c.d);
      std::copy_n(q.codes.as<uint8_t>() + i * kSimpleBlock, kSimpleBlock, c.codes);
      gguf::store_codes(type, c, file.as<uint8_t>() + i * type.bytes);
    }
  });
  PackedLinear packed;
  packed.tensors.push_back({std::string(linear) + '.' + std::string(type.name), std::move(file)});
  return packed;
}

QuantizedLinear unpack(const BlockType& type, std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  if (const std::string why = refuses(type, spec, out, in, false); !why.empty())
    fail(ErrorKind::unsupported, std::string(linear) + ": cannot be read: " + why);
  const TensorPlan plan = tensors(type, out, in)[0];
  const ConstTensorView file = expect_tensor(source, linear, plan);
  const std::string tensor = "tensor '" + std::string(linear) + '.' + plan.suffix + "'";
  QuantizedLinear q;
  q.spec = spec;
  q.codes = Tensor::host(DType::u8, {out, in});
  q.scales = Tensor::host(DType::f32, {out, in / kSimpleBlock});
  if (!spec.symmetric) q.zeros = Tensor::host(DType::u8, q.scales.shape());
  parallel_for(q.scales.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const BlockCodes c = gguf::load_codes(type, file.as<uint8_t>() + i * type.bytes);
      if (!std::isfinite(c.d) || !std::isfinite(c.m))
        fail(ErrorKind::checkpoint, tensor + ": expected finite scales, found another in block " + std::to_string(i));
      if (q.zeros) {
        const int zero = gguf::zero_point(c, spec.max_code());
        if (zero < 0)
          fail(ErrorKind::unsupported, tensor + ": block " + std::to_string(i) +
                                           " has a minimum that is no multiple of its scale: no integer grid");
        q.zeros->as<uint8_t>()[i] = static_cast<uint8_t>(zero);
      }
      q.scales.as<float>()[i] = c.d;
      std::copy_n(c.codes, kSimpleBlock, q.codes.as<uint8_t>() + i * kSimpleBlock);
    }
  });
  return q;
}

template <const BlockType& kType>
constexpr Packing packing_of(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .refuses = [](const QuantSpec& spec, int64_t out, int64_t in,
                        bool act_order) { return refuses(kType, spec, out, in, act_order); },
          .tensors = [](const QuantSpec&, int64_t out, int64_t in, bool) { return tensors(kType, out, in); },
          .pack = [](std::string_view linear, const QuantizedLinear& q) { return pack(kType, linear, q); },
          .unpack = [](std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) { return unpack(kType, linear, spec, out, in, source); }};
}

}  // namespace

constinit const Packing packing_gguf_q4_0 = packing_of<gguf::type_q4_0>("gguf_q4_0", "GGUF blocks: int4 g32 sym");
constinit const Packing packing_gguf_q4_1 = packing_of<gguf::type_q4_1>("gguf_q4_1", "GGUF blocks: int4 g32 asym");
constinit const Packing packing_gguf_q5_0 = packing_of<gguf::type_q5_0>("gguf_q5_0", "GGUF blocks: int5 g32 sym");
constinit const Packing packing_gguf_q5_1 = packing_of<gguf::type_q5_1>("gguf_q5_1", "GGUF blocks: int5 g32 asym");
constinit const Packing packing_gguf_q8_0 = packing_of<gguf::type_q8_0>("gguf_q8_0", "GGUF blocks: int8 g32 sym");

}  // namespace fewbit

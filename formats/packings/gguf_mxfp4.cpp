// Packing gguf_mxfp4: E2M1 codes and powers of two in GGUF's blocks of type 39, 32 consecutive inputs of one output
// each; the tensor of a linear is u8 [N, bytes of a row]. The fields of a block stand in formats/gguf/mxfp4_blocks.cpp.
#include <algorithm>
#include <cmath>

#include "formats/gguf/mxfp4_blocks.h"
#include "formats/packing.h"
#include "src/core/parallel.h"

namespace fewbit {
namespace {

std::string refuses(const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (out < 1 || in < 1) return "the shape " + Shape{out, in}.str() + " is empty";
  if (spec.activations != ActQuant::none) return "mxfp4 of GGUF is for weight-only linears, not " + spec.str();
  if (!(spec == kMxfp4)) return "mxfp4 holds mxfp4, not " + spec.str();
  if (in % kMxfp4.group != 0) return "mxfp4 wants K % 32 = 0; K = " + std::to_string(in);
  if (act_order) return "mxfp4 has no reordered groups (act-order)";
  return "";
}

std::vector<TensorPlan> tensors(const QuantSpec&, int64_t out, int64_t in, bool) {
  return {{.suffix = "mxfp4",
           .dtype = DType::u8,
           .shape = {out, (in + kMxfp4.group - 1) / kMxfp4.group * gguf::type_mxfp4.bytes}}};
}

PackedLinear pack(std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(refuses(q.spec, q.out(), q.in(), q.group_of.has_value()).empty());
  validate(q);
  const int64_t groups = q.groups();
  Tensor file = Tensor::host(DType::u8, {q.out(), groups * gguf::type_mxfp4.bytes});
  parallel_for(q.out(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * groups; i < end * groups; ++i) {
      gguf::MxBlock b{.scale = q.scales.as<float>()[i]};
      std::copy_n(q.codes.as<uint8_t>() + i * kMxfp4.group, kMxfp4.group, b.codes);
      gguf::store_mx(b, file.as<uint8_t>() + i * gguf::type_mxfp4.bytes);
    }
  });
  PackedLinear packed;
  packed.tensors.push_back({std::string(linear) + ".mxfp4", std::move(file)});
  return packed;
}

QuantizedLinear unpack(std::string_view linear, const QuantSpec& spec, int64_t out, int64_t in,
                       const TensorSource& source) {
  if (const std::string why = refuses(spec, out, in, false); !why.empty())
    fail(ErrorKind::unsupported, std::string(linear) + ": cannot be read: " + why);
  const ConstTensorView file = expect_tensor(source, linear, tensors(spec, out, in, false)[0]);
  QuantizedLinear q;
  q.spec = spec;
  q.codes = Tensor::host(DType::u8, {out, in});
  q.scales = Tensor::host(DType::f32, {out, in / spec.group});
  parallel_for(q.scales.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const gguf::MxBlock b = gguf::load_mx(file.as<uint8_t>() + i * gguf::type_mxfp4.bytes);
      if (!std::isfinite(b.scale))
        fail(ErrorKind::checkpoint, "tensor '" + std::string(linear) +
                                        ".mxfp4': expected finite scales, found NaN in block " + std::to_string(i));
      q.scales.as<float>()[i] = b.scale;
      std::copy_n(b.codes, spec.group, q.codes.as<uint8_t>() + i * spec.group);
    }
  });
  return q;
}

}  // namespace

constinit const Packing packing_gguf_mxfp4 = {.name = "gguf_mxfp4",
                                              .summary = "GGUF blocks: mxfp4",
                                              .refuses = refuses,
                                              .tensors = tensors,
                                              .pack = pack,
                                              .unpack = unpack};

}  // namespace fewbit

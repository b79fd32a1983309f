#include "formats/packings/fp4_tensors.h"

#include <array>
#include <cmath>

#include "formats/packings/ct_tensors.h"
#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit::fp4 {
namespace {

constexpr int64_t kScalesOfPiece = 1 << 14;  // some 100 us of a thread

// Low nibble: the even input.
Tensor pack_codes(const Tensor& codes, DType type) {
  const int64_t out = codes.shape()[0], bytes = codes.shape()[1] / 2;
  Tensor packed = Tensor::host(type, {out, bytes});
  parallel_for(out * bytes, 1 << 18, [&](int64_t begin, int64_t end) {
    const uint8_t* from = codes.as<uint8_t>();
    auto* to = static_cast<uint8_t*>(packed.view().data);
    for (int64_t i = begin; i < end; ++i) to[i] = static_cast<uint8_t>(from[2 * i] | (from[2 * i + 1] << 4));
  });
  return packed;
}

Tensor unpack_codes(ConstTensorView packed) {
  Tensor codes = Tensor::host(DType::u8, {packed.shape[0], 2 * packed.shape[1]});
  parallel_for(packed.numel(), 1 << 18, [&](int64_t begin, int64_t end) {
    const auto* from = static_cast<const uint8_t*>(packed.data);
    for (int64_t i = begin; i < end; ++i) {
      codes.as<uint8_t>()[2 * i] = from[i] & 15;
      codes.as<uint8_t>()[2 * i + 1] = from[i] >> 4;
    }
  });
  return codes;
}

Tensor pack_scales(const Tensor& scales, DType type, DType stored) {
  Tensor file = Tensor::host(stored, scales.shape());
  parallel_for(scales.numel(), kScalesOfPiece, [&](int64_t begin, int64_t end) {
    auto* to = static_cast<uint8_t*>(file.view().data);
    for (int64_t i = begin; i < end; ++i) {
      const float s = scales.as<float>()[i];
      to[i] = type == DType::f8_e8m0 ? f32_to_f8_e8m0(s) : f32_to_f8_e4m3_saturated(s);
    }
  });
  return file;
}

Tensor unpack_scales(ConstTensorView file, DType type, const std::string& tensor) {
  Tensor scales = Tensor::host(DType::f32, file.shape);
  std::array<float, 256> values;
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    values[static_cast<size_t>(code)] = type == DType::f8_e8m0 ? f8_e8m0_to_f32(byte) : f8_e4m3_to_f32(byte);
  }
  parallel_for(scales.numel(), kScalesOfPiece, [&](int64_t begin, int64_t end) {
    const auto* from = static_cast<const uint8_t*>(file.data);
    for (int64_t i = begin; i < end; ++i) {
      const float s = values[from[i]];
      if (!(s >= 0))
        fail(ErrorKind::checkpoint, "tensor '" + tensor + "': expected finite scales of at least 0, found " +
                                        std::to_string(s) + " at element " + std::to_string(i));
      scales.as<float>()[i] = s;
    }
  });
  return scales;
}

double turned(const Layout& l, double value) { return l.stored == Stored::reciprocal ? 1.0 / value : value; }

}  // namespace

std::string refuses(const Layout& l, const QuantSpec& spec, int64_t out, int64_t in, bool act_order) {
  if (out < 1 || in < 1) return "the shape " + Shape{out, in}.str() + " is empty";
  QuantSpec plain = spec;
  plain.activations = ActQuant::none;
  if (!(plain == l.spec)) return "it holds " + l.spec.str() + ", not " + spec.str();
  if (spec.activations != ActQuant::none && spec.activations != l.activations)
    return l.activations == ActQuant::tensor
               ? "its activations have a static scale above dynamic ones of groups (acts=tensor), or are bf16"
               : "its activations are quantized dynamically (acts=token), or are bf16";
  if (in % spec.group != 0)
    return "it wants K % " + std::to_string(spec.group) + " = 0, here K = " + std::to_string(in);
  if (act_order) return "4-bit floats have no room for reordered groups (act-order)";
  return "";
}

std::vector<TensorPlan> tensors(const Layout& l, const QuantSpec& spec, int64_t out, int64_t in) {
  std::vector<TensorPlan> plan = {{l.codes, l.codes_type, {out, in / 2}},
                                  {l.scales, l.scales_type, {out, in / spec.group}}};
  if (l.codes_type != DType::u8) plan[0].also_read = {{DType::u8, plan[0].shape}};
  if (spec.scale_dtype == DType::f8_e8m0)
    plan[1].also_read = {{DType::f8_e8m0, plan[1].shape}, {DType::u8, plan[1].shape}};
  const Shape single = l.single_rank == 0 ? Shape{} : Shape{1};
  if (l.global) plan.push_back(ct::single_plan(l.global, single));
  if (l.input && spec.activations == ActQuant::tensor) plan.push_back(ct::single_plan(l.input, single));
  return plan;
}

PackedLinear pack(const Layout& l, std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(refuses(l, q.spec, q.out(), q.in(), q.group_of.has_value()).empty());
  validate(q);
  const std::vector<TensorPlan> plan = tensors(l, q.spec, q.out(), q.in());
  const std::string prefix = std::string(linear) + '.';
  PackedLinear p;
  p.tensors.push_back({prefix + l.codes, pack_codes(q.codes, l.codes_type)});
  p.tensors.push_back({prefix + l.scales, pack_scales(q.scales, q.spec.scale_dtype, l.scales_type)});
  if (q.global_scale) p.tensors.push_back(ct::single_tensor(linear, plan[2], turned(l, *q.global_scale)));
  if (q.input_scale) p.tensors.push_back(ct::single_tensor(linear, plan[3], turned(l, *q.input_scale)));
  return p;
}

QuantizedLinear unpack(const Layout& l, std::string_view linear, const QuantSpec& spec, Shape out_in,
                       const TensorSource& source) {
  if (const std::string why = refuses(l, spec, out_in[0], out_in[1], false); !why.empty())
    fail(ErrorKind::unsupported, std::string(linear) + ": cannot be read as 4-bit floats: " + why);
  const std::vector<TensorPlan> plan = tensors(l, spec, out_in[0], out_in[1]);
  QuantizedLinear q;
  q.spec = spec;
  q.codes = unpack_codes(expect_tensor(source, linear, plan[0]));
  q.scales =
      unpack_scales(expect_tensor(source, linear, plan[1]), spec.scale_dtype, std::string(linear) + '.' + l.scales);
  if (l.global) q.global_scale = turned(l, ct::single_from_file(source, linear, plan[2]));
  if (spec.activations == ActQuant::tensor) q.input_scale = turned(l, ct::single_from_file(source, linear, plan[3]));
  return q;
}

}  // namespace fewbit::fp4

#include "formats/packings/ct_tensors.h"

#include <cmath>

#include "formats/bits.h"
#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit::ct {
namespace {

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

float load_float(ConstTensorView t, int64_t i) {
  switch (t.dtype) {
    case DType::f16:
      return f16_to_f32(bits::load<uint16_t>(t.data, i));
    case DType::bf16:
      return static_cast<float>(bits::load<bf16>(t.data, i));
    case DType::u8:
    case DType::f8_e8m0:
      return f8_e8m0_to_f32(bits::load<uint8_t>(t.data, i));
    default:
      return bits::load<float>(t.data, i);
  }
}

// A single value has been written as [1], as a scalar and as [1, 1].
void add_single_forms(TensorPlan& plan, DType dtype) {
  for (const Shape& shape : {Shape{1}, Shape{}, Shape{1, 1}}) plan.also_read.push_back({dtype, shape});
}

[[noreturn]] void not_finite(std::string_view linear, const std::string& suffix, float found, int64_t at) {
  fail(ErrorKind::checkpoint, "tensor '" + std::string(linear) + '.' + suffix + "': expected finite scales, found " +
                                  std::to_string(found) + " at element " + std::to_string(at));
}

Tensor flipped(ConstTensorView from, DType dtype, uint8_t flip) {
  Tensor to = Tensor::host(dtype, from.shape);
  const auto* a = static_cast<const uint8_t*>(from.data);
  auto* b = static_cast<uint8_t*>(to.view().data);
  parallel_for(from.numel(), 1 << 20, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) b[i] = static_cast<uint8_t>(a[i] ^ flip);
  });
  return to;
}

}  // namespace

std::string refuses_scales(const QuantSpec& spec, int64_t out, int64_t in) {
  if (out < 1 || in < 1) return "the shape " + Shape{out, in}.str() + " is empty";
  if (spec.scale_dtype != DType::f16 && spec.scale_dtype != DType::bf16 && spec.scale_dtype != DType::f32)
    return "its scales are f16, bf16 or f32, not " + std::string(name_of(spec.scale_dtype));
  if (spec.group != -1 && spec.group < 1)
    return "the group size must be -1 or positive, not " + std::to_string(spec.group);
  if (in > spec.group_size(in) && in % spec.group_size(in) != 0)
    return "compressed-tensors wants K % group = 0, here K = " + std::to_string(in) + ", group " +
           std::to_string(spec.group);
  if (spec.out_group < 1) return "outputs that share a scale: " + std::to_string(spec.out_group);
  return "";
}

TensorPlan scale_plan(const QuantSpec& spec, int64_t out, int64_t in) {
  TensorPlan plan{"weight_scale", spec.scale_dtype, {(out + spec.out_group - 1) / spec.out_group, spec.groups(in)}};
  if (per_tensor(spec, out)) plan.shape = {1};
  if (plan.dtype == DType::f8_e8m0) plan.also_read.push_back({DType::u8, plan.shape});
  if (plan.shape.numel() == 1) add_single_forms(plan, plan.dtype);
  return plan;
}

Tensor scales_to_file(const QuantizedLinear& q, const Shape& shape) {
  Tensor file = Tensor::host(q.spec.scale_dtype, shape);
  FEWBIT_ASSERT(file.numel() == q.scales.numel());
  const float* s = q.scales.as<float>();
  for (int64_t i = 0; i < file.numel(); ++i) {
    if (file.dtype() == DType::f16) {
      file.as<f16>()[i] = s[i];
    } else if (file.dtype() == DType::bf16) {
      file.as<bf16>()[i] = bf16(s[i]);
    } else if (file.dtype() == DType::f8_e8m0) {
      static_cast<uint8_t*>(file.view().data)[i] = f32_to_f8_e8m0(s[i]);
    } else {
      file.as<float>()[i] = s[i];
    }
  }
  return file;
}

Tensor scales_from_file(const TensorSource& source, std::string_view linear, const TensorPlan& plan,
                        const QuantSpec& spec, Shape out_in) {
  const ConstTensorView file = expect_tensor(source, linear, plan);
  const int64_t rows = (out_in[0] + spec.out_group - 1) / spec.out_group;
  Tensor scales = Tensor::host(DType::f32, {rows, spec.groups(out_in[1])});
  for (int64_t i = 0; i < scales.numel(); ++i) {
    const float s = load_float(file, i);
    if (!std::isfinite(s)) not_finite(linear, plan.suffix, s, i);
    scales.as<float>()[i] = s;
  }
  return scales;
}

TensorPlan single_plan(const char* suffix, Shape shape) {
  TensorPlan plan{suffix, DType::f32, shape};
  for (DType d : kFloats) add_single_forms(plan, d);
  return plan;
}

NamedTensor single_tensor(std::string_view linear, const TensorPlan& plan, double value) {
  Tensor t = Tensor::host(DType::f32, plan.shape);
  *t.as<float>() = static_cast<float>(value);
  return {std::string(linear) + '.' + plan.suffix, std::move(t)};
}

double single_from_file(const TensorSource& source, std::string_view linear, const TensorPlan& plan) {
  const float s = load_float(expect_tensor(source, linear, plan), 0);
  if (!(s > 0) || !std::isfinite(s))
    fail(ErrorKind::checkpoint, "tensor '" + std::string(linear) + '.' + plan.suffix +
                                    "': expected a positive finite scale, found " + std::to_string(s));
  return s;
}

namespace {

TensorPlan input_scale_plan(const ByteWeights& kind) { return single_plan(kind.input, {1}); }

TensorPlan scale_plan_of(ByteWeights kind, const QuantSpec& spec, int64_t out, int64_t in) {
  TensorPlan plan = scale_plan(spec, out, in);
  plan.suffix = kind.scales;
  if (spec.group != -1 || plan.shape.rank() != 2) return plan;
  plan.also_read.push_back({plan.dtype, {out}});
  if (kind.flat) std::swap(plan.shape, plan.also_read.back().shape);
  return plan;
}

}  // namespace

std::vector<TensorPlan> byte_tensors(ByteWeights kind, const QuantSpec& spec, int64_t out, int64_t in) {
  std::vector<TensorPlan> plan = {{"weight", kind.dtype, {out, in}}, scale_plan_of(kind, spec, out, in)};
  if (spec.activations == ActQuant::tensor) plan.push_back(input_scale_plan(kind));
  return plan;
}

PackedLinear pack_bytes(ByteWeights kind, std::string_view linear, const QuantizedLinear& q) {
  FEWBIT_ASSERT(!q.group_of && !q.zeros && !q.global_scale);
  FEWBIT_ASSERT((q.spec.activations == ActQuant::tensor) == q.input_scale.has_value());
  validate(q);
  const std::string prefix = std::string(linear) + '.';
  PackedLinear p;
  const TensorPlan plan_of_scales = scale_plan_of(kind, q.spec, q.out(), q.in());
  p.tensors.push_back({prefix + "weight", flipped(q.codes, kind.dtype, kind.flip)});
  p.tensors.push_back({prefix + kind.scales, scales_to_file(q, plan_of_scales.shape)});
  if (q.input_scale) p.tensors.push_back(single_tensor(linear, input_scale_plan(kind), *q.input_scale));
  return p;
}

QuantizedLinear unpack_bytes(ByteWeights kind, std::string_view linear, const QuantSpec& spec, Shape out_in,
                             const TensorSource& source) {
  const std::vector<TensorPlan> plan = byte_tensors(kind, spec, out_in[0], out_in[1]);
  QuantizedLinear q;
  q.spec = spec;
  q.codes = flipped(expect_tensor(source, linear, plan[0]), DType::u8, kind.flip);
  q.scales = scales_from_file(source, linear, plan[1], spec, out_in);
  if (spec.activations == ActQuant::tensor) q.input_scale = single_from_file(source, linear, plan[2]);
  return q;
}

}  // namespace fewbit::ct

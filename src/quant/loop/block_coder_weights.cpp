// BlockCoder's weights: as they come from the model or a transform, and as their codes stand for them.
#include <algorithm>

#include "kernels/model/cast.h"
#include "src/model/checkpoint_parts.h"
#include "src/quant/loop/block_coder.h"
#include "src/quant/loop/read_ahead.h"
#include "src/quant/rounding.h"
#include "src/run/upload_as.h"

namespace fewbit {

float BlockCoder::absmax(const PlannedLinear& p) {
  if (const Tensor* w = rewritten(p)) return absmax_of(ex_, *w);
  return absmax_of(ex_, stored_weight(p));
}

// Largest |w| of the linears whose scales have a second level: engines that fuse them want it to be shared.
float BlockCoder::shared_absmax(const std::vector<LinearDef>& items) {
  float largest = 0;
  for (const LinearDef& def : items)
    if (const PlannedLinear& p = plan_of(def); !p.keep && !p.lossless && p.recipe.spec.two_level())
      largest = std::max(largest, absmax(p));
  return largest;
}

// What takes the place of a quantized linear in the quantized stream.
DenseLinear BlockCoder::dense_of(Exec& ex, const QuantizedLinear& q, const DeviceCodes& there) const {
  return {.weight = there.codes.empty() ? values_of(ex, q, job_.dtype) : values_of(ex, there, q.spec, job_.dtype),
          .bias = {},
          .input = input_quant(q.spec, q.input_scale)};
}

Tensor BlockCoder::on_device(const Tensor& host_f32) {
  Tensor w = ex_.alloc(job_.dtype, host_f32.shape());
  cast(ex_, ex_.to_device(host_f32), w);
  return w;
}

Tensor* BlockCoder::rewritten(const PlannedLinear& p) {
  const auto it = rewritten_.weights.find(p.linear.name.substr(prefix_.size()) + ".weight");
  return it == rewritten_.weights.end() ? nullptr : &it->second;
}

// The weight to quantize in f32: as a transform left it (which then is gone), else as it is stored.
Tensor BlockCoder::weight_of(const PlannedLinear& p) {
  if (Tensor* w = rewritten(p)) return std::move(*w);
  return stored_weight(p);
}

// The same of what lies on the device already, where that is the stored weight in its own type.
Tensor BlockCoder::weight_of(const PlannedLinear& p, ConstTensorView loaded) {
  const std::string name = p.linear.name + ".weight";
  const bool same = loaded.data && !rewritten(p) && !ckpt_.packed(p.linear.name) && ckpt_.store.has(name) &&
                    ckpt_.store.index().tensors.at(name).dtype == loaded.dtype;
  if (!same) return weight_of(p);
  Tensor wide = ex_.alloc(DType::f32, loaded.shape);
  cast(ex_, loaded, wide);
  return wide;
}

Tensor BlockCoder::stored_weight(const PlannedLinear& p) {
  if (ckpt_.packed(p.linear.name)) {
    Tensor values = values_of(ex_, ckpt_.sound_codes(p.linear), DType::f32);
    release_linear(ckpt_, p.linear.name);
    return values;
  }
  const std::string name = p.linear.name + ".weight";
  Tensor w = taken_ahead(ahead_, ckpt_, p.linear, DType::f32);
  if (w.empty())
    w = upload_as(ex_, ckpt_.store.expect(name, {DType::f32, DType::f16, DType::bf16}, {p.linear.out, p.linear.in}),
                  DType::f32);
  release_beside(background_, ckpt_, p.linear);
  return w;
}

}  // namespace fewbit

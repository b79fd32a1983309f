#include "src/quant/loop/block_f32.h"

#include <cmath>

#include "kernels/exec/upload.h"
#include "kernels/model/cast.h"
#include "kernels/quantize/matrix_edit.h"
#include "src/core/half.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"
#include "src/run/upload_as.h"
#include "src/run/values_of.h"

namespace fewbit {
namespace {

float round_to(float x, DType dtype) {
  if (dtype == DType::bf16) return round_to_bf16(x);
  return dtype == DType::f16 ? round_to_f16(x) : x;
}

// What the model adds to the stored weight of a norm.
float offset_of(const std::vector<BlockOp>& ops, const Absorber& a) {
  if (const auto* norm = std::get_if<Norm>(&ops[a.op])) return weight_offset(norm->kind);
  if (const auto* norm = std::get_if<HeadNorm>(&ops[a.op])) return weight_offset(norm->kind);
  return 0;
}

// What a stored value becomes when the feature is divided by s: (offset + value) / s - offset, rounded.
float divided(const VectorF32& v, size_t j, float s, float offset) {
  return round_to((offset + v.value[j]) / s - offset, v.stored);
}

VectorF32 load_vector(const Checkpoint& c, const std::string& name, int64_t features) {
  const ConstTensorView host = c.store.expect(name, {DType::f32, DType::f16, DType::bf16}, {features});
  VectorF32 v{.value = std::vector<float>(static_cast<size_t>(features)), .stored = host.dtype};
  Exec cpu = Exec::cpu();
  cast(cpu, clone_host(host), TensorView{v.value.data(), DType::f32, {features}, {}});
  return v;
}

Tensor load_matrix(Exec& ex, const Checkpoint& c, const std::string& name, const Shape& shape) {
  const std::string linear = name.substr(0, name.rfind('.'));
  Tensor w = c.packed(linear)
                 ? values_of(ex, c.sound_codes({linear, kOutsideBlocks, shape[0], shape[1], false}), DType::f32)
                 : upload_as(ex, c.store.expect(name, {DType::f32, DType::f16, DType::bf16}, shape), DType::f32);
  release_linear(c, linear);
  return w;
}

// The linear's weight from the block that runs; empty where that has it in another type than the model.
Tensor widened(Exec& ex, const Checkpoint& c, const std::string& name, const Linear& linear) {
  const auto* dense = std::get_if<DenseLinear>(&linear);
  if (!dense || c.packed(name) || !c.store.has(name + ".weight")) return {};
  const ConstTensorView w = dense->weight;
  if (!w.data || w.dtype != c.store.index().tensors.at(name + ".weight").dtype) return {};
  Tensor wide = ex.alloc(DType::f32, w.shape);
  cast(ex, w, wide);
  return wide;
}

void load_linear_f32(Exec& ex, const Checkpoint& c, const std::string& prefix, const LinearDef& l, bool bias,
                     const BlockWeights* loaded, BlockF32& block) {
  const std::string weight = l.name + ".weight";
  if (!block.weights.count(weight)) {
    Tensor w;
    if (loaded)
      if (const auto it = loaded->linears.find(l.name); it != loaded->linears.end())
        w = widened(ex, c, prefix + l.name, it->second);
    if (w.empty()) w = load_matrix(ex, c, prefix + weight, {l.out_features, l.in_features});
    block.weights.emplace(weight, std::move(w));
  }
  if (bias && l.bias)
    block.vectors.emplace(l.name + ".bias", load_vector(c, prefix + l.name + ".bias", l.out_features));
}

LinearDef linear_in(const BlockOp& op, const std::string& name) {
  for (const LinearDef& l : linears_of(op))
    if (l.name == name) return l;
  bug("an absorber names a linear that its op does not hold");
}

// The stored vector that an absorber divides: the norm's weight or the linear's bias; null without a bias.
const VectorF32* stored_vector(const BlockF32& b, const Absorber& a) {
  const auto it = b.vectors.find(a.name + (a.kind == Absorber::Kind::norm ? ".weight" : ".bias"));
  return it == b.vectors.end() ? nullptr : &it->second;
}

}  // namespace

BlockF32 load_block_f32(Exec& ex, const Checkpoint& c, int64_t layer, const std::vector<Absorber>& absorbers,
                        const BlockWeights* loaded) {
  BlockF32 block;
  const std::vector<BlockOp>& ops = c.spec.block(layer);
  const std::string prefix = c.spec.prefix(layer);
  for (const Absorber& a : absorbers) {
    if (a.kind == Absorber::Kind::norm)
      block.vectors.emplace(a.name + ".weight", load_vector(c, prefix + a.name + ".weight", a.features));
    else
      load_linear_f32(ex, c, prefix, linear_in(ops[a.op], a.name), true, loaded, block);
    for (const LinearDef& l : a.linears) load_linear_f32(ex, c, prefix, l, false, loaded, block);
    for (const NamedDense& router : a.routers)
      block.routers[router.name].weight = load_matrix(ex, c, prefix + router.name + ".weight", router.shape);
  }
  return block;
}

std::vector<float> foldable_scale(const BlockF32& b, const std::vector<BlockOp>& ops, const Absorber& a,
                                  const std::vector<float>& s) {
  std::vector<float> exact(s.size(), 1.f);
  const VectorF32* v = stored_vector(b, a);
  const float offset = offset_of(ops, a);
  for (size_t j = 0; j < s.size(); ++j) {
    if (!std::isfinite(s[j]) || !(s[j] > 0)) continue;
    exact[j] = s[j];
    const auto at = static_cast<size_t>(a.at(static_cast<int64_t>(j)));
    if (!v || offset + v->value[at] == 0) continue;  // nothing stored to divide: any factor is exact
    const float factor = (offset + v->value[at]) / (offset + divided(*v, at, s[j], offset));
    exact[j] = std::fabs(factor / s[j] - 1) <= kFoldSlack ? factor : 1.f;
  }
  return exact;
}

void fold(Exec& ex, BlockF32& b, const std::vector<BlockOp>& ops, const Absorber& a, const std::vector<float>& s) {
  FEWBIT_ASSERT(static_cast<int64_t>(s.size()) == a.features);
  const bool norm = a.kind == Absorber::Kind::norm;
  const auto at = [&](size_t j) { return static_cast<size_t>(a.at(static_cast<int64_t>(j))); };
  if (const auto it = b.vectors.find(a.name + (norm ? ".weight" : ".bias")); it != b.vectors.end()) {
    const float offset = offset_of(ops, a);
    for (size_t j = 0; j < s.size(); ++j) it->second.value[at(j)] = divided(it->second, at(j), s[j], offset);
    it->second.changed = true;
  }
  if (!norm) {
    Tensor& weight = b.weights.at(a.name + ".weight");
    std::vector<float> inverse(static_cast<size_t>(weight.rows()), 1.f);
    for (size_t j = 0; j < s.size(); ++j) inverse[at(j)] = 1 / s[j];
    scale_rows(ex, upload(ex, inverse), weight);
  }
  const Tensor columns = upload(ex, by_consumer_feature(a, s));
  for (const LinearDef& l : a.linears) scale_columns(ex, columns, b.weights.at(l.name + ".weight"));
  for (const NamedDense& r : a.routers) {
    RouterF32& router = b.routers.at(r.name);
    scale_columns(ex, columns, router.weight);
    router.changed = true;
  }
}

std::vector<float> by_consumer_feature(const Absorber& a, const std::vector<float>& s) {
  std::vector<float> wide(s.size() * static_cast<size_t>(a.repeat));
  for (size_t j = 0; j < wide.size(); ++j) wide[j] = s[static_cast<size_t>(a.source(static_cast<int64_t>(j)))];
  return wide;
}

void replace_in(Exec& ex, const BlockF32& b, DType dtype, BlockWeights& weights) {
  const auto in_type = [&](DType type, ConstTensorView from) {
    Tensor t = ex.alloc(type, from.shape);
    cast(ex, from, t);
    return t;
  };
  const auto converted = [&](ConstTensorView from) { return in_type(dtype, from); };
  for (const auto& [name, weight] : b.weights)
    std::get<DenseLinear>(weights.linears.at(name.substr(0, name.rfind('.')))).weight = converted(weight);
  for (const auto& [name, vector] : b.vectors) {
    const std::string owner = name.substr(0, name.rfind('.'));
    if (ends_with(name, ".bias")) {
      std::get<DenseLinear>(weights.linears.at(owner)).bias = converted(upload(ex, vector.value));
    } else {
      Tensor& v = weights.vectors.at(owner);  // some run in f32 whatever the compute type
      v = in_type(v.dtype(), upload(ex, vector.value));
    }
  }
  for (const auto& [name, router] : b.routers) weights.vectors.at(name) = converted(router.weight);
}

std::vector<NamedTensor> changed_tensors(Exec& ex, const BlockF32& b, const std::string& prefix) {
  std::vector<NamedTensor> out;
  Exec cpu = Exec::cpu();
  for (const auto& [name, v] : b.vectors) {
    if (!v.changed) continue;
    const Shape shape{static_cast<int64_t>(v.value.size())};
    Tensor t = Tensor::host(v.stored, shape);
    cast(cpu, Tensor::host_from<float>(DType::f32, shape, v.value), t);
    out.push_back({prefix + name, std::move(t)});
  }
  for (const auto& [name, router] : b.routers)
    if (router.changed) out.push_back({prefix + name + ".weight", ex.to_host(router.weight)});
  return out;
}

}  // namespace fewbit

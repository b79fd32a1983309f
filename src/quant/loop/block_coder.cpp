#include "src/quant/loop/block_coder.h"

#include <algorithm>

#include "kernels/model/cast.h"
#include "src/core/hash.h"
#include "src/quant/loop/block_encoding.h"
#include "src/quant/loop/measure.h"
#include "src/quant/rounding.h"
#include "src/run/upload_as.h"

namespace fewbit {

BlockCoder::BlockCoder(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const QuantJob& job, Phases& phases,
                       bool runs)
    : ex_(ex), ckpt_(c), plan_(plan), job_(job), phases_(phases), runs_(runs) {}

void BlockCoder::begin(int64_t layer, std::optional<CheckpointIndex> sealed, bool learning) {
  layer_ = layer;
  prefix_ = layer < ckpt_.spec.layers ? ckpt_.spec.prefix(layer) : "";
  learning_ = learning;
  packed_.clear();
  coded_.clear();
  rewritten_ = {};
  restored_ = std::move(sealed);
}

TensorSource BlockCoder::restored() const {
  return [this](const std::string& name) -> ConstTensorView {
    const auto it = restored_->tensors.find(name);
    return it == restored_->tensors.end() ? ConstTensorView{} : restored_->view(it->second);
  };
}

void BlockCoder::rewrite(BlockF32 block) {
  rewritten_ = std::move(block);
  for (NamedTensor& t : changed_tensors(ex_, rewritten_, prefix_)) packed_.push_back(std::move(t));
}

void BlockCoder::quantize(const std::vector<LinearDef>& items, const Observe& observed,
                          std::map<std::string, Linear>& replaced) {
  const float shared = restores() ? 0 : shared_absmax(items);
  std::optional<InputStats> stats;
  std::optional<InputRounding> seen;
  for (const LinearDef& def : items) {
    const PlannedLinear& p = plan_of(def);
    if (p.keep) continue;
    if (const InputRounding rounding = rounding_of(p.recipe.spec, p.recipe.percentile);
        !restores() && seen != rounding) {
      stats = observed(rounding);
      seen = rounding;
    }
    const InputStats* known = stats ? &*stats : nullptr;
    DenseLinear dense;
    if (p.blocks)
      dense.weight = restores() ? on_device(decode_blocks(p, restored())) : encode(def, p, known);
    else if (restores())
      dense = dense_of(p.packing->unpack(p.linear.name, p.recipe.spec, p.linear.out, p.linear.in, restored()));
    else {
      CodedLinear& coded = code(def, p, known, shared);
      dense = dense_of(coded.linear);
      if (!learning_) pack(coded);
    }
    if (runs_) replaced.emplace(def.name, std::move(dense));
  }
}

void BlockCoder::measure_again(CodedLinear& c, const InputStats& stats) {
  measure(ex_, c.weight, c.linear, &stats, c.record);
}

void BlockCoder::seal(Journal& journal) {
  std::vector<LinearRecord> records;
  for (CodedLinear& c : coded_) {
    if (learning_) pack(c);
    records.push_back(std::move(c.record));
  }
  phases_.timed("write", [&] { journal.seal(layer_, packed_, records); });
}

const PlannedLinear& BlockCoder::plan_of(const LinearDef& def) const { return plan_.of(prefix_ + def.name); }

float BlockCoder::absmax(const PlannedLinear& p) {
  if (const Tensor* w = rewritten(p)) return absmax_of(ex_, *w);
  return absmax_of(ex_, stored_weight(p));
}

// Largest |w| of the linears whose scales have a second level: engines that fuse them want it to be shared.
float BlockCoder::shared_absmax(const std::vector<LinearDef>& items) {
  float largest = 0;
  for (const LinearDef& def : items)
    if (const PlannedLinear& p = plan_of(def); !p.keep && p.recipe.spec.two_level())
      largest = std::max(largest, absmax(p));
  return largest;
}

CodedLinear& BlockCoder::begin_record(const LinearDef& def, const PlannedLinear& p, const InputStats* stats) {
  CodedLinear& coded = coded_.emplace_back();
  coded.plan = &p;
  coded.name = def.name;
  coded.record.name = p.linear.name;
  coded.record.recipe = p.recipe.str();
  coded.record.packing = std::string(p.layout());
  coded.record.tokens = stats ? stats->tokens - stats->borrowed : 0;
  return coded;
}

CodedLinear& BlockCoder::code(const LinearDef& def, const PlannedLinear& p, const InputStats* stats, float shared) {
  const Stopwatch timer;
  Tensor w = weight_of(p);
  MethodResult r;
  phases_.timed("quantize", [&] {
    r = p.recipe.method->quantize(ex_, {.name = p.linear.name,
                                        .weight = w,
                                        .stats = stats,
                                        .spec = p.recipe.spec,
                                        .effort = p.recipe.effort,
                                        .act_order = p.recipe.act_order,
                                        .damp = p.recipe.damp,
                                        .allow_rtn = job_.allow_rtn,
                                        .seed = job_.seed,
                                        .shared_absmax = shared});
  });
  if (p.recipe.spec.activations == ActQuant::tensor) r.linear.input_scale = stats->input_scale;
  validate(r.linear);
  CodedLinear& coded = begin_record(def, p, stats);
  coded.record.rung = r.rung;
  coded.record.loss = r.loss;
  coded.record.loss_rtn = r.loss_rtn;
  coded.record.loss_target = r.loss_target;
  coded.record.loss_target_rtn = r.loss_target_rtn;
  coded.linear = std::move(r.linear);
  if (learning_ && p.recipe.learns_rounding())
    coded.weight = std::move(w);
  else
    phases_.timed("measure", [&] { measure(ex_, w, coded.linear, stats, coded.record); });
  coded.record.seconds = timer.seconds();
  return coded;
}

// The same of a linear that the format's encoder takes: its values on the device.
Tensor BlockCoder::encode(const LinearDef& def, const PlannedLinear& p, const InputStats* stats) {
  const Stopwatch timer;
  const Tensor w = weight_of(p);
  EncodedBlocks e;
  phases_.timed("quantize", [&] { e = encode_blocks(ex_, p, w, stats); });
  CodedLinear& coded = begin_record(def, p, stats);
  coded.record.loss = coded.record.loss_target = e.loss;
  coded.record.loss_rtn = coded.record.loss_target_rtn = e.loss_plain;
  coded.record.hash = e.hash;
  phases_.timed("measure", [&] { measure(ex_, w, ex_.to_device(e.values), std::nullopt, stats, coded.record); });
  packed_.push_back(std::move(e.bytes));
  coded.record.seconds = timer.seconds();
  return on_device(e.values);
}

// Turns the final codes into bytes and lets go of them; the record stays.
void BlockCoder::pack(CodedLinear& c) {
  if (c.plan->blocks) return;  // its bytes are packed already
  phases_.timed("pack", [&] {
    for (NamedTensor& t : c.plan->packing->pack(c.plan->linear.name, c.linear).tensors) packed_.push_back(std::move(t));
  });
  c.record.hash = content_hash(c.linear);
  c.linear = {};
  c.weight.reset();
}

// What takes the place of a quantized linear in the quantized stream.
DenseLinear BlockCoder::dense_of(const QuantizedLinear& q) {
  if (!runs_) return {};
  return {.weight = values_of(ex_, q, job_.dtype), .bias = {}, .input = input_quant(q.spec, q.input_scale)};
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

Tensor BlockCoder::stored_weight(const PlannedLinear& p) {
  const std::string name = p.linear.name + ".weight";
  Tensor w = upload_as(
      ex_, ckpt_.store.expect(name, {DType::f32, DType::f16, DType::bf16}, {p.linear.out, p.linear.in}), DType::f32);
  ckpt_.store.release(name);
  return w;
}

}  // namespace fewbit

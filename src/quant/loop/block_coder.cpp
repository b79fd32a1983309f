#include "src/quant/loop/block_coder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>

#include "formats/container.h"
#include "formats/finer_grid.h"
#include "kernels/model/cast.h"
#include "kernels/model/hadamard.h"
#include "kernels/quantize/matrix_edit.h"
#include "src/core/hash.h"
#include "src/core/inline_parallel.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/stacked_experts.h"
#include "src/quant/loop/block_encoding.h"
#include "src/quant/loop/measure.h"
#include "src/quant/loop/read_ahead.h"
#include "src/quant/loop/turned_stats.h"
#include "src/quant/rounding.h"
#include "src/ranks/exchange.h"
#include "src/run/upload_as.h"

namespace fewbit {
namespace {

// The method works where the codes are: on the turned weight, and on the sums of the turned input.
MethodResult quantize_turned(Exec& ex, const Method& method, LinearJob job) {
  const int64_t run = job.spec.turn;
  const Tensor turned = ex.alloc(DType::f32, job.weight.shape);
  cast(ex, job.weight, turned);
  hadamard(ex, turned, turned.view().row_range(0, 0), run);
  InputStats there;
  if (job.stats) there = turned_stats(ex, *job.stats, run);
  job.weight = turned;
  job.stats = job.stats ? &there : nullptr;
  job.shared_absmax = 0;
  job.spec.turn = 0;
  job.codes_stay = false;
  MethodResult r = method.quantize(ex, job);
  r.there = {};  // they are those of the turned weight
  r.linear.spec.turn = run;
  return r;
}

// The codes of all rows, where each rank has those of its own; host memory has what it had of them.
void gather_rows(Exec& ex, const RowShare& rows, MethodResult& r) {
  if (rows.alone()) return;
  DeviceCodes& q = r.there;
  if (q.codes.empty()) return rows.gather(r.linear);
  q.codes = rows.whole(ex, std::move(q.codes));
  q.scales = rows.whole(ex, std::move(q.scales), r.linear.spec.out_group);
  if (q.zeros) q.zeros = rows.whole(ex, std::move(q.zeros));
  if (!r.linear.codes.empty()) r.linear.codes = ex.to_host(q.codes);
  r.linear.scales = ex.to_host(q.scales);
  if (q.zeros) r.linear.zeros = ex.to_host(q.zeros);
}

}  // namespace

BlockCoder::BlockCoder(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const QuantJob& job, Phases& phases,
                       Background& background, UploadAhead& ahead, bool runs)
    : ex_(ex),
      ckpt_(c),
      plan_(plan),
      job_(job),
      phases_(phases),
      background_(background),
      ahead_(ahead),
      ranks_(*job.ranks),
      runs_(runs) {
  if (plan.memory.beside > 0) ways_.emplace(ex);
  if (plan.memory.lanes > 1) lanes_.emplace(ex, plan.memory.lanes);
}

void BlockCoder::begin(int64_t layer, const Journal& journal, bool sealed, bool learning) {
  layer_ = layer;
  prefix_ = layer < ckpt_.spec.layers ? ckpt_.spec.prefix(layer) : "";
  learning_ = learning;
  block_ = std::make_shared<Block>();
  rewritten_ = {};
  curvatures_.clear();
  restores_ = sealed;
  restored_.reset();
  if (restores_ && ranks_.rank() == 0)
    restored_ = with_single_experts(ckpt_.spec, WeightStore::of(journal.dir(), journal.open_block(layer), {}));
}

TensorSource BlockCoder::restored() const {
  return [this](const std::string& name) { return restored_->has(name) ? restored_->get(name) : ConstTensorView{}; };
}

void BlockCoder::rewrite(BlockF32 block) {
  rewritten_ = std::move(block);
  for (NamedTensor& t : changed_tensors(ex_, rewritten_, prefix_)) add(std::move(t));
}

void BlockCoder::add(NamedTensor t) { block_->packed.emplace_back().push_back(std::move(t)); }

void BlockCoder::for_each(const Group& group,
                          const std::function<void(const LinearDef&, const PlannedLinear&, const InputStats*)>& take) {
  std::optional<InputStats> stats;
  std::optional<InputRounding> seen;
  for (const LinearDef& def : group.items) {
    const PlannedLinear& p = plan_of(def);
    if (p.keep) continue;
    if (job_.check_stop) job_.check_stop();
    if (p.lossless && !p.calibrates_input) {
      take(def, p, nullptr);
      continue;
    }
    if (const InputRounding rounding = rounding_of(p.recipe.spec, p.recipe.percentile);
        !restores() && seen != rounding) {
      stats = group.observed(rounding);
      seen = rounding;
    }
    if (job_.observed && stats && !stats->gram.empty()) show_squares(p, *stats);
    take(def, p, stats ? &*stats : nullptr);
  }
}

void BlockCoder::show_squares(const PlannedLinear& p, const InputStats& stats) {
  const Tensor squares = ex_.alloc(DType::f32, {p.linear.in});
  diagonal(ex_, stats.gram, squares);
  job_.observed(p.linear.name, ex_.to_host(squares), stats.tokens);
}

void BlockCoder::quantize(const std::vector<LinearDef>& items, const Observe& observed,
                          std::map<std::string, Linear>* replaced) {
  const float shared = restores() ? 0 : shared_absmax(items);
  if (!runs_) replaced = nullptr;
  for_each({items, observed}, [&](const LinearDef& def, const PlannedLinear& p, const InputStats* stats) {
    if (restores()) {
      if (replaced) replaced->emplace(def.name, restore(p));
    } else if (p.blocks) {
      const Tensor values = encode(def, p, stats);
      if (replaced) replaced->emplace(def.name, DenseLinear{.weight = on_device(values)});
    } else {
      take(code(def, p, stats, shared, RowShare(ex_, ranks_, p.linear.out, p.recipe.spec)), replaced);
    }
  });
}

DenseLinear BlockCoder::again(const LinearDef& def) {
  background_.wait();
  return restore(plan_of(def));
}

std::optional<InputRounding> BlockCoder::apart(const std::vector<Group>& groups) const {
  std::optional<InputRounding> all;
  if (ranks_.alone() || restores() || learning_) return all;
  for (const Group& g : groups)
    for (const LinearDef& def : g.items) {
      const PlannedLinear& p = plan_of(def);
      if (p.keep) continue;
      const InputRounding rounding = rounding_of(p.recipe.spec, p.recipe.percentile);
      if (p.blocks || (all && !(*all == rounding))) return {};
      all = rounding;
    }
  return all;
}

void BlockCoder::measure_again(CodedLinear& c, const InputStats& stats) {
  measure(ex_, c.weight, c.linear, {}, &stats, c.record);
}

void BlockCoder::seal(Journal& journal) {
  if (learning_)
    for (CodedLinear& c : block_->coded) pack(c);
  background_.wait_for(sealed_);  // of blocks on their way to the disk there is one
  sealed_ = background_.give("write", 0, [block = block_, &journal, layer = layer_] {
    std::vector<LinearRecord> records;
    std::vector<NamedTensor> packed;
    for (CodedLinear& c : block->coded) records.push_back(std::move(c.record));
    for (std::vector<NamedTensor>& some : block->packed)
      for (NamedTensor& t : some) packed.push_back(std::move(t));
    journal.seal(layer, packed, records);
  });
}

const PlannedLinear& BlockCoder::plan_of(const LinearDef& def) const { return plan_.of(prefix_ + def.name); }

CodedLinear BlockCoder::begin_record(const LinearDef& def, const PlannedLinear& p, const InputStats* stats) {
  CodedLinear coded;
  coded.plan = &p;
  coded.name = def.name;
  coded.record.name = p.linear.name;
  coded.record.recipe = p.recipe_str();
  coded.record.packing = std::string(p.layout());
  coded.record.tokens = stats ? stats->tokens - stats->borrowed : 0;
  coded.record.input_reach = stats ? stats->input_reach : 1;
  return coded;
}

LinearJob BlockCoder::job_of(const PlannedLinear& p, const Tensor& w, const InputStats* stats, float shared,
                             const RowShare& rows) const {
  LinearJob job = fewbit::job_of(p, rows.mine(w), stats);
  job.allow_rtn = job_.allow_rtn;
  job.seed = job_.seed;
  job.shared_absmax = shared;
  job.rows = &rows;
  job.codes_stay = ways_ && !learning_;
  return job;
}

// All ranks that share the rows make it together.
CodedLinear BlockCoder::code(const LinearDef& def, const PlannedLinear& p, const InputStats* stats, float shared,
                             const RowShare& rows) {
  if (p.lossless) return pass(def, p, stats);
  const Stopwatch timer;
  CodedLinear coded = begin_record(def, p, stats);
  Tensor w = weight_of(p);
  if (auto curved = curvatures_.extract(def.name); curved && p.recipe.weighs_outputs)
    coded.curvature = std::move(curved.mapped());
  const RowShare& share = coded.curvature ? RowShare::none() : rows;
  phases_.timed("quantize", [&] { code(ex_, coded, w, stats, shared, share); });
  if (learning_ && p.recipe.learns_rounding())
    coded.weight = std::move(w);
  else
    phases_.timed("measure", [&] { measure_coded(ex_, coded, w, stats, share); });
  need_finite(coded.record);
  coded.record.seconds = timer.seconds();
  return coded;
}

// Fills what was begun, on an Exec that may be a lane's.
void BlockCoder::code(Exec& ex, CodedLinear& coded, const Tensor& w, const InputStats* stats, float shared,
                      const RowShare& rows) const {
  const PlannedLinear& p = *coded.plan;
  LinearJob job = job_of(p, w, stats, shared, rows);
  job.curvature = coded.curvature ? &*coded.curvature : nullptr;
  MethodResult r = p.recipe.spec.turn ? quantize_turned(ex, *p.recipe.method, job) : p.recipe.method->quantize(ex, job);
  coded.curvature.reset();
  gather_rows(ex, rows, r);
  if (p.recipe.spec.activations == ActQuant::tensor) r.linear.input_scale = stats->input_scale;
  if (!r.linear.codes.empty()) validate(r.linear);
  coded.record.rung = r.rung;
  coded.record.coupled = r.coupled;
  coded.record.loss = r.loss;
  coded.record.loss_rtn = r.loss_rtn;
  coded.record.loss_target = r.loss_target;
  coded.record.loss_target_rtn = r.loss_target_rtn;
  coded.linear = std::move(r.linear);
  coded.there = std::move(r.there);
}

void BlockCoder::measure_coded(Exec& ex, CodedLinear& coded, const Tensor& w, const InputStats* stats,
                               const RowShare& rows) const {
  const std::optional<double> loss = coded.record.loss > 0 ? std::optional<double>(coded.record.loss) : std::nullopt;
  measure(ex, w, coded.linear, coded.there, stats, coded.record, rows, loss);
}

// What overflows, or what a device computes wrongly, shows in the error of the linear's outputs.
void BlockCoder::need_finite(const LinearRecord& r) const {
  if (job_.allow_nonfinite || std::isfinite(r.rel_error)) return;
  fail(ErrorKind::numeric,
       fmt::format(
           "{}: NaN or infinity in its inputs or outputs, quantized by \"{}\"{}; the model overflows in --dtype {}, "
           "or the device computes wrongly",
           r.name, r.recipe, r.rung.empty() ? "" : ", rung " + r.rung, name_of(job_.dtype)));
}

// The model's own codes, on the grid of the plan. Every rank reads them.
CodedLinear BlockCoder::pass(const LinearDef& def, const PlannedLinear& p, const InputStats* stats) {
  const Stopwatch timer;
  CodedLinear coded = begin_record(def, p, stats);
  phases_.timed("load", [&] {
    coded.linear = on_finer_grid(ckpt_.sound_codes(p.linear), p.recipe.spec, p.global_scale);
    release_linear(ckpt_, p.linear.name);
  });
  if (p.calibrates_input) coded.linear.input_scale = stats->input_scale;
  validate(coded.linear);
  coded.record.lossless = true;
  coded.record.sqnr_db = std::numeric_limits<double>::max();
  coded.record.seconds = timer.seconds();
  return coded;
}

// A coded linear and what takes its place, where that is wanted. It is packed unless it will be learned.
void BlockCoder::take(CodedLinear made, std::map<std::string, Linear>* replaced) {
  CodedLinear& coded = block_->coded.emplace_back(std::move(made));
  if (job_.coded) job_.coded(coded.record);
  if (replaced && runs_) replaced->emplace(coded.name, dense_of(ex_, coded.linear, coded.there));
  if (!coded.linear.codes.empty()) coded.there = {};
  if (!learning_) pack(coded);
}

TensorSource BlockCoder::packed() const {
  return [this](const std::string& name) {
    for (const std::vector<NamedTensor>& some : block_->packed)
      for (const NamedTensor& t : some)
        if (t.name == name) return ConstTensorView(t.tensor);
    return ConstTensorView{};
  };
}

// What takes the place of a linear whose bytes were made.
DenseLinear BlockCoder::restore(const PlannedLinear& p) {
  DenseLinear dense;
  if (!runs_) return dense;
  std::optional<double> input_scale;
  const TensorSource from = restores() ? restored() : packed();
  if (ranks_.rank() != 0) {
    dense.weight = ex_.alloc(job_.dtype, {p.linear.out, p.linear.in});
  } else if (p.blocks) {
    dense.weight = on_device(decode_blocks(p, from));
  } else {
    const QuantizedLinear q = p.packing->unpack(p.linear.name, p.recipe.spec, p.linear.out, p.linear.in, from);
    dense.weight = std::move(dense_of(ex_, q).weight);
    input_scale = q.input_scale;
  }
  ranks_.broadcast(ex_, dense.weight);
  if (p.blocks) return dense;
  if (value_of_root(ranks_, input_scale.has_value())) input_scale = value_of_root(ranks_, input_scale.value_or(0));
  dense.input = input_quant(p.recipe.spec, input_scale);
  return dense;
}

// A linear that the format's encoder takes: its values, f32 in host memory.
Tensor BlockCoder::encode(const LinearDef& def, const PlannedLinear& p, const InputStats* stats) {
  const Stopwatch timer;
  const Tensor w = weight_of(p);
  EncodedBlocks e;
  const RowShare rows(ex_, ranks_, p.linear.out, p.recipe.spec);
  phases_.timed("quantize", [&] {
    e = p.recipe.method->encode ? encode_blocks(ex_, p, job_of(p, w, stats, 0, rows))
                                : encode_blocks(ex_, p, w, stats, importance_of(job_.importance, p.linear.name), rows);
  });
  CodedLinear& coded = block_->coded.emplace_back(begin_record(def, p, stats));
  coded.record.rung = e.rung;
  coded.record.loss = e.loss;
  coded.record.loss_target = e.loss_target;
  coded.record.loss_rtn = e.loss_plain;
  coded.record.loss_target_rtn = e.loss_target_plain;
  coded.record.hash = e.hash;
  phases_.timed("measure", [&] { measure(ex_, w, ex_.to_device(e.values), std::nullopt, stats, coded.record, rows); });
  need_finite(coded.record);
  if (ranks_.rank() == 0) add(std::move(e.bytes));
  coded.record.seconds = timer.seconds();
  if (job_.coded) job_.coded(coded.record);
  return std::move(e.values);
}

// Turns the final codes into bytes and lets go of them; the record stays.
void BlockCoder::pack(CodedLinear& c) {
  if (c.plan->blocks) return;  // its bytes are packed already
  c.weight.reset();
  if (ranks_.rank() != 0) {
    c.linear = {};
    c.there = {};
    return;
  }
  const int64_t codes = c.plan->linear.out * c.plan->linear.in;
  std::vector<NamedTensor>& packed = block_->packed.emplace_back();
  background_.give(
      "pack", codes, [this, block = block_, &packed, &c] { packed = pack_now(c); }, Background::When::any_time);
}

// By a thread of the background.
std::vector<NamedTensor> BlockCoder::pack_now(CodedLinear& c) {
  // Codes that are worth more than one thread. With the few of an expert all threads of the pool would wait for each
  // other, beside lanes that have the processors.
  constexpr int64_t kByAll = int64_t{4} << 20;
  const bool by_one = c.plan->linear.out * c.plan->linear.in < kByAll;
  std::optional<InlineParallel> alone;
  if (by_one) alone.emplace();
  std::optional<CodeWays::Fetched> fetched;
  if (!c.there.codes.empty()) {
    fetched.emplace(ways_->fetch(c.there.codes));
    c.there = {};
    c.linear.codes = Tensor(fetched->codes(), {});
    validate(c.linear);
  }
  // A sum over all bytes in turn, beside the packing.
  std::future<std::string> hash =
      std::async(by_one ? std::launch::deferred : std::launch::async, [&c] { return content_hash(c.linear); });
  std::vector<NamedTensor> tensors = c.plan->packing->pack(c.plan->linear.name, c.linear).tensors;
  c.record.hash = hash.get();
  c.linear = {};
  return tensors;
}

}  // namespace fewbit

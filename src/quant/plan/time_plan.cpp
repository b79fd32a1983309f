#include "src/quant/plan/time_plan.h"

#include <algorithm>
#include <numeric>

#include "src/calib/cuts.h"
#include "src/model/absorb.h"
#include "src/quant/loop/curvature/output_gradients.h"
#include "src/quant/loop/learn/learned_rounding.h"
#include "src/quant/methods/coupled_rows.h"
#include "src/quant/plan/disk_plan.h"
#include "src/quant/plan/plan_ends.h"
#include "src/quant/plan/rates/rates.h"
#include "src/quant/plan/residual_aim.h"
#include "src/quant/plan/way_back.h"
#include "src/run/moe.h"

namespace fewbit {
namespace {

// Experts in lanes are so many times as fast as one after the other: what a lane waits for is launches, which the
// driver takes one at a time.
constexpr double kLanesTogether = 2.5;
constexpr int64_t kTransformTokens = 65536;  // that block_transforms.cpp looks at, at most

// Seconds of a run by phase, block for block.
class Times {
 public:
  Times(const Checkpoint& c, const QuantPlan& plan, const Chunks& chunks, DType dtype, const Rates& rates)
      : ckpt_(c),
        spec_(c.spec),
        plan_(plan),
        chunks_(chunks),
        elem_(bytes_of(dtype)),
        rates_(rates),
        streams_(has(plan.needs, Needs::cross) ? 2 : 1),
        full_(plan.full_streams(chunks)),
        curves_(weighs_outputs(plan)) {}

  TimePlan all() {
    for (int64_t layer = 0; layer < spec_.layers; ++layer) {
      load(layer);
      if (plan_.calibrates()) {
        transform(layer);
        passes(layer);
        curve(layer);
        learn(layer);
      }
      for (const BlockOp& op : spec_.block(layer)) linears_at(layer, op);
    }
    ends();
    write();
    bound();
    t_.seconds = seconds();
    t_.measuring = rates_.seconds;
    return std::move(t_);
  }

 private:
  static double wide(int64_t n) { return static_cast<double>(n); }
  double tokens() const { return wide(chunks_.tokens()); }
  double summed() const { return wide(plan_.summed(chunks_.tokens())); }
  const PlannedLinear* planned(int64_t layer, const LinearDef& l) const {
    return plan_.find(spec_.prefix(layer) + l.name);
  }
  static int64_t size_of(const LinearDef& l) { return l.out_features * l.in_features; }

  // Every weight is read once from the disk; the method has it in f32, the passes in their own type, transforms both.
  // Experts in waves come more often: gate and up with the wave of down's statistics, all three with that of the
  // answers, those of the unquantized stream from the disk and those of the quantized one out of what was packed.
  void load(int64_t layer) {
    double weights = 0, quantized = 0, bytes = 0;
    for (const BlockOp& op : spec_.block(layer)) {
      const auto* m = std::get_if<Moe>(&op);
      const double again = m && plan_.memory.experts_in_waves ? (m->gated() ? 5. / 3. : 3. / 2.) : 0;
      for (const LinearDef& l : linears_of(op)) {
        weights += wide(size_of(l)) * (again > 0 ? again * wide(streams_) : 1);
        const PlannedLinear* p = planned(layer, l);
        if (p) quantized += wide(size_of(l));
        bytes += (p ? wide(p->source_bytes) : 2 * wide(size_of(l))) * (1 + (streams_ > 1 || !p ? again : 0));
      }
    }
    const double times = plan_.calibrates() ? weights + quantized : quantized;
    const double seconds = times * rates_.convert + bytes * (1 - rates_.bytes.resident) * rates_.bytes.source;
    t_.phases["load"] += seconds;
    if (plan_.memory.slot > 0 && layer > 0) ahead_ += seconds;
  }

  void transform(int64_t layer) {
    if (plan_.transforms.empty()) return;
    const std::vector<BlockOp>& ops = spec_.block(layer);
    const std::vector<Absorber> absorbers = absorbers_of(ops);
    if (absorbers.empty()) return;
    const double seen = std::min(wide(kTransformTokens), tokens());
    size_t last = 0;
    double sums = 0;
    for (const Absorber& a : absorbers) {
      last = std::max(last, a.consumers.front());
      sums += rates_.gram.at(a.features * a.repeat) * (a.expert < 0 ? 1 : share_of_expert(ops[a.op]));
    }
    const double pass = forward_seconds(rates_, spec_.kind(layer), 0, last, static_cast<int64_t>(seen));
    for (const Transform* t : plan_.transforms) {
      t_.phases["observe"] += pass + seen * sums;
      const Law& law = rates_.transforms.at(std::string(t->name));
      for (const Absorber& a : absorbers)
        t_.phases["transform"] += law.at(a.features * a.repeat) * wide(static_cast<int64_t>(a.linears.size()));
    }
  }
  static double share_of_expert(const BlockOp& op) {
    const auto* m = std::get_if<Moe>(&op);
    return m ? static_cast<double>(m->top_k) / m->experts : 1;
  }

  void passes(int64_t layer) {
    const int kind = spec_.kind(layer);
    const std::vector<BlockOp>& ops = spec_.block(layer);
    for (const PlannedPass& p : passes_of(ckpt_, plan_, layer)) {
      t_.phases["forward"] += forward_seconds(rates_, kind, p, chunks_.tokens(), full_);
      t_.phases["forward"] += states(layer, p.begin) + (p.begins_next != p.begin ? states(layer, p.begins_next) : 0);
      if (p.observes) t_.phases["observe"] += observe(kind, p.stop, ops[p.stop]) + errors(layer, p.stop);
    }
  }
  // What lies in front of an op goes through memory, or the disk where there is no room for it.
  double states(int64_t layer, size_t at) const {
    const double bytes =
        tokens() *
        wide((spec_.width() + features_alive(spec_, spec_.block(layer), std::min(at, spec_.block(layer).size()))) *
             elem_ * streams_);
    const double on_disk = plan_.memory.states > 0 ? wide(plan_.memory.scratch) / wide(plan_.memory.states) : 0;
    const double near = rates_.bytes.link > 0 && plan_.memory.room.device < plan_.memory.states ? rates_.bytes.link
                                                                                                : rates_.bytes.device;
    return bytes * (on_disk * rates_.bytes.scratch + (1 - on_disk) * near);
  }
  double sums(int64_t in) const { return rates_.gram.at(in) + (full_ > 0 ? full_ * rates_.cross.at(in) : 0); }
  // The sums of an input; of a mixture those of every expert's, for which down's input is made once more.
  double observe(int kind, size_t at, const BlockOp& op) const {
    const auto* m = std::get_if<Moe>(&op);
    if (!m) return summed() * sums(linears_of(op).front().in_features);
    const double gate_up = (m->gated() ? 2. / 3. : 1. / 2.) * rates_.op[static_cast<size_t>(kind)][at] * wide(streams_);
    return tokens() * (m->top_k * (sums(m->gate.in_features) + sums(m->down.in_features)) + gate_up);
  }

  // Sums of the residual stream's errors: the cross sums of an input are as many products for each of its features.
  double errors(int64_t layer, size_t at) const {
    const int64_t features = error_features(plan_, spec_, layer, at);
    if (features == 0) return 0;
    const int64_t in = linears_of(spec_.block(layer)[at]).front().in_features;
    return summed() * rates_.cross.at(in) * wide(features) / wide(in);
  }

  void linears_at(int64_t layer, const BlockOp& op) {
    const bool moe = std::holds_alternative<Moe>(op);
    bool first = true;
    for (const LinearDef& l : linears_of(op))
      if (const PlannedLinear* p = planned(layer, l)) {
        linear(*p, first || (moe && l.name.find("gate") != std::string::npos), moe && plan_.memory.lanes > 1);
        first = false;
      }
  }
  void linear(const PlannedLinear& p, bool first, bool in_lane) {
    if (p.lossless) {  // read, and packed again
      t_.phases["load"] += wide(p.linear.out * p.linear.in) * rates_.convert;
      return;
    }
    const LinearRates& r = rates_.linears.at(rate_key(p));
    const double rows = wide(p.linear.out);
    const int64_t in = p.linear.in;
    const double times = p.recipe.weighs_outputs ? wide(kCoupledSteps) : 1;  // that few rows are coded
    const double quantizing = rows * r.row.at(in) + times * r.system.at(in) + (first ? r.factor.at(in) : 0);
    const double measuring = rows * r.measure.at(in);
    t_.phases["quantize"] += in_lane ? (quantizing + measuring) / kLanesTogether : quantizing;
    if (!in_lane) t_.phases["measure"] += measuring;
    t_.phases["pack"] += rows * wide(in) * r.pack;
  }

  // Windows of the unquantized stream forward, and twice forward and back, all in f32.
  void curve(int64_t layer) {
    if (!curves_) return;
    const double tokens = wide(curvature_tokens(chunks_.windows, chunks_.length, walk_tokens(plan_)));
    const std::vector<double>& ops = rates_.op_f32.at(static_cast<size_t>(spec_.kind(layer)));
    double s = 7 * tokens * std::accumulate(ops.begin(), ops.end(), 0.0);
    if (weighs_outputs(plan_, layer))
      for (const BlockOp& op : spec_.block(layer))
        for (const LinearDef& l : linears_of(op)) s += tokens * rates_.gram.at(l.out_features);
    t_.phases["curvature"] += s;
  }

  void learn(int64_t layer) {
    if (!learns_rounding(plan_, spec_, layer)) return;
    const int kind = spec_.kind(layer);
    const size_t end = spec_.block(layer).size();
    const double windows = learning_passes(chunks_.windows);
    t_.phases["learn"] += windows * forward_seconds(rates_, kind, 0, end, chunks_.length);
    t_.phases["forward"] += forward_seconds(rates_, kind, 0, end, chunks_.tokens());
  }

  // With a limit in minutes learning has what the rest leaves.
  void bound() {
    const auto learn = t_.phases.find("learn");
    if (plan_.minutes == 0 || learn == t_.phases.end()) return;
    double rest = 0;
    for (const auto& [phase, s] : t_.phases)
      if (phase != "learn") rest += s;
    learn->second = std::clamp(60 * plan_.minutes - rest, 0.0, learn->second);
  }

  void ends() {
    for (const PlannedLinear& p : plan_.linears) {
      if (!is_end(p.linear) || p.keep || p.layout().empty()) continue;
      linear(p, true, false);
      if (plan_.calibrates() && has(p.recipe.needs(), Needs::gram))
        t_.phases["observe"] += summed() * sums(p.linear.in);
    }
  }

  // Sealed blocks are written and hashed where they stay, or in files of their own and once more into the checkpoint,
  // whose files get their SHA-256. What is not quantized stands behind the codes of its file: that is hashed when all
  // else is done.
  void write() {
    double sealed = 0, quantized = 0;
    for (const PlannedLinear& p : plan_.linears)
      if (!p.keep) {
        sealed += wide(p.out_bytes);
        if (!is_end(p.linear)) quantized += wide(p.out_bytes);
      }
    // Of each block that has one its file, two folders and the record; of OUT its files and folders.
    constexpr int kSyncsOfBlock = 4, kSyncsOfOut = 12;
    const ByteRates& r = rates_.bytes;
    const bool in_place = blocks_lie_in_out(plan_, has_moe(spec_));
    sealing_ = sealed * (r.write + r.digest) + (in_place ? 0 : r.sync * wide(kSyncsOfBlock * spec_.layers));
    filling_ = (wide(plan_.out_bytes) - (in_place ? sealed : 0)) * r.write + quantized * r.sha256;
    t_.phases["write"] +=
        sealing_ + filling_ + r.sync * kSyncsOfOut + std::max(0.0, wide(plan_.out_bytes) - quantized) * r.sha256;
  }

  // A thread packs and seals, one fills OUT's files and one brings weights while blocks are computed: the slowest of
  // all is waited for. The last block has nothing behind it, and then OUT's end is written.
  double seconds() const {
    double all = 0;
    for (const auto& [phase, s] : t_.phases) all += s;
    const auto pack = t_.phases.find("pack");
    const double packing = pack == t_.phases.end() ? 0 : pack->second, writing = t_.phases.at("write");
    const double sealing = packing + sealing_, computing = all - packing - writing - ahead_;
    return std::max({computing, sealing, filling_, ahead_}) + (sealing + filling_) / wide(spec_.layers) + writing -
           sealing_ - filling_;
  }

  const Checkpoint& ckpt_;
  const ModelSpec& spec_;
  const QuantPlan& plan_;
  Chunks chunks_;
  int64_t elem_;
  const Rates& rates_;
  double sealing_ = 0, filling_ = 0;  // seconds of the blocks' files, and of OUT's while blocks are computed
  double ahead_ = 0;                  // of weights that come while the block before theirs is computed
  int64_t streams_;
  double full_;  // unquantized streams, half of one counted so
  bool curves_;
  TimePlan t_{};
};

}  // namespace

double forward_seconds(const Rates& r, int kind, size_t begin, size_t stop, int64_t tokens) {
  double s = 0;
  const std::vector<double>& ops = r.op[static_cast<size_t>(kind)];
  for (size_t i = begin; i < std::min(stop, ops.size()); ++i) s += ops[i];
  return s * static_cast<double>(tokens);
}

double forward_seconds(const Rates& r, int kind, const PlannedPass& p, int64_t tokens, double full) {
  const auto of = [&](size_t stop) {
    return forward_seconds(r, kind, p.begin, stop, tokens) +
           (p.times - 1) * forward_seconds(r, kind, p.begins_next, stop, tokens);
  };
  return of(p.stop) + full * of(p.full_stop);
}

std::optional<size_t> last_look(const ModelSpec& spec, const QuantPlan& plan, int64_t layer) {
  if (!has(plan.needs, Needs::cross) || learns_rounding(plan, spec, layer)) return std::nullopt;
  const std::vector<BlockOp>& ops = spec.block(layer);
  for (size_t i = ops.size(); i-- > 0;) {
    if (std::holds_alternative<Moe>(ops[i])) return std::nullopt;  // its experts are looked at in waves
    std::optional<InputRounding> rounding;
    for (const LinearDef& l : linears_of(ops[i])) {
      const PlannedLinear* p = plan.find(spec.prefix(layer) + l.name);
      if (!p || p->keep || (p->lossless && !p->calibrates_input)) continue;
      const InputRounding r = rounding_of(p->recipe.spec, p->recipe.percentile);
      if (r.activations == ActQuant::tensor || (rounding && !(*rounding == r))) return std::nullopt;  // two passes
      rounding = r;
    }
    if (rounding) return i;
  }
  return std::nullopt;
}

std::vector<PlannedPass> passes_of(const Checkpoint& c, const QuantPlan& plan, int64_t layer) {
  const std::vector<BlockOp>& ops = c.spec.block(layer);
  std::vector<PlannedPass> all;
  const std::optional<size_t> last = last_look(c.spec, plan, layer);
  size_t base = 0;
  bool full_ends = false;
  const auto to = [&](size_t stop, int times, bool observes) {
    const size_t next =
        plan.memory.stores_before(c.spec.kind(layer), stop) ? stop : cheapest_cut(ops, base, stop).value_or(base);
    const size_t full_stop = full_ends ? base : observes && stop == last ? ops.size() : stop;
    full_ends |= observes && stop == last;
    all.push_back({.begin = base,
                   .stop = stop,
                   .begins_next = next,
                   .times = times,
                   .observes = observes,
                   .full_stop = full_stop});
    base = next;
  };
  for (size_t i = 0; i < ops.size(); ++i) {
    std::vector<InputRounding> seen;  // the input is looked at once for each; twice where a scale is found first
    int times = 0;
    for (const LinearDef& l : linears_of(ops[i])) {
      const PlannedLinear* p = plan.find(c.spec.prefix(layer) + l.name);
      if (!p) continue;
      const InputRounding r = rounding_of(p->recipe.spec, p->recipe.percentile);
      if (std::find(seen.begin(), seen.end(), r) != seen.end()) continue;
      seen.push_back(r);
      times += r.activations == ActQuant::tensor ? 2 : 1;
    }
    if (times == 0) continue;
    if (const auto* m = std::get_if<Moe>(&ops[i])) {  // counted, then two inputs in waves
      const int waves = (m->experts + plan.memory.experts_at_once - 1) / plan.memory.experts_at_once;
      times = 1 + 2 * waves * times;
    }
    to(i, times, true);
    if (const auto* m = std::get_if<Moe>(&ops[i]); m && plan.memory.experts_in_waves)  // for their answers
      to(i, (m->experts + plan.memory.experts_at_once - 1) / plan.memory.experts_at_once, false);
  }
  to(ops.size(), 1, false);
  return all;
}

TimePlan plan_time(const Checkpoint& c, const QuantPlan& plan, const Chunks& chunks, DType dtype, const Rates& rates) {
  return Times(c, plan, chunks, dtype, rates).all();
}

}  // namespace fewbit

#include "src/quant/plan/memory_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "kernels/statistics/gram_lanes.h"
#include "src/calib/chunk_share.h"
#include "src/calib/cuts.h"
#include "src/calib/expert_pieces.h"
#include "src/calib/lanes.h"
#include "src/model/op_slots.h"
#include "src/quant/loop/activation_sums.h"
#include "src/quant/loop/background.h"
#include "src/quant/loop/curvature/output_gradients.h"
#include "src/quant/loop/learn/learned_rounding.h"
#include "src/quant/plan/memory_refusal.h"
#include "src/quant/plan/method_bytes.h"
#include "src/quant/plan/plan.h"
#include "src/quant/plan/plan_ends.h"
#include "src/quant/plan/residual_aim.h"
#include "src/quant/plan/stop_choice.h"
#include "src/quant/plan/time_plan.h"
#include "src/quant/plan/waves.h"
#include "src/quant/plan/way_back.h"
#include "src/run/moe.h"

namespace fewbit {
namespace {
constexpr int64_t kTransformTokens = 65536;  // that block_transforms.cpp looks at, at most

// A run's sizes, for the formulas below. `in` is the width of a linear's input throughout.
class Estimate {
 public:
  Estimate(const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o)
      : ckpt_(c),
        spec_(c.spec),
        plan_(plan),
        elem_(bytes_of(o.dtype)),
        kind_(o.on_gpu ? Device::cuda : Device::cpu),
        chunks_{
            .windows = o.seq_len > 0 ? o.tokens / o.seq_len : 0, .length = o.seq_len, .at_once = chunk_tokens(kind_)},
        streams_(has(plan.needs, Needs::cross) ? 2 : 1),
        curves_(weighs_outputs(plan)),
        gradient_(curves_ ? curvature_tokens(chunks_.windows, chunks_.length, walk_tokens(plan)) * spec_.hidden * elem_
                          : 0),
        ranks_(o.ranks) {}

  // A phase at a layer: what it needs, and the bytes of all states there are then.
  struct Moment {
    PhaseMemory of{};
    int64_t states = 0;
  };
  std::vector<Moment> moments(const Waves& waves, const std::vector<std::set<size_t>>& stored) const {
    std::vector<Moment> all;
    const int64_t program = program_bytes(kind_),
                  kept = rows_kept(kind_, ranks_, chunks_) * (widest_input(spec_) * streams_ + spec_.width()) * elem_ +
                         link_bytes(kind_, ranks_);
    if (curves_)
      all.push_back({{"curvature", 0, curvature_head_bytes(kind_, spec_, chunks_.length), program},
                     streams_bytes() + (spec_.layers + 1) * gradient_});
    for (int64_t layer = 0; layer < spec_.layers; ++layer) {
      const int64_t host = program + host_bytes(ckpt_, plan_, layer, waves.weights);
      if (!plan_.calibrates())
        all.push_back({{"quantize", layer, largest_alone(kind_, plan_, layer), host}});
      else
        block(layer, waves, stored, [&](const char* phase, int64_t device, int64_t states) {
          all.push_back({{phase, layer, device + kept, host}, states});
        });
    }
    int64_t packed = 0;  // they are sealed together
    for (const PlannedLinear& p : plan_.linears)
      if (is_end(p.linear) && !p.keep)
        all.push_back(
            {{"ends", spec_.layers, end_bytes(p), program + (packed += p.out_bytes) + p.linear.out * p.linear.in},
             plan_.calibrates() ? streams_bytes() : 0});
    return all;
  }

  // The most that every phase needs.
  std::vector<PhaseMemory> phases(const Waves& waves, const std::vector<std::set<size_t>>& stored) const {
    std::map<std::string, PhaseMemory> most;
    for (const Moment& m : moments(waves, stored)) {
      PhaseMemory& p = most.try_emplace(m.of.phase, m.of).first->second;
      if (m.of.device + m.of.host > p.device + p.host) p = m.of;
    }
    std::vector<PhaseMemory> all(most.size());
    std::transform(most.begin(), most.end(), all.begin(), [](const auto& m) { return m.second; });
    return all;
  }

  // Both streams, and what lives besides in front of the stops that keep it.
  int64_t states(const Waves& waves, const std::vector<std::set<size_t>>& stored) const {
    int64_t most = 0;
    for (const Moment& m : moments(waves, stored)) most = std::max(most, m.states);
    return most;
  }
  // Of the device, with as many states on it as `room` takes.
  int64_t device(const Waves& waves, const std::vector<std::set<size_t>>& stored, int64_t room) const {
    int64_t most = 0;
    for (const Moment& m : moments(waves, stored)) most = std::max(most, m.of.device + std::min(m.states, room));
    return most;
  }

 private:
  // Tokens whose states a process keeps: those of its chunks.
  int64_t own_rows(const Chunks& chunks) const {
    return std::min(chunks.tokens(), (chunks.count() + ranks_ - 1) / ranks_ * chunks.most_rows());
  }
  Chunks transformed() const {
    Chunks some = chunks_;
    some.windows = std::min(some.windows, std::max<int64_t>(1, kTransformTokens / std::max<int64_t>(1, some.length)));
    return some;
  }
  int64_t streams_bytes() const {
    return own_rows(chunks_) * (spec_.width() + kept_features(spec_)) * elem_ * streams_;
  }
  using Reach = std::function<void(const char* phase, int64_t device, int64_t states)>;

  // Before any linear is looked at.
  void enter(const std::vector<BlockOp>& ops, int64_t table, int64_t states, const Reach& reach) const {
    const int64_t whole = weights_of(ops, 0, ops.size(), {});
    if (!plan_.transforms.empty())  // beside the windows that transforms look at
      reach("transform", table + whole * (4 + elem_) + transform_bytes(ops),
            states + own_rows(transformed()) * spec_.width() * elem_);
    if (curves_) reach("curvature", table + whole * (8 + elem_) + curvature_bytes(spec_, ops, chunks_.length), states);
  }

  void block(int64_t layer, const Waves& waves, const std::vector<std::set<size_t>>& stored, const Reach& reach) const {
    const std::vector<BlockOp>& ops = spec_.block(layer);
    const auto& kept = stored[static_cast<size_t>(spec_.kind(layer))];
    const bool learning = learns_rounding(plan_, spec_, layer);
    const int64_t whole = weights_of(ops, 0, ops.size(), {});
    const bool whole_block = !plan_.transforms.empty();  // in f32, and in the type that runs
    const int64_t table = token_table_features(ops) * spec_.vocab * elem_;
    int64_t states = streams_bytes() + (spec_.layers - layer) * gradient_;
    enter(ops, table, states, reach);
    states -= gradient_;
    if (learning) states += own_rows(chunks_) * spec_.width() * elem_;  // those that it begins with
    const std::optional<size_t> last = last_look(spec_, plan_, layer);
    // What lives in front of an op where passes begin, if it is stored; behind the last look of one stream alone.
    const auto stop = [&](size_t at) {
      if (kept.count(at) == 0) return int64_t{0};
      return own_rows(chunks_) * elem_ * (last && at >= *last ? 1 : streams_) * features_alive(spec_, ops, at);
    };
    size_t base = 0, held = 0;   // where passes begin; the first op whose linears are still there
    int64_t streams = streams_;  // that have weights of their own
    // In front of op i: a linear's f32 goes with its quantization.
    const auto loaded_at = [&](size_t i) {
      const int64_t curved = curves_ ? curvatures_bytes(ops, i) : 0;
      if (!whole_block) return curved + weights_of(ops, held, i, waves) * elem_ * streams;
      return curved + weights_of(ops, i, ops.size(), {}) * 4 + weights_of(ops, held, ops.size(), {}) * elem_;
    };
    for (size_t i = 0; i < ops.size(); ++i) {
      const Moe* moe = std::get_if<Moe>(&ops[i]);
      if (linears_of(ops[i]).empty() || (!quantizes(layer, ops[i]) && !(moe && waves.weights))) continue;
      const int64_t on = last == i && !whole_block ? weights_of(ops, i, ops.size(), waves) * elem_ : 0;
      const size_t next = kept.count(i) > 0 ? i : cheapest_cut(ops, base, i).value_or(base);
      if (moe && waves.weights) states += own_rows(chunks_) * moe->hidden * 4 * streams_;  // what the experts answer
      const int64_t experts = moe && !whole_block ? weights_of(ops, i, i + 1, waves) * elem_ * streams_ : 0;
      const auto [residual, rows] = errors_at(layer, i);
      const int64_t chunk =
          std::max(chunk_bytes(ops, base, i), last == i ? run_on_bytes(ops, i) + choice_bytes(ops) : 0);
      const int64_t gathered = sums_bytes(ops[i], waves) + gather_bytes(layer, ops[i], waves) + residual + rows;
      // A mixture's tokens are counted by the pass that moves the cut, and summed by those behind it.
      reach("observe", table + loaded_at(i) + on + experts + chunk + (moe ? 0 : gathered) + routing_bytes(ops[i]),
            states + std::max(stop(base), stop(next)));
      base = next;
      if (!learning) held = base;
      if (moe)
        reach("observe", table + loaded_at(i) + experts + chunk_bytes(ops, base, i) + gathered + routing_bytes(ops[i]),
              states + stop(base));
      if (last == i) streams = 1;
      const int64_t replaced = moe ? 0 : weights_of(ops, i, i + 1, waves) * elem_;
      reach("quantize",
            table + loaded_at(i) + experts + largest_sums(ops[i], waves) + residual + replaced +
                work_bytes(layer, ops[i]) + lanes_bytes(layer, ops[i], waves) + routing_bytes(ops[i]),
            states + stop(base));
      if (moe && waves.weights)
        reach("forward",
              table + weights_of(ops, held, i, waves) * elem_ * streams_ + chunk_bytes(ops, base, i + 1) +
                  waves.experts(*moe) * (wide_weights(*moe) + down_weights(*moe)) * elem_ * streams_,
              states + stop(base));
    }
    reach("forward", table + loaded_at(ops.size()) + chunk_bytes(ops, base, ops.size()), states + stop(base));
    if (learning)
      reach("learn", whole * (elem_ + 5) + learning_bytes(spec_, ops, whole, chunks_.windows, chunks_.length), states);
  }

  bool quantizes(int64_t layer, const BlockOp& op) const {
    for (const LinearDef& l : linears_of(op))
      if (plan_.find(spec_.prefix(layer) + l.name)) return true;
    return false;
  }

  // Features of the slots of a chunk while it runs from `base` in front of `to`, as Stream allocates them.
  int64_t peak_features(const std::vector<BlockOp>& ops, size_t base, size_t to) const {
    int64_t most = spec_.width();
    for (size_t i = base; i < to; ++i) {
      int64_t now = spec_.width() + features_alive(spec_, ops, i);
      const auto* act = std::get_if<GatedAct>(&ops[i]);
      for (const Slot s : slots_written(ops[i]))
        if (s != Slot::x && !alive_before(ops, i, s) && !(act && !alive_before(ops, i + 1, act->gate)))
          now += slot_features(spec_, ops, s);
      // Queries, keys, values and outputs in the widths that the kernels of plain attention take.
      if (const auto* a = std::get_if<LatentAttention>(&ops[i])) now += 4 * a->heads * (a->nope + a->rope);
      if (const auto* m = std::get_if<Moe>(&ops[i])) now += m->hidden * 4 / elem_ + 2 * m->gate.out_features;
      most = std::max(most, now);
    }
    return most;
  }
  int64_t chunk_bytes(const std::vector<BlockOp>& ops, size_t base, size_t to) const {
    const int64_t other = streams_ == 2 ? spec_.width() + features_alive(spec_, ops, to) : 0;
    return chunks_.most_rows() * elem_ * (peak_features(ops, base, to) + other) + choice_bytes(ops);
  }
  // Of a chunk whose unquantized stream runs on to the block's end, while the other stands in front of `at`.
  int64_t run_on_bytes(const std::vector<BlockOp>& ops, size_t at) const {
    return chunks_.most_rows() * elem_ *
           (peak_features(ops, at, ops.size()) + spec_.width() + features_alive(spec_, ops, at));
  }
  // Of a choice of keys: of all chunks of both streams where blocks behind look at them too.
  int64_t choice_bytes(const std::vector<BlockOp>& ops) const {
    const KeyChoice* choice = key_choice_of(ops);
    const int64_t lasting = choice_that_lasts(spec_), each = lasting > 0 ? lasting : choice ? choice->top_k : 0;
    if (chunks_.length <= each) return 0;
    return (lasting > 0 ? own_rows(chunks_) * streams_ : chunks_.most_rows()) * each * bytes_of(DType::i32);
  }

  // Sums of an input: the Gram matrix, the cross sums; the Gram matrix of rows that come without the other stream's.
  int64_t sums_of(int64_t in) const { return in * in * 4 * (streams_ + plan_.by_half); }
  // Of a mixture those of a wave of experts and of the layer; what makes down's inputs is there, or comes with it.
  int64_t largest_sums(const BlockOp& op, const Waves& waves) const {
    const auto* m = std::get_if<Moe>(&op);
    if (!m) return sums_of(linears_of(op).front().in_features);
    return (waves.experts(*m) + 1) * sums_of(std::max(m->hidden, m->down.in_features));
  }
  int64_t sums_bytes(const BlockOp& op, const Waves& waves) const {
    const auto* m = std::get_if<Moe>(&op);
    if (!m || !waves.weights) return largest_sums(op, waves);
    const int64_t n = waves.experts(*m);
    return std::max((n + 1) * sums_of(m->hidden),
                    (n + 1) * sums_of(m->down.in_features) + n * wide_weights(*m) * elem_ * streams_);
  }
  // Who goes where, of all chunks.
  int64_t routing_bytes(const BlockOp& op) const {
    const auto* m = std::get_if<Moe>(&op);
    return m ? chunks_.tokens() * m->top_k * (m->weigh_inputs ? 8 : 4) : 0;
  }
  // Rows on their way into the sums: pieces that chunks do not end with, and their rounded copies; of experts what
  // waits for a piece, and what one makes of it in both streams.
  int64_t gather_bytes(int64_t layer, const BlockOp& op, const Waves& waves) const {
    const auto* m = std::get_if<Moe>(&op);
    if (m)
      return kExpertPiece * elem_ * streams_ * (waves.experts(*m) * m->hidden + 2 * m->down.in_features) +
             received_bytes(m->hidden);
    const int64_t in = linears_of(op).front().in_features, piece = gram_chunk(kind_) * elem_;
    int64_t bytes = (kind_ == Device::cuda ? GramLanes::kBytes : 0) +
                    (chunks_.most_rows() % gram_chunk(kind_) == 0 ? 0 : piece * (streams_ + plan_.by_half) * in) +
                    received_bytes(in);
    for (const LinearDef& l : linears_of(op))
      if (const PlannedLinear* p = plan_.find(spec_.prefix(layer) + l.name);
          p && p->recipe.spec.activations != ActQuant::none)
        return bytes + piece * in + kSampleTokens * in * elem_;
    return bytes;
  }
  ErrorBytes errors_at(int64_t layer, size_t at) const {
    const int64_t in = linears_of(spec_.block(layer)[at]).front().in_features;
    return error_bytes(error_features(plan_, spec_, layer, at), in, kind_, elem_, chunks_.most_rows(), ranks_);
  }
  // Rows of chunks that processes show each other.
  int64_t received_bytes(int64_t in) const { return rows_shown(kind_, ranks_, chunks_) * in * elem_ * streams_; }

  // What the method needs besides the sums, for the linear of the op that needs most.
  int64_t work_bytes(int64_t layer, const BlockOp& op) const {
    int64_t most = 0;
    bool sibling = false;
    for (const LinearDef& l : linears_of(op))
      if (const PlannedLinear* p = plan_.find(spec_.prefix(layer) + l.name)) {
        most = std::max(most, method_bytes(kind_, *p, sibling));
        sibling = !std::holds_alternative<Moe>(op);
      }
    return most;
  }
  // What the other lanes need besides one, and the weights of experts that wait for a lane.
  int64_t lanes_bytes(int64_t layer, const BlockOp& op, const Waves& waves) const {
    const auto* m = std::get_if<Moe>(&op);
    if (!m || waves.lanes == 1) return 0;
    return (waves.lanes - 1) * work_bytes(layer, op) + waves.lanes * (kLaneBytes + 2 * 4 * wide_weights(*m));
  }
  int64_t end_bytes(const PlannedLinear& p) const {
    const bool sums = plan_.calibrates() && has(p.recipe.needs(), Needs::gram);
    return method_bytes(kind_, p) + (sums ? sums_of(p.linear.in) : 0) +
           chunks_.most_rows() * (spec_.width() + spec_.hidden) * elem_ * streams_;
  }

  // A Gram matrix and a sample for every absorber, and the copies of a linear that a search tries.
  int64_t transform_bytes(const std::vector<BlockOp>& ops) const {
    int64_t sums = 0, largest = 0, tokens = std::min(kTransformTokens, chunks_.tokens());
    for (const Absorber& a : absorbers_of(ops)) {
      const int64_t in = a.features * a.repeat, lanes = kind_ == Device::cuda && a.expert < 0 ? GramLanes::kBytes : 0;
      sums += in * in * 4 + std::min(kTransformSample, tokens) * in * elem_ + lanes;
    }
    for (const BlockOp& op : ops)
      for (const LinearDef& l : linears_of(op)) largest = std::max(largest, l.out_features * l.in_features);
    return sums + largest * 16 + chunk_bytes(ops, 0, ops.size());
  }

  const Checkpoint& ckpt_;
  const ModelSpec& spec_;
  const QuantPlan& plan_;
  int64_t elem_;
  Device::Kind kind_;
  Chunks chunks_;
  int64_t streams_;
  bool curves_;
  int64_t gradient_;  // of the way back, at the end of a block
  int ranks_;
};

// As many lanes as half of the device has room for, or as cost nothing at the peak.
void add_lanes(MemoryPlan& m, const Estimate& estimate, const PlanOptions& o, bool wanted) {
  if (!wanted || !o.on_gpu || m.experts_in_waves) return;
  for (int lanes = kMostLanes; lanes > 1; lanes /= 2) {
    std::vector<PhaseMemory> phases =
        estimate.phases({.at_once = m.experts_at_once, .weights = false, .lanes = lanes}, m.stored);
    const int64_t device = largest(phases, true).device + kDeviceLibraries;
    if (device > std::max(m.least_device, o.limits.device / 2)) continue;
    m.lanes = lanes;
    m.phases = std::move(phases);
    m.least_device = device;
    return;
  }
}

}  // namespace

MemoryPlan plan_memory(const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o) {
  const Estimate estimate(c, plan, o);
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  MemoryPlan m;
  m.room.scratch = o.limits.scratch;
  const auto left = [](int64_t limit, int64_t used) {
    return limit == kUnlimited ? limit : std::max<int64_t>(0, limit - used);
  };
  // Keeps what is costly to compute again where there is memory for it, and as many experts as fit.
  m.stored.resize(c.spec.kinds.size());
  bool found = false;
  for (const Waves& waves : waves_to_try(c.spec, plan)) {
    std::vector<PhaseMemory> phases = estimate.phases(waves, m.stored);
    if (!o.on_gpu) on_one_machine(phases);
    const int64_t device = o.on_gpu ? largest(phases, true).device + kDeviceLibraries : 0;
    const int64_t host = largest(phases, false).host;
    const bool fits = device <= o.limits.device && host <= o.limits.host;
    const bool smaller = m.smallest_host == 0 || (o.on_gpu ? device < m.smallest_device : host < m.smallest_host);
    if (smaller) m.smallest_device = device, m.smallest_host = host;
    if (found || !(fits || smaller)) continue;  // of those that do not fit the smallest is what a refusal names
    found = fits;
    m.experts_at_once = waves.at_once, m.experts_in_waves = waves.weights;
    m.phases = std::move(phases);
    m.least_device = device, m.least_host = host;
  }
  add_lanes(m, estimate, o, plan.calibrates() && has_moe(c.spec));
  m.refusal = memory_refusal(m, o);
  m.room.device = o.on_gpu ? left(o.limits.device, m.least_device) : 0;
  m.room.host = left(o.limits.host, m.least_host);
  const auto fits = [&](int64_t states) {
    if (m.room.device == kUnlimited || m.room.host == kUnlimited) return true;
    return states <= m.room.device + m.room.host;
  };
  const std::vector<std::set<size_t>> costly = costly_stops(c.spec);
  for (size_t kind = 0; kind < costly.size(); ++kind)
    for (const size_t at : costly[kind]) {
      m.stored[kind].insert(at);
      if (!fits(estimate.states(waves_of(m), m.stored))) m.stored[kind].erase(at);
    }
  m.states = estimate.states(waves_of(m), m.stored);
  for (const auto& [name, info] : c.store.index().tensors) m.mapped = std::max(m.mapped, info.bytes);
  copy_beside(m, c, plan, o);
  lay_states(m, c, plan, o);
  return m;
}

int64_t state_bytes(const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o,
                    const std::vector<std::set<size_t>>& stored) {
  return Estimate(c, plan, o).states(waves_of(plan.memory), stored);
}

void lay_states(MemoryPlan& m, const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o) {
  const Estimate estimate(c, plan, o);
  const int64_t bytes = estimate.states(waves_of(m), m.stored);
  const int64_t on_device = std::min(bytes, m.room.device), in_host = std::min(bytes - on_device, m.room.host);
  m.states = bytes;
  m.device = o.on_gpu ? kDeviceLibraries + m.beside + estimate.device(waves_of(m), m.stored, m.room.device) : 0;
  m.host = m.least_host + in_host;
  m.scratch = bytes - on_device - in_host;
}

}  // namespace fewbit

#include "src/quant/plan/stop_choice.h"

#include <algorithm>
#include <set>

#include "src/calib/cuts.h"
#include "src/core/strings.h"
#include "src/quant/plan/rates/rates.h"
#include "src/quant/plan/time_plan.h"

namespace fewbit {
namespace {

using Where = StopChoice::Where;

// Measured seconds decide against the plain rule (what products or attention made is kept) where they differ by so
// much: rates vary from run to run, and plans near the border should not.
constexpr double kClearly = 2;

class Decision {
 public:
  Decision(const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o, const Rates& rates)
      : ckpt_(c),
        options_(o),
        rates_(rates),
        trial_(plan),
        chunks_{.windows = o.tokens / o.seq_len, .length = o.seq_len},
        streams_(has(plan.needs, Needs::cross) ? 2 : 1) {
    trial_.memory.stored.assign(c.spec.kinds.size(), {});
    trial_.memory.stops.clear();
    always_ = state_bytes(c, plan, o, trial_.memory.stored);
  }

  MemoryPlan made() {
    std::set<int> done;
    for (int64_t layer = 0; layer < ckpt_.spec.layers; ++layer)
      if (done.insert(ckpt_.spec.kind(layer)).second) decide(layer);
    MemoryPlan& m = trial_.memory;
    lay_states(m, ckpt_, trial_, options_);
    return std::move(m);
  }

 private:
  // In the order of the stops: one that is stored is where the passes behind it begin.
  void decide(int64_t layer) {
    const int kind = ckpt_.spec.kind(layer);
    const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
    std::set<size_t>& stored = trial_.memory.stored[static_cast<size_t>(kind)];
    for (const PlannedPass& pass : passes_of(ckpt_, trial_, layer)) {
      if (!pass.observes || features_alive(ckpt_.spec, ops, pass.stop) == 0) continue;
      StopChoice s{.kind = kind, .op = pass.stop, .linears = linears_at(layer, ops[pass.stop])};
      const int64_t streams = last_look(ckpt_.spec, trial_, layer) == pass.stop ? 1 : streams_;
      s.bytes = chunks_.tokens() * bytes_of(options_.dtype) * streams * features_alive(ckpt_.spec, ops, pass.stop);
      const Where place = place_of(s.bytes);
      s.store_seconds = static_cast<double>(s.bytes) * rate_of(place);
      const double again = forward(layer);
      stored.insert(pass.stop);
      s.compute_seconds = again - forward(layer);
      const double doubt = costly(ops, pass.begin, pass.stop) ? kClearly : 1 / kClearly;
      if (s.store_seconds < doubt * s.compute_seconds)
        s.place = place;
      else
        stored.erase(pass.stop);
      trial_.memory.stops.push_back(std::move(s));
    }
  }

  // Products or attention lie behind the last cut.
  static bool costly(const std::vector<BlockOp>& ops, size_t begin, size_t stop) {
    return std::any_of(ops.begin() + static_cast<int64_t>(begin), ops.begin() + static_cast<int64_t>(stop),
                       [](const BlockOp& op) { return attends(op) || !linears_of(op).empty(); });
  }

  double forward(int64_t layer) const {
    double s = 0;
    const int kind = ckpt_.spec.kind(layer);
    for (const PlannedPass& p : passes_of(ckpt_, trial_, layer))
      s += forward_seconds(rates_, kind, p, chunks_.tokens(), trial_.full_streams(chunks_));
    return s;
  }

  // Where bytes lie that come when the states that are there in any case have taken their room.
  Where place_of(int64_t bytes) const {
    const StateRoom& room = trial_.memory.room;
    const int64_t there = std::min(always_, room.device), in_host = std::min(always_ - there, room.host);
    if (bytes <= room.device - there) return Where::device;
    return bytes <= room.host - in_host ? Where::host : Where::disk;
  }
  // Seconds to write a byte there and read it again.
  double rate_of(Where place) const {
    if (place == Where::disk) return rates_.bytes.scratch;
    return 2 * (place == Where::host && options_.on_gpu ? rates_.bytes.link : rates_.bytes.device);
  }

  std::string linears_at(int64_t layer, const BlockOp& op) const {
    if (const auto* m = std::get_if<Moe>(&op)) return m->expert_name + "*";
    std::vector<std::string> names;
    for (const LinearDef& l : linears_of(op))
      if (trial_.find(ckpt_.spec.prefix(layer) + l.name)) names.push_back(l.name);
    return join(names, ", ");
  }

  const Checkpoint& ckpt_;
  const PlanOptions& options_;
  const Rates& rates_;
  QuantPlan trial_;  // with what is decided so far
  Chunks chunks_;
  int64_t streams_;
  int64_t always_ = 0;  // bytes of states without any stop
};

}  // namespace

const char* name_of(StopChoice::Where p) {
  switch (p) {
    case Where::device:
      return "on the device";
    case Where::host:
      return "in host memory";
    case Where::disk:
      return "on disk";
    case Where::computed:
      return "computed again";
  }
  bug("a place without a name");
}

MemoryPlan decide_stops(const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o, const Rates& rates) {
  if (!plan.calibrates()) return plan.memory;
  return Decision(c, plan, o, rates).made();
}

std::vector<std::set<size_t>> costly_stops(const ModelSpec& spec) {
  std::vector<std::set<size_t>> all(spec.kinds.size());
  for (size_t kind = 0; kind < all.size(); ++kind) {
    const std::vector<BlockOp>& ops = spec.kinds[kind];
    size_t base = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (linears_of(ops[i]).empty()) continue;
      base = cheapest_cut(ops, base, i).value_or(base);
      for (size_t k = base; k < i; ++k)
        if (attends(ops[k]) || !linears_of(ops[k]).empty()) all[kind].insert(i);
    }
  }
  return all;
}

}  // namespace fewbit

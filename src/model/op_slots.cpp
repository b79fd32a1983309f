#include "src/model/op_slots.h"

#include <algorithm>
#include <map>

namespace fewbit {
namespace {

struct Reads {
  std::vector<Slot> operator()(const Norm& op) const { return {op.in}; }
  std::vector<Slot> operator()(const Linears& op) const { return {op.in}; }
  std::vector<Slot> operator()(const Split& op) const { return {op.in}; }
  std::vector<Slot> operator()(const HeadNorm& op) const { return {op.slot}; }
  std::vector<Slot> operator()(const Rope& op) const { return op.slots; }
  std::vector<Slot> operator()(const Attention& op) const { return {op.q, op.k, op.v}; }
  std::vector<Slot> operator()(const GatedAct& op) const { return {op.gate, op.up}; }
  std::vector<Slot> operator()(const AddTo& op) const { return {op.in, op.out}; }
  std::vector<Slot> operator()(const Moe& op) const { return {op.in, op.routed()}; }
  std::vector<Slot> operator()(const Scale& op) const { return {op.slot}; }
  std::vector<Slot> operator()(const Project& op) const { return {op.in}; }
  std::vector<Slot> operator()(const SigmoidGate& op) const { return {op.gate, op.in}; }
  std::vector<Slot> operator()(const ShortConv& op) const { return {op.in}; }
  std::vector<Slot> operator()(const DeltaRule& op) const {
    if (op.k == op.q) return {op.q, op.beta, op.decay};
    return {op.q, op.k, op.v, op.beta, op.decay};
  }
  std::vector<Slot> operator()(const BiasedNorm& op) const { return {op.slot}; }
  std::vector<Slot> operator()(const KeyChoice& op) const { return {op.q, op.k, op.weights}; }
  std::vector<Slot> operator()(const LatentAttention& op) const {
    return {op.q_nope, op.q_rope, op.kv, op.k_rope, op.latent};
  }
  std::vector<Slot> operator()(const PositionScale& op) const { return {op.slot}; }
  std::vector<Slot> operator()(const StateScan& op) const { return {op.in, op.dt}; }
  std::vector<Slot> operator()(const TokenInput&) const { return {}; }
  std::vector<Slot> operator()(const Keep& op) const { return op.slots; }
  std::vector<Slot> operator()(const CompressKeys& op) const { return {op.k, op.gate}; }
  std::vector<Slot> operator()(const SharedKeyAttention& op) const {
    return op.sees_far() ? std::vector<Slot>{op.q, op.k, op.far} : std::vector<Slot>{op.q, op.k};
  }
  std::vector<Slot> operator()(const ReadStreams& op) const { return {op.in}; }
  std::vector<Slot> operator()(const WriteStreams& op) const { return {op.in, op.mix, op.out}; }
  std::vector<Slot> operator()(const TokenRoute& op) const { return {op.in}; }
};

struct Writes {
  std::vector<Slot> operator()(const Norm& op) const { return {op.out}; }
  std::vector<Slot> operator()(const Linears& op) const {
    std::vector<Slot> out;
    out.reserve(op.items.size());
    for (const LinearDef& l : op.items) out.push_back(l.out);
    return out;
  }
  std::vector<Slot> operator()(const Split& op) const {
    std::vector<Slot> out;
    for (const SplitPart& p : op.parts)
      if (std::find(out.begin(), out.end(), p.out) == out.end()) out.push_back(p.out);
    return out;
  }
  std::vector<Slot> operator()(const HeadNorm& op) const { return {op.slot}; }
  std::vector<Slot> operator()(const Rope& op) const { return op.slots; }
  std::vector<Slot> operator()(const Attention& op) const { return {op.out}; }
  std::vector<Slot> operator()(const GatedAct& op) const { return {op.out}; }
  std::vector<Slot> operator()(const AddTo& op) const { return {op.out}; }
  std::vector<Slot> operator()(const Moe& op) const { return {op.out}; }
  std::vector<Slot> operator()(const Scale& op) const { return {op.slot}; }
  std::vector<Slot> operator()(const Project& op) const { return {op.out}; }
  std::vector<Slot> operator()(const SigmoidGate& op) const { return {op.out}; }
  std::vector<Slot> operator()(const ShortConv& op) const { return {op.out}; }
  std::vector<Slot> operator()(const DeltaRule& op) const { return {op.out}; }
  std::vector<Slot> operator()(const BiasedNorm& op) const { return {op.slot}; }
  std::vector<Slot> operator()(const KeyChoice&) const { return {}; }
  std::vector<Slot> operator()(const LatentAttention& op) const { return {op.out}; }
  std::vector<Slot> operator()(const PositionScale& op) const { return {op.slot}; }
  std::vector<Slot> operator()(const StateScan& op) const { return {op.out}; }
  std::vector<Slot> operator()(const TokenInput& op) const { return {op.out}; }
  std::vector<Slot> operator()(const Keep&) const { return {}; }
  std::vector<Slot> operator()(const CompressKeys& op) const { return {op.out}; }
  std::vector<Slot> operator()(const SharedKeyAttention& op) const { return {op.out}; }
  std::vector<Slot> operator()(const ReadStreams& op) const { return {op.out, op.mix}; }
  std::vector<Slot> operator()(const WriteStreams& op) const { return {op.out}; }
  std::vector<Slot> operator()(const TokenRoute& op) const { return {op.out}; }
};

}  // namespace

std::vector<Slot> slots_read(const BlockOp& op) { return std::visit(Reads{}, op); }
std::vector<Slot> slots_written(const BlockOp& op) { return std::visit(Writes{}, op); }

bool reads_a_norm(const ModelSpec& spec, const NamedLinear& linear) {
  const std::string name = linear.name.substr(spec.prefix(linear.layer).size());
  const auto is_it = [&](const LinearDef& l) { return l.name == name; };
  std::map<Slot, bool> normed;
  for (const BlockOp& op : spec.block(linear.layer)) {
    if (const auto* l = std::get_if<Linears>(&op); l && std::any_of(l->items.begin(), l->items.end(), is_it))
      return normed[l->in];
    if (const auto* m = std::get_if<Moe>(&op))
      for (int e = 0; e < m->experts; ++e) {
        const std::vector<LinearDef> wide = m->wide_of(e);
        if (std::any_of(wide.begin(), wide.end(), is_it)) return normed[m->in];
      }
    for (const Slot s : slots_written(op)) normed[s] = std::holds_alternative<Norm>(op);
  }
  return false;
}

}  // namespace fewbit

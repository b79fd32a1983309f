#include "src/model/absorb.h"

#include <algorithm>
#include <optional>

#include "src/model/op_slots.h"

namespace fewbit {
namespace {

bool holds(const std::vector<Slot>& slots, Slot s) { return std::find(slots.begin(), slots.end(), s) != slots.end(); }

// The last op before `end` that writes slot s.
std::optional<size_t> writer_of(const std::vector<BlockOp>& ops, size_t end, Slot s) {
  for (size_t i = end; i-- > 0;)
    if (holds(slots_written(ops[i]), s)) return i;
  return std::nullopt;
}

// Everyone who reads slot s between its writer and its next overwriting.
std::vector<size_t> readers_of(const std::vector<BlockOp>& ops, size_t writer, Slot s) {
  std::vector<size_t> readers;
  for (size_t i = writer + 1; i < ops.size(); ++i) {
    if (holds(slots_read(ops[i]), s)) readers.push_back(i);
    if (holds(slots_written(ops[i]), s)) break;
  }
  return readers;
}

// The linear that wrote slot s for op `end`, when nobody else reads what it wrote.
std::optional<Absorber> rows_of(const std::vector<BlockOp>& ops, size_t end, Slot s) {
  const std::optional<size_t> at = writer_of(ops, end, s);
  if (!at || s == Slot::x || readers_of(ops, *at, s) != std::vector<size_t>{end}) return std::nullopt;
  const auto* group = std::get_if<Linears>(&ops[*at]);
  if (!group) return std::nullopt;
  for (const LinearDef& l : group->items)
    if (l.out == s) {
      Absorber a;
      a.kind = Absorber::Kind::linear_rows;
      a.op = *at;
      a.name = l.name;
      a.features = l.out_features;
      return a;
    }
  return std::nullopt;
}

// What the ops that read an input `s` multiply it by; false where one of them does something else with it.
bool take_consumers(const std::vector<BlockOp>& ops, Slot s, Absorber& a) {
  for (const size_t i : a.consumers) {
    if (const auto* group = std::get_if<Linears>(&ops[i])) {
      a.linears.insert(a.linears.end(), group->items.begin(), group->items.end());
    } else if (const auto* moe = std::get_if<Moe>(&ops[i])) {
      for (int e = 0; e < moe->experts; ++e)
        for (LinearDef& l : moe->wide_of(e)) a.linears.push_back(std::move(l));
      if (moe->routed() == moe->in) a.routers.push_back({moe->router, {moe->experts, moe->hidden}});
    } else if (const auto* project = std::get_if<Project>(&ops[i]); project && project->groups == 1) {
      a.routers.push_back({project->name, {project->out_features, project->in_features}});
    } else if (const auto* latent = std::get_if<LatentAttention>(&ops[i]); latent && latent->latent == s) {
      continue;  // it keeps the latent for the columns of kv_b alone, which take the scale
    } else {
      return false;
    }
  }
  return true;
}

// The op that made what the gate ops[at] lets through, itself where it is none: in * sigmoid(gate) is linear in `in`,
// feature by feature, whether the gate is one or one for each. Nothing where somebody besides the gate reads it.
std::optional<size_t> behind_gates(const std::vector<BlockOp>& ops, size_t at) {
  while (const auto* gate = std::get_if<SigmoidGate>(&ops[at])) {
    const std::optional<size_t> made = writer_of(ops, at, gate->in);
    if (!made || gate->in == Slot::x || gate->in == gate->gate ||
        readers_of(ops, *made, gate->in) != std::vector<size_t>{at})
      return std::nullopt;
    at = *made;
  }
  return at;
}

// The absorber of the input `s` of ops[reader].
std::optional<Absorber> absorber_of(const std::vector<BlockOp>& ops, size_t reader, Slot s) {
  const std::optional<size_t> at = writer_of(ops, reader, s);
  if (!at || s == Slot::x) return std::nullopt;  // x leaves the block: its readers are not all in sight
  const std::optional<size_t> made = behind_gates(ops, *at);
  if (!made) return std::nullopt;
  std::optional<Absorber> a;
  if (const auto* norm = std::get_if<Norm>(&ops[*made])) {
    a.emplace();
    a->op = *made;
    a->name = norm->name;
    a->features = norm->features;
  } else if (const auto* act = std::get_if<GatedAct>(&ops[*made])) {
    if (act->up != act->gate && act->limit == 0) a = rows_of(ops, *made, act->up);  // act(gate) * up is linear in up
  } else if (const auto* attention = std::get_if<Attention>(&ops[*made])) {
    if (attention->v != attention->q && attention->v != attention->k)
      a = rows_of(ops, *made, attention->v);  // a weighted mean of v is linear in v
    if (a) {
      a->head_dim = attention->head_dim;
      a->repeat = attention->heads / attention->kv_heads;
    }
  }
  if (!a) return std::nullopt;
  a->consumers = readers_of(ops, *at, s);
  if (!take_consumers(ops, s, *a)) return std::nullopt;
  return a;
}

// act(gate) * up of an expert is linear in up (but for the clamped form, and without a gate), and only its down reads
// that.
Absorber inside_expert(const Moe& moe, size_t op, int expert) {
  const LinearDef up = moe.of_expert(moe.up, expert);
  Absorber a;
  a.kind = Absorber::Kind::linear_rows;
  a.op = op;
  a.name = up.name;
  a.consumers = {op};
  a.linears = {moe.of_expert(moe.down, expert)};
  a.expert = expert;
  a.features = up.out_features;
  return a;
}

}  // namespace

std::vector<Absorber> absorbers_of(const std::vector<BlockOp>& ops) {
  std::vector<Absorber> all;
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto* group = std::get_if<Linears>(&ops[i]);
    const auto* moe = std::get_if<Moe>(&ops[i]);
    if (!group && !moe) continue;
    std::optional<Absorber> a = absorber_of(ops, i, group ? group->in : moe->in);
    if (a && a->consumers.front() == i) all.push_back(std::move(*a));  // one entry for an input with two readers
    for (int e = 0; moe && moe->gated() && moe->swiglu_limit == 0 && e < moe->experts; ++e)
      all.push_back(inside_expert(*moe, i, e));
  }
  return all;
}

}  // namespace fewbit

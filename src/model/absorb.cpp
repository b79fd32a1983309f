#include "src/model/absorb.h"

#include <algorithm>
#include <optional>

#include "src/core/strings.h"
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

// What an op lets through, and the slot that decides how much: in * sigmoid(gate) is linear in `in`, feature by
// feature, whether the gate is one or one for each, and act(gate) * up, unclamped, in `up`.
std::optional<std::pair<Slot, Slot>> let_through(const BlockOp& op) {
  if (const auto* gate = std::get_if<SigmoidGate>(&op)) return std::pair{gate->in, gate->gate};
  if (const auto* act = std::get_if<GatedAct>(&op); act && act->limit == 0) return std::pair{act->up, act->gate};
  return std::nullopt;
}

// The last op before ops[end] that wrote its input `s` and is no gate; the slot that it wrote, and who reads that.
struct Made {
  size_t op, reader;
  Slot slot;
  bool gated = false;
};
// Nothing where somebody besides a gate reads what goes into it.
std::optional<Made> made_behind_gates(const std::vector<BlockOp>& ops, size_t end, Slot s) {
  std::optional<size_t> at = writer_of(ops, end, s);
  if (!at || s == Slot::x) return std::nullopt;  // x leaves the block: its readers are not all in sight
  Made made{.op = *at, .reader = end, .slot = s};
  while (const auto through = let_through(ops[made.op])) {
    const auto [in, gate] = *through;
    at = writer_of(ops, made.op, in);
    if (!at || in == Slot::x || in == gate || readers_of(ops, *at, in) != std::vector<size_t>{made.op})
      return std::nullopt;
    made = {.op = *at, .reader = made.op, .slot = in, .gated = true};
  }
  return made;
}

// By who made it: the absorber of an input of `width` features, as far as the op itself says.
struct AbsorbedBy {
  const std::vector<BlockOp>& ops;
  const Made& made;
  int64_t width;

  std::optional<Absorber> operator()(const Norm& n) const { return norm(n.name, n.features); }
  std::optional<Absorber> operator()(const HeadNorm& n) const {
    if (n.name.empty()) return std::nullopt;
    Absorber a = norm(n.name, n.head_dim);
    a.head_dim = n.head_dim;
    a.repeat = width / n.head_dim;
    return a;
  }
  std::optional<Absorber> operator()(const Scale& s) const {
    constexpr std::string_view kWeight = ".weight";
    if (s.features != width || !ends_with(s.name, kWeight)) return std::nullopt;
    return norm(s.name.substr(0, s.name.size() - kWeight.size()), width);
  }
  std::optional<Absorber> operator()(const Linears&) const {
    if (!made.gated) return std::nullopt;
    return rows_of(ops, made.reader, made.slot);
  }
  std::optional<Absorber> operator()(const Attention& attention) const {  // a weighted mean of v is linear in v
    if (attention.v == attention.q || attention.v == attention.k) return std::nullopt;
    std::optional<Absorber> a = rows_of(ops, made.op, attention.v);
    if (!a) return std::nullopt;
    a->head_dim = attention.head_dim;
    a->repeat = attention.heads / attention.kv_heads;
    return a;
  }
  std::optional<Absorber> operator()(const LatentAttention& attention) const {
    std::optional<Absorber> a = rows_of(ops, made.op, attention.kv);
    if (!a) return std::nullopt;
    a->features = attention.heads * attention.value;
    a->head_dim = attention.value;
    a->head_rows = attention.nope + attention.value;
    return a;
  }
  template <class Other>
  std::optional<Absorber> operator()(const Other&) const {
    return std::nullopt;
  }

 private:
  Absorber norm(const std::string& name, int64_t features) const {
    Absorber a;
    a.op = made.op;
    a.name = name;
    a.features = features;
    return a;
  }
};

// The absorber of the input `s` of ops[reader], which is `width` wide.
std::optional<Absorber> absorber_of(const std::vector<BlockOp>& ops, size_t reader, Slot s, int64_t width) {
  const std::optional<Made> made = made_behind_gates(ops, reader, s);
  if (!made) return std::nullopt;
  std::optional<Absorber> a = std::visit(AbsorbedBy{ops, *made, width}, ops[made->op]);
  if (!a) return std::nullopt;
  a->gated = made->gated;
  a->consumers = readers_of(ops, *writer_of(ops, reader, s), s);
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
    std::optional<Absorber> a = group ? absorber_of(ops, i, group->in, group->items.front().in_features)
                                      : absorber_of(ops, i, moe->in, moe->hidden);
    if (a && a->consumers.front() == i) all.push_back(std::move(*a));  // one entry for an input with two readers
    for (int e = 0; moe && moe->gated() && moe->swiglu_limit == 0 && e < moe->experts; ++e)
      all.push_back(inside_expert(*moe, i, e));
  }
  return all;
}

}  // namespace fewbit

// Which tensors of a block a rotation changes: a walk over the op list with what every slot holds.
#include <fmt/format.h>

#include <array>

#include "src/model/absorb.h"
#include "src/model/op_slots.h"
#include "src/model/rotation/rotation.h"

namespace fewbit {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<BlockOp>> kOpNames = {"Norm",
                                                                                 "Linears",
                                                                                 "Split",
                                                                                 "HeadNorm",
                                                                                 "Rope",
                                                                                 "Attention",
                                                                                 "GatedAct",
                                                                                 "AddTo",
                                                                                 "Moe",
                                                                                 "Project",
                                                                                 "SigmoidGate",
                                                                                 "Scale",
                                                                                 "ShortConv",
                                                                                 "DeltaRule",
                                                                                 "BiasedNorm",
                                                                                 "KeyChoice",
                                                                                 "LatentAttention",
                                                                                 "PositionScale",
                                                                                 "StateScan",
                                                                                 "TokenInput",
                                                                                 "Keep",
                                                                                 "CompressKeys",
                                                                                 "SharedKeyAttention",
                                                                                 "ReadStreams",
                                                                                 "WriteStreams",
                                                                                 "TokenRoute"};
static_assert(!kOpNames.back().empty(), "every op of BlockOp has its name here, in that order");

std::string title_of(const BlockOp& op) {
  std::string s(kOpNames[op.index()]);
  if (const auto* n = std::get_if<Norm>(&op)) s += " " + n->name;
  if (const auto* n = std::get_if<Scale>(&op)) s += " " + n->name;
  if (const auto* n = std::get_if<Linears>(&op)) s += " " + n->items.front().name;
  if (const auto* n = std::get_if<Project>(&op)) s += " " + n->name;
  return s;
}

struct Value {
  enum class Is : uint8_t {
    other,   // of features that mean something
    stream,  // the residual stream, or what a scalar multiplied it by
    normed,  // the stream over its root mean square, times the weight of `norm`
    branch   // what the linears `writers` made, and scalars and sums made of that
  } is = Is::other;
  std::string norm{};
  NormKind kind = NormKind::rms;
  std::set<std::string> writers{};
  std::string made_by{};
};
using Is = Value::Is;

class Walk {
 public:
  Walk(const ModelSpec& spec, const std::vector<BlockOp>& ops) : spec_(spec), ops_(ops) {
    values_[Slot::x].is = Is::stream;
  }

  TurnedTensors run(std::string& why_not) {
    for (const BlockOp& op : ops_) {
      title_ = title_of(op);
      std::visit([&](const auto& o) { see(o, op); }, op);
      if (!why_not_.empty()) break;
    }
    for (const std::string& name : added_)
      if (plain_.count(name)) refuse(name + " is added to the residual stream and read by another op too");
    for (const std::string& name : added_) {
      tensors_[name + ".weight"].writes = true;
      if (biased_.count(name)) tensors_[name + ".bias"].writes = true;
    }
    why_not = why_not_;
    if (why_not.empty()) turn_heads();
    return std::move(tensors_);
  }

 private:
  void refuse(const std::string& why) {
    if (why_not_.empty()) why_not_ = why;
  }

  void see(const Norm& n, const BlockOp& op) {
    const Value in = values_[n.in];
    if (in.is != Is::stream) return plain(op);
    if (n.out == Slot::x) return refuse(title_ + " stands in the residual stream");
    if (n.kind == NormKind::layer) return refuse(title_ + " takes a mean away, which a rotation does not keep");
    const std::string tensor = n.name + (n.bare ? "" : ".weight");
    values_[n.out] = {.is = Is::normed, .norm = tensor, .kind = n.kind, .made_by = title_};
    tensors_[tensor] = {.becomes_one = true, .one = 1 - weight_offset(n.kind)};
  }
  void see(const Linears& l, const BlockOp&) {
    const Value in = values_[l.in];
    use(in);
    for (const LinearDef& def : l.items) {
      read(def.name, in);
      if (def.out == Slot::x) return refuse(def.name + " writes the residual stream itself");
      made(def.out, def);
    }
  }
  void see(const Moe& m, const BlockOp& op) {
    const Value in = values_[m.in], routed = values_[m.routed()];
    use(in);
    if (m.router.empty()) return plain(op);
    read(m.router, routed);
    Value out{.is = Is::branch, .made_by = title_};
    for (int e = 0; e < m.experts; ++e) {
      for (const LinearDef& def : m.wide_of(e)) read(def.name, in);
      const LinearDef down = m.of_expert(m.down, e);
      out.writers.insert(down.name);
      if (down.bias) biased_.insert(down.name);
    }
    values_[m.out] = std::move(out);
  }
  void see(const Project& p, const BlockOp& op) {
    const Value in = values_[p.in];
    if (p.groups != 1) return plain(op);
    use(in);
    read(p.name, in);
    values_[p.out] = {.is = Is::branch, .writers = {p.name}, .made_by = title_};
  }
  void see(const Scale& s, const BlockOp& op) {
    if (s.features != 1) plain(op);
  }
  void see(const SigmoidGate& g, const BlockOp& op) {
    if (slot_features(spec_, ops_, g.gate) != 1 || values_[g.in].is != Is::branch) return plain(op);
    use(values_[g.gate]);
    values_[g.out] = values_[g.in];
  }
  void see(const AddTo& a, const BlockOp& op) {
    const Value in = values_[a.in];
    Value& out = values_[a.out];
    if (out.is == Is::stream) {
      if (in.is == Is::branch)
        added_.insert(in.writers.begin(), in.writers.end());
      else
        refuse(fmt::format("{} stands between a branch and the residual stream",
                           in.made_by.empty() ? title_ : in.made_by));
    } else if (in.is == Is::branch && out.is == Is::branch) {
      out.writers.insert(in.writers.begin(), in.writers.end());
    } else {
      plain(op);
    }
  }
  // Every other op works on features by their place.
  template <class Op>
  void see(const Op&, const BlockOp& op) {
    plain(op);
  }

  void plain(const BlockOp& op) {
    for (const Slot s : slots_read(op)) {
      const Value& v = values_[s];
      if (v.is == Is::stream || v.is == Is::normed)
        return refuse(title_ + " reads the residual stream feature by feature");
      plain_.insert(v.writers.begin(), v.writers.end());
    }
    for (const Slot s : slots_written(op)) {
      if (s == Slot::x) return refuse(title_ + " writes the residual stream");
      values_[s] = {.made_by = title_};
    }
  }
  // Whether what linears make of one another is added to the stream somewhere does not matter here.
  void use(const Value& v) {
    if (v.is == Is::branch) plain_.insert(v.writers.begin(), v.writers.end());
  }
  void read(const std::string& linear, const Value& v) {
    if (v.is != Is::stream && v.is != Is::normed) return;
    TurnedTensor& t = tensors_[linear + ".weight"];
    t.reads = true;
    t.norm = v.norm;
    t.norm_offset = v.norm.empty() ? 0 : weight_offset(v.kind);
  }
  void made(Slot slot, const LinearDef& def) {
    values_[slot] = {.is = Is::branch, .writers = {def.name}, .made_by = def.name};
    if (def.bias) biased_.insert(def.name);
  }

  // A weighted mean of values is linear in them, so that what reads it can turn them back: where no gate tells their
  // features apart, and where they are rows of their own.
  void turn_heads() {
    for (const Absorber& a : absorbers_of(ops_)) {
      if (a.head_dim <= 1 || a.kind != Absorber::Kind::linear_rows || !a.routers.empty()) continue;
      if (a.gated || a.head_rows > 0) continue;
      tensors_[a.name + ".weight"].heads_out = a.head_dim;
      if (biased_.count(a.name)) tensors_[a.name + ".bias"].heads_out = a.head_dim;
      for (const LinearDef& l : a.linears) tensors_[l.name + ".weight"].heads_in = a.head_dim;
    }
  }

  const ModelSpec& spec_;
  const std::vector<BlockOp>& ops_;
  std::map<Slot, Value> values_{};
  TurnedTensors tensors_{};
  std::set<std::string> added_{}, plain_{}, biased_{};
  std::string title_{}, why_not_{};
};

}  // namespace

TurnedTensors turned_tensors(const ModelSpec& spec, const std::vector<BlockOp>& ops, std::string& why_not) {
  return Walk(spec, ops).run(why_not);
}

}  // namespace fewbit

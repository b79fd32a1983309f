#include "src/model/parallel/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace fewbit {
namespace {

// Into how many pieces the features of each slot are divided: 1 = whole. Fewer pieces than ranks: each piece has
// several ranks.
using Pieces = std::array<int, kSlots>;

int& at(Pieces& pieces, Slot s) { return pieces[static_cast<size_t>(s)]; }
int at(const Pieces& pieces, Slot s) { return pieces[static_cast<size_t>(s)]; }

Range piece_of(int64_t features, int pieces, RankPart part) {
  const int64_t index = int64_t{part.rank} * pieces / part.ranks, each = features / pieces;
  return {index * each, (index + 1) * each};
}

int kv_pieces(const Attention& a, int ranks) { return std::min(a.kv_heads, ranks); }

// One step backwards or sideways from slots that are known to be divided.
void spread(const BlockOp& op, Pieces& pieces) {
  if (const auto* split = std::get_if<Split>(&op))
    for (const SplitPart& p : split->parts) at(pieces, split->in) = std::max(at(pieces, split->in), at(pieces, p.out));
  if (const auto* gate = std::get_if<SigmoidGate>(&op)) {
    at(pieces, gate->out) = at(pieces, gate->in);
    at(pieces, gate->gate) = std::max(at(pieces, gate->gate), at(pieces, gate->in));
  }
}

// What attention and the gated activations work on is divided, and whatever that is taken from.
Pieces pieces_of(const std::vector<BlockOp>& block, int ranks) {
  Pieces pieces;
  pieces.fill(1);
  for (const BlockOp& op : block) {
    if (const auto* a = std::get_if<Attention>(&op)) {
      at(pieces, a->q) = at(pieces, a->out) = ranks;
      at(pieces, a->k) = at(pieces, a->v) = kv_pieces(*a, ranks);
    }
    if (const auto* a = std::get_if<LatentAttention>(&op))
      at(pieces, a->q_nope) = at(pieces, a->q_rope) = at(pieces, a->kv) = at(pieces, a->out) = ranks;
    if (const auto* g = std::get_if<GatedAct>(&op))
      at(pieces, g->gate) = at(pieces, g->up) = at(pieces, g->out) = ranks;
  }
  for (auto op = block.rbegin(); op != block.rend(); ++op) spread(*op, pieces);
  return pieces;
}

const Split* split_of(const std::vector<BlockOp>& block, Slot in) {
  for (const BlockOp& op : block)
    if (const auto* s = std::get_if<Split>(&op); s && s->in == in) return s;
  return nullptr;
}

// The rows of a linear that writes `out`, of `features` outputs.
std::vector<Range> rows_of(const std::vector<BlockOp>& block, const Pieces& pieces, Slot out, int64_t features,
                           RankPart part) {
  const Split* split = split_of(block, out);
  if (!split || split->groups > 1) return {piece_of(features, at(pieces, out), part)};
  std::vector<Range> rows;
  int64_t begin = 0;
  for (const SplitPart& p : split->parts) {
    const Range piece = piece_of(p.features, at(pieces, p.out), part);
    rows.push_back({begin + piece.begin, begin + piece.end});
    begin += p.features;
  }
  return rows;
}

// An op in the widths of one rank.
struct Narrow {
  const std::vector<BlockOp>& block;
  const Pieces& pieces;
  RankPart part;

  template <class Op>
  void operator()(Op&) const {}  // the same on every rank
  void operator()(Linears& op) const {
    op.summed = at(pieces, op.in) > 1;
    for (LinearDef& l : op.items) {
      const LinearShare share = share_of(block, l, part);
      l.out_features = share.out(), l.in_features = share.in();
    }
  }
  void operator()(Split& op) const {
    for (SplitPart& p : op.parts) p.features /= at(pieces, p.out);
    if (op.groups > 1) op.groups /= at(pieces, op.in);
  }
  void operator()(Attention& op) const {
    const auto heads = heads_of(op, part).size(), kv_heads = kv_heads_of(op, part).size();
    op.heads = static_cast<int>(heads), op.kv_heads = static_cast<int>(kv_heads);
  }
  void operator()(LatentAttention& op) const { op.heads /= part.ranks; }
  void operator()(Moe& op) const { op = experts_of_rank(op, part); }
};

// What stands against dividing the ops of a block.
struct Refusals {
  const ModelSpec& spec;
  const std::vector<BlockOp>& block;
  const Pieces& pieces;
  int ranks;
  std::vector<std::string>& reasons;

  void add(std::string reason) const {
    if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) reasons.push_back(std::move(reason));
  }
  bool divided(Slot s) const { return at(pieces, s) > 1; }
  void must_be_whole(std::initializer_list<Slot> slots, const std::string& op) const {
    for (const Slot s : slots)
      if (divided(s)) add(fmt::format("{} needs the whole of \"{}\", of which a rank has a part", op, name_of(s)));
  }
  void must_divide(int64_t count, const std::string& what) const {
    if (count % ranks != 0) add(fmt::format("{} {} are no multiple of {}", count, what, ranks));
  }

  void operator()(const Norm& op) const { must_be_whole({op.in, op.out}, op.name); }
  void operator()(const Linears& op) const {
    for (const LinearDef& l : op.items)
      if (divided(op.in)) must_be_whole({l.out}, l.name);
  }
  void operator()(const Project& op) const { must_be_whole({op.in, op.out}, op.name); }
  void operator()(const Split& op) const {
    for (const SplitPart& p : op.parts)
      if (divided(op.in) && (p.at != 0 || (op.groups > 1 && at(pieces, p.out) != at(pieces, op.in))))
        must_be_whole({op.in}, fmt::format("taking \"{}\" apart", name_of(op.in)));
    if (divided(op.in) && op.groups > 1) must_divide(op.groups, "groups of outputs of a fused linear");
  }
  void operator()(const HeadNorm& op) const {
    const int64_t own = slot_features(spec, block, op.slot) / at(pieces, op.slot);
    if (own % op.head_dim != 0) add(fmt::format("{} norms all heads at once, of which a rank has a part", op.name));
  }
  void operator()(const Attention& op) const {
    must_divide(op.heads, "heads");
    if (op.kv_heads % ranks != 0 && ranks % op.kv_heads != 0)
      add(fmt::format("{} key/value heads are neither a multiple of {} nor a divisor of it", op.kv_heads, ranks));
    if (!op.own_keys()) add("layers that read the keys and values of another one are not divided");
  }
  void operator()(const LatentAttention& op) const {
    must_divide(op.heads, "heads");
    must_be_whole({op.k_rope, op.latent}, op.kv_b);
  }
  void operator()(const KeyChoice& op) const { must_be_whole({op.q, op.k, op.weights}, "the choice of keys"); }
  void operator()(const BiasedNorm& op) const { must_be_whole({op.slot}, op.name); }
  void operator()(const GatedAct& op) const {
    must_divide(slot_features(spec, block, op.gate), "features inside the MLP");
  }
  void operator()(const SigmoidGate& op) const {
    const int64_t gates = slot_features(spec, block, op.gate);
    if (gates > 1 && at(pieces, op.gate) != at(pieces, op.in)) must_be_whole({op.gate, op.in}, "a gate");
  }
  void operator()(const AddTo& op) const { must_be_whole({op.in, op.out}, "an addition"); }
  void operator()(const Moe& op) const {
    must_be_whole({op.in, op.out, op.routed()}, op.router);
    must_divide(op.experts, "experts");
  }
  void operator()(const Scale& op) const {
    if (op.features > 1) must_be_whole({op.slot}, op.name);
  }
  void operator()(const SharedKeyAttention&) const { add("attention over shared keys is not divided"); }
  void operator()(const TokenInput& op) const { must_be_whole({op.out}, op.table); }
  template <class Op>
  void operator()(const Op&) const {}  // nothing: a rotation and a factor, whatever they work on
};

bool recurrent(const BlockOp& op) {
  return std::holds_alternative<ShortConv>(op) || std::holds_alternative<DeltaRule>(op) ||
         std::holds_alternative<StateScan>(op);
}

// Reason -> the packed linears that it holds for.
std::map<std::string, std::vector<std::string>> packed_refusals(const Checkpoint& c, int ranks) {
  std::map<std::string, std::vector<std::string>> found;
  for (int64_t layer = 0; layer < c.spec.layers; ++layer)
    for (const BlockOp& op : c.spec.block(layer))
      for (const LinearDef& l : linears_of(op)) {
        const std::string name = c.spec.prefix(layer) + l.name;
        const auto format = c.quantization.linears.find(name);
        if (format == c.quantization.linears.end() || std::holds_alternative<Moe>(op)) continue;
        for (int rank = 0; rank < ranks; ++rank) {
          const LinearShare share = share_of(c.spec.block(layer), l, {rank, ranks});
          const std::string why =
              share_refusal(format->second.spec, format->second.act_order, l.out_features, l.in_features, share);
          if (why.empty()) continue;
          found[why].push_back(name);
          break;
        }
      }
  return found;
}

}  // namespace

std::vector<std::string> refuses_ranks(const Checkpoint& c, int ranks) {
  std::vector<std::string> reasons;
  if (ranks == 1) return reasons;
  for (const std::vector<BlockOp>& block : c.spec.kinds) {
    const Pieces pieces = pieces_of(block, ranks);
    const Refusals refusals{c.spec, block, pieces, ranks, reasons};
    if (std::any_of(block.begin(), block.end(), recurrent))
      refusals.add("its recurrent layers (short convolution, gated delta rule, state scan) are not divided");
    else
      for (const BlockOp& op : block) std::visit(refusals, op);
  }
  if (!reasons.empty()) return reasons;
  for (const auto& [why, names] : packed_refusals(c, ranks))
    reasons.push_back(names.size() == 1 ? fmt::format("{}: {}", names[0], why)
                                        : fmt::format("{} linears ({} first): {}", names.size(), names[0], why));
  return reasons;
}

ModelSpec spec_of_rank(const ModelSpec& whole, RankPart part) {
  ModelSpec spec = whole;
  if (part.alone()) return spec;
  for (size_t kind = 0; kind < spec.kinds.size(); ++kind) {
    const Pieces pieces = pieces_of(whole.kinds[kind], part.ranks);
    for (BlockOp& op : spec.kinds[kind]) std::visit(Narrow{whole.kinds[kind], pieces, part}, op);
  }
  return spec;
}

LinearShare share_of(const std::vector<BlockOp>& block, const LinearDef& l, RankPart part) {
  LinearShare share = whole_share(l.out_features, l.in_features);
  if (part.alone()) return share;
  const Pieces pieces = pieces_of(block, part.ranks);
  for (const BlockOp& op : block) {
    const auto* group = std::get_if<Linears>(&op);
    if (!group) continue;
    for (const LinearDef& item : group->items) {
      if (item.name != l.name) continue;
      share.rows = rows_of(block, pieces, item.out, item.out_features, part);
      share.columns = piece_of(item.in_features, at(pieces, group->in), part);
      share.bias = at(pieces, group->in) == 1 || part.rank == 0;
      return share;
    }
  }
  return share;
}

Moe experts_of_rank(const Moe& op, RankPart part) {
  Moe own = op;
  if (part.alone()) return own;
  const Range experts = piece_of(op.experts, part.ranks, part);
  own.own_begin = static_cast<int>(experts.begin), own.own_end = static_cast<int>(experts.end);
  return own;
}

Range heads_of(const Attention& a, RankPart part) { return piece_of(a.heads, part.ranks, part); }
Range kv_heads_of(const Attention& a, RankPart part) { return piece_of(a.kv_heads, kv_pieces(a, part.ranks), part); }

}  // namespace fewbit

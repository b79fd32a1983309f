#include "src/run/plan/step_bytes.h"

#include <algorithm>
#include <numeric>

namespace fewbit {
namespace {

// Elements of the small tensors of an op on a rank, by the key under which BlockWeights has them, in bytes.
void add_small(const BlockOp& op, const ModelSpec& spec, DType compute, RankPart part,
               std::map<std::string, int64_t>& bytes) {
  if (const auto* n = std::get_if<HeadNorm>(&op); n && n->name.empty())
    bytes.emplace(n->name, n->head_dim * bytes_of(compute));
  if (const auto* t = std::get_if<TokenInput>(&op))
    bytes.emplace(t->table, spec.vocab * t->features * bytes_of(compute));
  const auto* attention = std::get_if<Attention>(&op);
  for (const SmallTensor& t : small_tensors_of(op)) {
    const int64_t n = attention ? heads_of(*attention, part).size() : t.shape.numel();  // an attention has sinks alone
    bytes.emplace(t.key(), n * (t.below > 0 || t.exact ? 4 : bytes_of(compute)));
  }
}

int64_t in_sight(const Attention& a, int64_t context) {
  return a.window > 0 ? std::min(context, a.window) : a.chunk > 0 ? std::min(context, a.chunk) : context;
}

}  // namespace

BlockBytes bytes_of(const std::vector<BlockOp>& block, const BlockWeights& w) {
  BlockBytes b;
  for (const auto& [name, l] : w.linears) b.linears[name] = weight_bytes(l);
  for (const auto& [name, v] : w.vectors) b.small += v.bytes();
  for (const BlockOp& op : block)
    if (const auto* t = std::get_if<TokenInput>(&op))
      b.table = w.vectors.at(t->table).bytes(), b.table_rows = w.vectors.at(t->table).rows();
  return b;
}

BlockBytes block_bytes(const ModelSpec& whole, int64_t layer, DType compute, RankPart part, const LinearBytes& linear) {
  BlockBytes b;
  std::map<std::string, int64_t> small;
  const std::vector<BlockOp>& block = whole.block(layer);
  for (BlockOp op : block) {
    add_small(op, whole, compute, part, small);
    if (const auto* t = std::get_if<TokenInput>(&op)) b.table = small.at(t->table), b.table_rows = whole.vocab;
    const bool experts = std::holds_alternative<Moe>(op);
    if (experts) op = experts_of_rank(std::get<Moe>(op), part);
    for (const LinearDef& l : linears_of(op))
      b.linears[l.name] = linear(l, experts ? whole_share(l.out_features, l.in_features) : share_of(block, l, part));
  }
  for (const auto& [key, n] : small) b.small += n;
  return b;
}

int64_t held_bytes(const BlockBytes& b) {
  return std::accumulate(b.linears.begin(), b.linears.end(), b.small,
                         [](int64_t n, const auto& linear) { return n + linear.second; });
}

int64_t weight_bytes(const std::vector<BlockOp>& block, const BlockBytes& b, int64_t tokens) {
  int64_t total = b.small;
  if (b.table_rows > 0) total -= b.table - b.table / b.table_rows * std::min(tokens, b.table_rows);
  for (const BlockOp& op : block) {
    int64_t n = 0;
    for (const LinearDef& l : linears_of(op)) n += b.linears.at(l.name);
    if (const auto* m = std::get_if<Moe>(&op)) {
      const int64_t own = m->last_own() - m->own_begin;
      n = n / own * std::min(own, (tokens * m->top_k * own + m->experts - 1) / m->experts);  // an even share of ranks
    }
    total += n;
  }
  return total;
}

int64_t cache_bytes(const ModelSpec& spec, LayerRange layers, KvType type, DType compute, int64_t context, bool read) {
  int64_t n = 0;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    const std::vector<BlockOp>& block = spec.block(layer);
    if (const Attention* a = read ? attention_of(block) : own_attention_of(block))
      n += read            ? kv_read_bytes(*a, type, compute, context, in_sight(*a, context))
           : is_kivi(type) ? kv_held_bytes(*a, type, compute, context)  // it is in one piece, never in pages
                           : kv_bytes(*a, type, compute) * in_sight(*a, context);
    n += latent_bytes(block, type, compute) * context + recurrent_bytes(block, compute);
  }
  return n;
}

int64_t position_bytes(const ModelSpec& spec, KvType type, DType compute) {
  int64_t n = 0;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::vector<BlockOp>& block = spec.block(layer);
    if (const Attention* a = own_attention_of(block)) n += kv_bytes(*a, type, compute);
    n += latent_bytes(block, type, compute);
  }
  return n;
}

int64_t contiguous_cache_bytes(const ModelSpec& spec, LayerRange layers, KvType type, DType compute, int64_t capacity) {
  int64_t n = 0;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    const std::vector<BlockOp>& block = spec.block(layer);
    if (const Attention* a = own_attention_of(block)) n += kv_held_bytes(*a, type, compute, capacity);
    n += latent_bytes(block, type, compute) * capacity + recurrent_bytes(block, compute);
  }
  return n;
}

std::array<int64_t, kSlots> widest_slots(const ModelSpec& spec) {
  std::array<int64_t, kSlots> widest{};
  for (const std::vector<BlockOp>& block : spec.kinds)
    for (size_t s = 1; s < widest.size(); ++s)  // 0 is x
      widest[s] = std::max(widest[s], slot_features(spec, block, static_cast<Slot>(s)));
  return widest;
}

int64_t activation_bytes(const ModelSpec& spec, DType compute, int64_t batch, int64_t chunk) {
  const std::array<int64_t, kSlots> widest = widest_slots(spec);
  const int64_t slots = std::accumulate(widest.begin(), widest.end(), int64_t{0}), elem = bytes_of(compute);
  return elem * ((chunk + batch) * slots + (chunk + 2 * batch) * spec.width() + batch * spec.hidden) +
         4 * batch * (spec.vocab + 2);
}

}  // namespace fewbit

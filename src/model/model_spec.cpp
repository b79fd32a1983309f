// What follows from a ModelSpec without looking at an architecture's name: the linears, the dense tensors,
// the widths of slots, and what a checkpoint lacks.
#include "src/model/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/core/strings.h"
#include "src/model/weight_store.h"

namespace fewbit {
namespace {

template <class Op>
const Op* find_op(const std::vector<BlockOp>& block) {
  for (const BlockOp& op : block)
    if (const Op* found = std::get_if<Op>(&op)) return found;
  return nullptr;
}

// An op with two tables; layers that have two share the limit.
const Rope* long_rope(const ModelSpec& spec) {
  for (const std::vector<BlockOp>& block : spec.kinds)
    for (const BlockOp& op : block)
      if (const Rope* r = std::get_if<Rope>(&op); r && r->params.original_positions > 0) return r;
  return nullptr;
}

// The columns of a slot that a Split fills; 0 where it leaves the slot alone.
int64_t end_of(const Split& split, Slot slot) {
  int64_t end = 0;
  for (const SplitPart& p : split.parts)
    if (p.out == slot) end = std::max(end, p.at + p.features);
  return end;
}

int64_t elements(const std::vector<NamedDense>& tensors) {
  int64_t n = 0;
  for (const NamedDense& t : tensors) n += t.shape.numel();
  return n;
}

}  // namespace

const char* name_of(Slot s) {
  static constexpr const char* kNames[kSlots] = {"x",
                                                 "h",
                                                 "q",
                                                 "k",
                                                 "v",
                                                 "attn",
                                                 "gate",
                                                 "up",
                                                 "act",
                                                 "qkv",
                                                 "gate_up",
                                                 "fused",
                                                 "z",
                                                 "conv",
                                                 "beta",
                                                 "decay",
                                                 "rates",
                                                 "shared",
                                                 "share",
                                                 "route",
                                                 "conv_k",
                                                 "conv_v",
                                                 "q_latent",
                                                 "latent",
                                                 "q_nope",
                                                 "q_rope",
                                                 "k_rope",
                                                 "kv",
                                                 "index_q",
                                                 "index_k",
                                                 "index_weights",
                                                 "token",
                                                 "near_k",
                                                 "near_v",
                                                 "far_k",
                                                 "far_v",
                                                 "mix",
                                                 "block_k",
                                                 "block_gate",
                                                 "block_key",
                                                 "index_block_k",
                                                 "index_block_gate"};
  FEWBIT_ASSERT(s < Slot::count);
  return kNames[static_cast<size_t>(s)];
}

const Attention* attention_of(const std::vector<BlockOp>& block) { return find_op<Attention>(block); }
const LatentAttention* latent_attention_of(const std::vector<BlockOp>& block) {
  return find_op<LatentAttention>(block);
}
const KeyChoice* key_choice_of(const std::vector<BlockOp>& block) { return find_op<KeyChoice>(block); }
const SharedKeyAttention* shared_key_attention_of(const std::vector<BlockOp>& block) {
  return find_op<SharedKeyAttention>(block);
}
bool attends(const BlockOp& op) {
  return std::holds_alternative<Attention>(op) || std::holds_alternative<SharedKeyAttention>(op) ||
         std::holds_alternative<LatentAttention>(op);
}

const Attention* own_attention_of(const std::vector<BlockOp>& block) {
  const Attention* a = attention_of(block);
  return a && a->own_keys() ? a : nullptr;
}

std::string attention_module(const std::vector<BlockOp>& block) {
  const Attention* a = attention_of(block);
  for (const BlockOp& op : block)
    for (const LinearDef& l : linears_of(op))
      if (a && l.out == fused_source(block, a->k)) return l.name.substr(0, l.name.rfind('.'));
  bug("a block without a linear that makes keys");
}

const TokenInput* token_input_of(const ModelSpec& spec) {
  for (const std::vector<BlockOp>& block : spec.kinds)
    if (const TokenInput* t = find_op<TokenInput>(block)) return t;
  return nullptr;
}

bool reads_tokens(const ModelSpec& spec) {
  return token_input_of(spec) ||
         std::any_of(spec.kinds.begin(), spec.kinds.end(),
                     [](const std::vector<BlockOp>& block) { return find_op<TokenRoute>(block) != nullptr; });
}

int64_t keys_layer(const ModelSpec& spec, int64_t layer) {
  const Attention* a = attention_of(spec.block(layer));
  return a && !a->own_keys() ? a->keys_of_layer : layer;
}

bool keeps_slots(const ModelSpec& spec) {
  return std::any_of(spec.kinds.begin(), spec.kinds.end(),
                     [](const std::vector<BlockOp>& block) { return find_op<Keep>(block) != nullptr; });
}

bool has_state(const ModelSpec& spec) {
  return std::any_of(spec.kinds.begin(), spec.kinds.end(), [](const std::vector<BlockOp>& block) {
    return find_op<DeltaRule>(block) || find_op<StateScan>(block);
  });
}

int64_t choice_that_lasts(const ModelSpec& spec) {
  int64_t most = 0;
  bool lasts = false;
  for (const std::vector<BlockOp>& block : spec.kinds) {
    const KeyChoice* choice = key_choice_of(block);
    const LatentAttention* attention = latent_attention_of(block);
    if (choice) most = std::max(most, choice->top_k);
    lasts |= attention && attention->chosen && !choice;
  }
  return lasts ? most : 0;
}

bool turns_long(const ModelSpec& spec, int64_t longest) {
  const Rope* rope = long_rope(spec);
  return rope && rope->params.turns_long(longest);
}

std::string long_rope_line(const ModelSpec& spec, int64_t longest) {
  const Rope* rope = long_rope(spec);
  if (!rope) return "";
  return fmt::format("LongRoPE: the {} table, that of sequences of {} {} positions",
                     rope->params.turns_long(longest) ? "long" : "short",
                     rope->params.turns_long(longest) ? "more than" : "up to", rope->params.original_positions);
}

Slot fused_source(const std::vector<BlockOp>& block, Slot slot) {
  for (const BlockOp& op : block)
    if (const Split* split = std::get_if<Split>(&op))
      for (const SplitPart& p : split->parts)
        if (p.out == slot) return split->in;
  return slot;
}

std::vector<LinearDef> linears_of(const BlockOp& op) {
  if (const Linears* group = std::get_if<Linears>(&op)) return group->items;
  std::vector<LinearDef> out;
  if (const Moe* moe = std::get_if<Moe>(&op))
    for (int e = moe->own_begin; e < moe->last_own(); ++e)
      for (LinearDef& l : moe->linears_of_expert(e)) out.push_back(std::move(l));
  return out;
}

std::string SmallTensor::key() const { return ends_with(name, ".weight") ? name.substr(0, name.size() - 7) : name; }

std::vector<SmallTensor> small_tensors_of(const BlockOp& op) {
  if (const Norm* n = std::get_if<Norm>(&op)) return {{n->name + (n->bare ? "" : ".weight"), {n->features}}};
  if (const HeadNorm* n = std::get_if<HeadNorm>(&op)) {
    if (n->name.empty()) return {};
    return {{n->name + ".weight", {n->head_dim}}};
  }
  if (const Attention* a = std::get_if<Attention>(&op); a && !a->sinks.empty()) return {{a->sinks, {a->heads}, true}};
  if (const Scale* s = std::get_if<Scale>(&op)) return {{s->name, {s->features}, true}};
  if (const SharedKeyAttention* a = std::get_if<SharedKeyAttention>(&op)) return {{a->sinks, {a->heads}, true}};
  if (const CompressKeys* c = std::get_if<CompressKeys>(&op))
    return {{c->name + ".ape", {c->every, c->width()}, true}, {c->name + ".norm.weight", {c->head_dim}}};
  if (const ReadStreams* r = std::get_if<ReadStreams>(&op)) {
    const int64_t rows = (2 + r->streams) * r->streams;
    return {{r->name + "_fn", {rows, r->streams * r->hidden}, true},
            {r->name + "_base", {rows}, true},
            {r->name + "_scale", {3}, true}};
  }
  if (const TokenRoute* r = std::get_if<TokenRoute>(&op))
    return {{r->router + ".weight", {r->experts, r->hidden}}, {r->table, {r->vocab, r->top_k}, false, r->experts}};
  if (const Moe* m = std::get_if<Moe>(&op)) {
    if (m->router.empty()) return {};
    std::vector<SmallTensor> out = {{m->router + ".weight", {m->experts, m->hidden}}};
    if (m->router_bias) out.push_back({m->router + ".bias", {m->experts}});
    if (!m->correction.empty()) out.push_back({m->correction, m->correction_shape, true});
    if (!m->expert_scale.empty()) out.push_back({m->expert_scale, {m->experts}, true});
    return out;
  }
  if (const Project* p = std::get_if<Project>(&op)) return {{p->name + ".weight", {p->out_features, p->in_features}}};
  if (const ShortConv* c = std::get_if<ShortConv>(&op)) {
    std::vector<SmallTensor> out = {{c->name + ".weight", {c->channels, 1, c->taps}, true}};
    if (c->bias) out.push_back({c->name + ".bias", {c->channels}, true});
    return out;
  }
  if (const StateScan* s = std::get_if<StateScan>(&op))
    return {{s->a_log, {s->heads}, true}, {s->dt_bias, {s->heads}, true}, {s->d, {s->heads}, true}};
  if (const DeltaRule* d = std::get_if<DeltaRule>(&op))
    return {{d->a_log, d->a_log_shape.rank() > 0 ? d->a_log_shape : Shape{d->v_heads}, true},
            {d->dt_bias, {d->rates()}, true}};
  if (const BiasedNorm* n = std::get_if<BiasedNorm>(&op))
    return {{n->name + ".weight", {n->features}}, {n->name + ".bias", {n->features}}};
  return {};
}

std::vector<NamedLinear> linears_of(const ModelSpec& spec) {
  std::vector<NamedLinear> out;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const BlockOp& op : spec.block(layer))
      for (const LinearDef& l : linears_of(op))
        out.push_back({spec.prefix(layer) + l.name, layer, l.out_features, l.in_features, l.bias});
  return out;
}

std::vector<NamedLinear> ends_of(const ModelSpec& spec) {
  std::vector<NamedLinear> out;
  for (const std::string* weight : {&spec.embed, &spec.lm_head})
    if (out.empty() || !spec.tied())
      out.push_back({weight->substr(0, weight->rfind('.')), kOutsideBlocks, spec.vocab, spec.hidden, false});
  return out;
}

std::vector<NamedDense> dense_tensors_of(const ModelSpec& spec) {
  std::vector<NamedDense> out = {{spec.embed, {spec.vocab, spec.hidden}}};
  if (const TokenInput* t = token_input_of(spec)) {
    out.push_back({t->table, {spec.vocab, t->layers * t->features}});
    out.push_back({t->projection, {t->layers * t->features, spec.hidden}});
    out.push_back({t->norm, {t->features}});
  }
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string prefix = spec.prefix(layer);
    for (const BlockOp& op : spec.block(layer)) {
      for (const SmallTensor& t : small_tensors_of(op)) out.push_back({prefix + t.name, t.shape, t.below});
      for (const LinearDef& l : linears_of(op))
        if (l.bias) out.push_back({prefix + l.name + ".bias", {l.out_features}});
    }
  }
  if (spec.streams > 1) {
    out.push_back({spec.streams_name + "_fn", {spec.streams, spec.width()}});
    out.push_back({spec.streams_name + "_base", {spec.streams}});
    out.push_back({spec.streams_name + "_scale", {1}});
  }
  out.push_back({spec.final_norm, {spec.hidden}});
  if (!spec.tied()) out.push_back({spec.lm_head, {spec.vocab, spec.hidden}});
  return out;
}

std::vector<std::string> routers_of(const ModelSpec& spec) {
  std::vector<std::string> out;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const BlockOp& op : spec.block(layer))
      if (const Moe* m = std::get_if<Moe>(&op); m && !m->router.empty())
        out.push_back(spec.prefix(layer) + m->router);
      else if (const TokenRoute* r = std::get_if<TokenRoute>(&op))
        out.push_back(spec.prefix(layer) + r->router);
      else if (const Project* p = std::get_if<Project>(&op))
        out.push_back(spec.prefix(layer) + p->name);
  return out;
}

int64_t slot_features(const ModelSpec& spec, const std::vector<BlockOp>& block, Slot slot) {
  if (slot == Slot::x) return spec.width();
  for (const BlockOp& op : block) {
    if (const Norm* n = std::get_if<Norm>(&op); n && n->out == slot) return n->features;
    if (const Linears* group = std::get_if<Linears>(&op))
      for (const LinearDef& l : group->items)
        if (l.out == slot) return l.out_features;
    if (const Split* split = std::get_if<Split>(&op))
      if (const int64_t end = end_of(*split, slot)) return end;
    if (const Project* p = std::get_if<Project>(&op); p && p->out == slot) return p->out_features;
    if (const ShortConv* c = std::get_if<ShortConv>(&op); c && c->out == slot) return c->channels;
    if (const DeltaRule* d = std::get_if<DeltaRule>(&op); d && d->out == slot) return d->v_heads * d->v_dim;
    if (const StateScan* s = std::get_if<StateScan>(&op); s && s->out == slot) return s->heads * s->head_dim;
    if (const CompressKeys* c = std::get_if<CompressKeys>(&op); c && c->out == slot) return c->head_dim;
    if (const SharedKeyAttention* a = std::get_if<SharedKeyAttention>(&op); a && a->out == slot)
      return a->heads * a->head_dim;
    if (const ReadStreams* r = std::get_if<ReadStreams>(&op)) {
      if (r->out == slot) return r->hidden;
      if (r->mix == slot) return r->streams + r->streams * r->streams;
    }
    if (const TokenRoute* r = std::get_if<TokenRoute>(&op); r && r->out == slot) return r->experts;
    if (const Keep* kept = std::get_if<Keep>(&op))
      for (size_t i = 0; i < kept->slots.size(); ++i)
        if (kept->slots[i] == slot) return kept->features[i];
    if (const TokenInput* t = std::get_if<TokenInput>(&op); t && t->out == slot) return t->features;
    if (const SigmoidGate* g = std::get_if<SigmoidGate>(&op); g && g->out == slot && g->in != slot)
      return slot_features(spec, block, g->in);
    if (const LatentAttention* a = std::get_if<LatentAttention>(&op); a && a->out == slot) return a->heads * a->value;
    if (const Attention* a = std::get_if<Attention>(&op)) {
      if (a->out == slot) return a->heads * a->head_dim;
      if (!a->own_keys() && (a->k == slot || a->v == slot)) return a->kv_heads * a->head_dim;
    }
    if (const GatedAct* g = std::get_if<GatedAct>(&op); g && g->out == slot) return slot_features(spec, block, g->gate);
    if (const Moe* m = std::get_if<Moe>(&op); m && m->out == slot) return m->hidden;
  }
  return 0;  // the block does not use this slot
}

std::vector<std::string> check_against(const ModelSpec& spec, const WeightStore& store,
                                       const std::vector<std::string>& packed) {
  const std::set<std::string> in_packed_form(packed.begin(), packed.end());
  std::vector<NamedDense> wanted;
  for (NamedDense& t : dense_tensors_of(spec))
    if (!in_packed_form.count(t.name.substr(0, t.name.rfind('.')))) wanted.push_back(std::move(t));
  for (const NamedLinear& l : linears_of(spec))
    if (!in_packed_form.count(l.name)) wanted.push_back({l.name + ".weight", {l.out, l.in}});
  std::vector<std::string> complaints;
  for (const NamedDense& t : wanted) {
    const TensorInfo* found = store.find(t.name);
    if (!found) {
      complaints.push_back(fmt::format("{}: {}: missing; expected {}", store.path().string(), t.name, t.shape.str()));
      continue;
    }
    const std::string file = store.index().files[static_cast<size_t>(found->file)].path().string();
    if (t.below > 0 && found->dtype != DType::i64 && found->dtype != DType::i32)
      complaints.push_back(fmt::format("{}: {}: expected i64 or i32, found {}", file, t.name, name_of(found->dtype)));
    if (t.below == 0 && found->dtype != DType::f32 && found->dtype != DType::f16 && found->dtype != DType::bf16)
      complaints.push_back(
          fmt::format("{}: {}: expected f32, f16 or bf16, found {}", file, t.name, name_of(found->dtype)));
    if (!(found->shape == t.shape))
      complaints.push_back(
          fmt::format("{}: {}: expected shape {}, found {}", file, t.name, t.shape.str(), found->shape.str()));
  }
  return complaints;
}

int64_t parameter_count(const ModelSpec& spec) {
  int64_t n = elements(dense_tensors_of(spec));
  for (const NamedLinear& l : linears_of(spec)) n += l.out * l.in;
  return n;
}

}  // namespace fewbit

// Experts, recurrent layers and latent attention as metadata.
#include <fmt/format.h>

#include <cmath>

#include "src/model/gguf/saying.h"

namespace fewbit {
namespace {

// The features of the expert beside the others, 0 where there is none.
int64_t shared_width(const std::vector<BlockOp>& block) {
  for (const BlockOp& op : block)
    for (const LinearDef& l : linears_of(op))
      if (l.out == Slot::shared) return l.in_features;
  return 0;
}

void groups(const GgufSaying& s, const Moe& moe) {
  if (moe.groups == 1) return;
  if (moe.judges != 2) s.cannot_say("groups of experts that their best one stands for");
  s.put("expert_group_count", moe.groups);
  s.put("expert_group_used_count", moe.best_groups);
}

void router(const GgufSaying& s, const Moe& moe, const GgufExperts& e) {
  if (moe.score != e.score && !e.score_key)
    s.cannot_say(moe.score == RouterScore::sigmoid ? "scores by the logistic function" : "scores by softmax");
  if (moe.weigh_inputs != e.weigh_inputs) s.cannot_say("where the weights of experts multiply");
  if (e.score_key) s.put("expert_gating_func", gating_function(moe.score));
  if (!e.norm_key && moe.renormalise != e.renormalise)
    s.cannot_say(fmt::format("routing weights that {} (norm_topk_prob {})",
                             moe.renormalise ? "sum to 1" : "do not sum to 1", moe.renormalise));
  if (!e.norm_key && !e.scale_key) {
    if (moe.scaling != 1) s.cannot_say(fmt::format("a factor of {} on the routing weights", moe.scaling));
    if (moe.groups > 1) s.cannot_say("groups of experts");
    return;
  }
  if (e.norm_key) s.set("expert_weights_norm", moe.renormalise);
  s.set("expert_weights_scale", moe.scaling);
  groups(s, moe);
}

// Experts in every n-th layer: in all, where n is 1.
void every_step(const GgufSaying& s, const GgufExperts& e) {
  int64_t step = 1;
  while (step <= s.spec.layers && !op_of<Moe>(s.spec.block(step - 1))) ++step;
  for (int64_t layer = 0; layer < s.spec.layers; ++layer)
    if ((op_of<Moe>(s.spec.block(layer)) != nullptr) != ((layer + 1) % step == 0))
      s.cannot_say(fmt::format("layer {}: experts in other layers than every {}", layer, step));
  if (step > 1 && !e.any_step) s.cannot_say("layers with and without experts");
  s.put("interleave_moe_layer_step", step);
}

void dense_layers(const GgufSaying& s, const GgufExperts& e) {
  if (e.any_step) return every_step(s, e);
  const ModelSpec& spec = s.spec;
  if (e.anywhere) {
    for (const auto& block : spec.kinds)
      for (const BlockOp& op : block)
        if (const auto* act = std::get_if<GatedAct>(&op); act && act->act == Activation::relu && !op_of<Moe>(block))
          s.cannot_say("a layer of an MLP beside layers of experts");
    return;
  }
  int64_t dense = 0;
  while (dense < spec.layers && !op_of<Moe>(spec.block(dense))) ++dense;
  for (int64_t layer = dense; layer < spec.layers; ++layer)
    if (!op_of<Moe>(spec.block(layer))) s.cannot_say("layers without experts behind one with");
  if (dense > 0 && !e.leading_dense) s.cannot_say("layers with and without experts");
  if (e.leading_dense) s.put("leading_dense_block_count", dense);
  if (e.step_key) s.put("interleave_moe_layer_step", 1);
}

// Of a gated delta net, whose keys and values have heads of one size there.
void delta_net(const GgufSaying& s) {
  const DeltaRule* d = op_of<DeltaRule>(s.spec);
  const ShortConv* conv = op_of<ShortConv>(s.spec);
  const int64_t layers = s.spec.layers;
  if (!d || !conv) s.cannot_say("a model without layers of a delta net");
  if (d->k_dim != d->v_dim) s.cannot_say(fmt::format("keys of {} features and values of {}", d->k_dim, d->v_dim));
  s.put("ssm.conv_kernel", conv->taps);
  s.put("ssm.state_size", d->k_dim);
  s.put("ssm.group_count", d->k_heads);
  s.put("ssm.time_step_rank", d->v_heads);
  s.put("ssm.inner_size", d->v_heads * d->v_dim);
  std::vector<bool> recurrent;
  for (int64_t layer = 0; layer < layers; ++layer)
    recurrent.push_back(op_of<DeltaRule>(s.spec.block(layer)) != nullptr);
  int64_t interval = 0;
  while (interval < layers && recurrent[static_cast<size_t>(interval)]) ++interval;
  s.put("full_attention_interval", ++interval);
  for (int64_t layer = 0; layer < layers; ++layer)
    if (recurrent[static_cast<size_t>(layer)] != ((layer + 1) % interval != 0))
      return s.set("attention.recurrent_layers", gguf::Array(recurrent));
}

void state_space(const GgufSaying& s) {
  const StateScan* scan = op_of<StateScan>(s.spec);
  const ShortConv* conv = op_of<ShortConv>(s.spec);
  if (!scan || !conv) s.cannot_say("a model without layers of a state space");
  const int64_t inner = scan->heads * scan->head_dim;
  for (const auto& block : s.spec.kinds)
    for (const BlockOp& op : block)
      if (const auto* n = std::get_if<HeadNorm>(&op);
          n && op_of<StateScan>(block) && n->slot == Slot::attn && n->head_dim * scan->groups != inner)
        s.cannot_say(fmt::format("a norm over {} features of a state space of {} groups", n->head_dim, scan->groups));
  if (s.family.recurrent.twice_hidden && inner != 2 * s.spec.hidden)
    s.cannot_say(fmt::format("a state space of {} features beside a hidden size of {}", inner, s.spec.hidden));
  if (!conv->bias) s.cannot_say("a convolution without a bias");
  s.put("ssm.conv_kernel", conv->taps);
  s.put("ssm.state_size", scan->state);
  s.put("ssm.group_count", scan->groups);
  s.put("ssm.time_step_rank", scan->heads);
  s.put("ssm.inner_size", inner);
}

void recurrent(const GgufSaying& s) {
  const ShortConv* conv = op_of<ShortConv>(s.spec);
  switch (s.family.recurrent.kind) {
    case GgufRecurrent::Kind::none:
      return;
    case GgufRecurrent::Kind::state_space:
      return state_space(s);
    case GgufRecurrent::Kind::short_conv:
      if (!conv) s.cannot_say("a model without convolutions");
      if (conv->bias) s.cannot_say("a convolution with a bias");
      return s.put("shortconv.l_cache", conv->taps);
    case GgufRecurrent::Kind::channel_decay:
      const DeltaRule* d = op_of<DeltaRule>(s.spec);
      const LatentAttention* a = op_of<LatentAttention>(s.spec);
      if (!d || !a || d->v_heads != a->heads) s.cannot_say("a delta rule of other heads than attention's");
      s.put("ssm.conv_kernel", conv->taps);
      return s.put("kda.head_dim", d->k_dim);
  }
}

// Which layers make a choice of keys of their own.
void indexer(const GgufSaying& s) {
  const KeyChoice* choice = op_of<KeyChoice>(s.spec);
  if (!choice || !s.family.latent.indexer) {
    if (choice) s.cannot_say("a choice of keys");
    s.cannot_say("attention without a choice of keys");
  }
  s.put("attention.indexer.head_count", choice->heads);
  s.put("attention.indexer.key_length", choice->head_dim);
  s.put("attention.indexer.top_k", choice->top_k);
  std::vector<bool> own;
  for (int64_t layer = 0; layer < s.spec.layers; ++layer) {
    const auto& block = s.spec.block(layer);
    own.push_back(op_of<KeyChoice>(block) != nullptr);
    for (const BlockOp& op : block)
      if (const auto* r = std::get_if<Rope>(&op);
          r && r->slots.front() == Slot::index_q && r->neighbours != s.family.latent.indexer_neighbours)
        s.cannot_say(r->neighbours ? "a rotation of neighbours in the indexer" : "a rotation of halves in the indexer");
  }
  if (s.family.latent.indexer_types) return s.set("attention.indexer.types", gguf::Array(own));
  if (std::find(own.begin(), own.end(), false) != own.end()) s.cannot_say("layers that look at the keys of another");
}

void latent(const GgufSaying& s) {
  const GgufLatent& l = s.family.latent;
  const LatentAttention& a = *op_of<LatentAttention>(s.spec);
  int64_t q_rank = 0;
  for (const auto& block : s.spec.kinds)
    for (const BlockOp& op : block)
      for (const LinearDef& def : linears_of(op))
        if (def.out == Slot::q_latent) q_rank = def.out_features;
  const bool plain = s.spec.layers == l.plain_layers[0] || s.spec.layers == l.plain_layers[1] ||
                     (s.spec.layers == l.plain_wide_layers && s.spec.vocab == l.plain_vocab);
  if (!l.any_queries && plain != (q_rank == 0))
    s.cannot_say(fmt::format("queries {} a latent in a model of {} layers", plain ? "with" : "without", s.spec.layers));
  if (q_rank > 0) s.put("attention.q_lora_rank", q_rank);
  s.put("attention.kv_lora_rank", a.rank);
  s.put("attention.key_length_mla", a.nope + a.rope);
  s.put("attention.value_length_mla", a.value);
  if (l.indexer || op_of<KeyChoice>(s.spec)) indexer(s);
}

// What a token alone gives, and layers at the end that read the keys of the last two before them: one with a window and
// one that sees everything.
void token_input(const GgufSaying& s) {
  const TokenInput* t = token_input_of(s.spec);
  s.put("embedding_length_per_layer_input", t ? t->features : 0);
  int64_t shared = 0;
  for (int64_t layer = 0; layer < s.spec.layers; ++layer) {
    const Attention* a = attention_of(s.spec.block(layer));
    if (a->own_keys()) continue;
    ++shared;
    const int64_t own = layer - (shared - 1);
    if (a->keys_of_layer != own - (a->window > 0 ? 2 : 1))
      s.cannot_say(fmt::format("layer {}, which reads the keys of layer {},", layer, a->keys_of_layer));
  }
  s.put("attention.shared_kv_layers", shared);
}

}  // namespace

void say_experts(const GgufSaying& s) {
  const Moe& moe = *op_of<Moe>(s.spec);
  const GgufExperts& e = s.family.experts;
  s.put("expert_count", moe.experts);
  s.put("expert_used_count", moe.top_k);
  if (e.width_key) s.put("expert_feed_forward_length", moe.gate.out_features);
  if (moe.swiglu_limit != e.swiglu_limit) s.cannot_say(fmt::format("a swiglu_limit of {}", moe.swiglu_limit));
  router(s, moe, e);
  dense_layers(s, e);
  int64_t shared = 0;
  for (const auto& block : s.spec.kinds)
    if (op_of<Moe>(block)) shared = shared_width(block);
  if (shared == 0 || e.beside_mlp) {
    if (s.family.latent.used) s.put("expert_shared_count", 0);
    return;
  }
  s.put("expert_shared_feed_forward_length", shared);
  if (shared % moe.gate.out_features == 0) s.put("expert_shared_count", shared / moe.gate.out_features);
}

void say_mixers(const GgufSaying& s) {
  if (s.family.delta_net) delta_net(s);
  recurrent(s);
  if (s.family.latent.used) latent(s);
  if (s.family.sliding_heads) token_input(s);
}

}  // namespace fewbit

// A config as metadata. Keys: llama.cpp's gguf-py/gguf/constants.py; what its readers make of them:
// src/models.
#include "src/model/gguf/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "src/model/gguf/names.h"
#include "src/model/gguf/saying.h"

namespace fewbit {
namespace {

using nlohmann::json;

const Attention* attention_of_layer(const GgufSaying& s, int64_t layer) { return attention_of(s.spec.block(layer)); }
// Of the layers that see everything, where layers with a window have heads of their own size.
const Attention& main_attention(const GgufSaying& s) {
  const Attention* found = op_of<Attention>(s.spec);
  for (int64_t layer = 0; layer < s.spec.layers && s.family.sliding_heads; ++layer)
    if (const Attention* a = attention_of_layer(s, layer); a && a->window == 0) return *a;
  if (!found) s.cannot_say("a model without attention");
  return *found;
}

// Heads of keys by layer, 0 where a layer keeps none of its own.
void kv_heads(const GgufSaying& s) {
  std::vector<int64_t> kv;
  for (int64_t layer = 0; layer < s.spec.layers; ++layer) {
    const Attention* a = attention_of_layer(s, layer);
    const bool latent = latent_attention_of(s.spec.block(layer)) != nullptr;
    const bool none = !a && s.family.recurrent.kind != GgufRecurrent::Kind::none;
    kv.push_back(latent ? 1 : a ? a->kv_heads : none ? 0 : op_of<Attention>(s.spec)->kv_heads);
  }
  s.put_layers("attention.head_count_kv", kv);
}

void latent_heads(const GgufSaying& s) {
  const LatentAttention& a = *op_of<LatentAttention>(s.spec);
  s.put("attention.head_count", a.heads);
  s.put("attention.key_length", a.rank + a.rope);
  s.put("attention.value_length", a.rank);
  for (const auto& block : s.spec.kinds)
    for (const BlockOp& op : block)
      if (const auto* r = std::get_if<Rope>(&op); r && r->slots.front() == Slot::q_rope && !r->neighbours)
        s.cannot_say("a rotation of the halves of a head");
}

bool same_heads(const GgufSaying& s, const Attention& a, const Attention& main) {
  if (s.family.sliding_heads) return a.heads == main.heads && (a.window > 0 || a.head_dim == main.head_dim);
  return std::tie(a.heads, a.kv_heads, a.head_dim) == std::tie(main.heads, main.kv_heads, main.head_dim);
}

void plain_heads(const GgufSaying& s) {
  const Attention& main = main_attention(s);
  const GgufFamily& family = s.family;
  s.put("attention.head_count", main.heads);
  s.put("attention.key_length", main.head_dim);
  s.put("attention.value_length", main.head_dim);
  for (const auto& block : s.spec.kinds) {
    const Attention* a = attention_of(block);
    const bool else_stateful = op_of<DeltaRule>(block) || family.recurrent.kind != GgufRecurrent::Kind::none;
    if (a ? !same_heads(s, *a, main) : !else_stateful) s.cannot_say("layers with other heads than the first one's");
  }
  if (family.square && main.heads * main.head_dim != s.spec.hidden)
    s.cannot_say(fmt::format("{} heads of {} beside a hidden size of {}", main.heads, main.head_dim, s.spec.hidden));
  for (const auto& block : s.spec.kinds) {
    const Attention* a = attention_of(block);
    if (!a || !family.multipliers.scores.empty()) continue;  // the file says the scale
    const int64_t divisor = family.score_divisor(s.spec.layers, s.spec.hidden, a->heads, a->head_dim);
    if (std::fabs(a->scale * std::sqrt(static_cast<float>(divisor)) - 1) > 1e-5f)
      s.cannot_say(fmt::format("an attention scale of {} (it is taken to be 1 / sqrt({}))", a->scale, divisor));
  }
  if (!family.multipliers.scores.empty()) s.set("attention.scale", main.scale);
  if (const Moe* moe = op_of<Moe>(s.spec);
      moe && family.experts.without_head_norms > 0 &&
      (op_of<HeadNorm>(s.spec) == nullptr) != (moe->experts == family.experts.without_head_norms))
    s.cannot_say(fmt::format("norms of q and k, or none, beside {} experts", moe->experts));
  if (family.head_norms_from > 0 && s.spec.layers >= family.head_norms_from && !op_of<HeadNorm>(s.spec))
    s.cannot_say(fmt::format("{} layers without norms of q and k", s.spec.layers));
}

void sliding_heads(const GgufSaying& s) {
  int64_t size = main_attention(s).head_dim;
  for (const auto& block : s.spec.kinds)
    if (const Attention* a = attention_of(block); a && a->window > 0) size = a->head_dim;
  for (const char* key : {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
    s.put(key, size);
}

// Which layers do not turn is no key: readers know it of the family.
void still_layers(const GgufSaying& s, const std::vector<bool>& windowed, bool some_windowed) {
  for (int64_t layer = 0; layer < s.spec.layers; ++layer) {
    const bool turns = op_of<Rope>(s.spec.block(layer)) != nullptr;
    const bool still = s.family.still_switch
                           ? op_of<Rope>(s.spec) == nullptr
                           : s.family.still(layer, windowed[static_cast<size_t>(layer)], some_windowed);
    if (attention_of_layer(s, layer) && still == turns)
      s.cannot_say(fmt::format("layer {}, which {} its heads,", layer, turns ? "turns" : "does not turn"));
  }
  if (s.family.still_switch) s.set("rope.scaling.finetuned", op_of<Rope>(s.spec) != nullptr);
}

// Where the file has no word for a window, the context is cut to it, within which both are the same model.
void windows(const GgufSaying& s) {
  const ModelSpec& spec = s.spec;
  const GgufFamily& family = s.family;
  const bool has_windows = family.has_windows(spec.layers);
  std::vector<bool> windowed;
  int64_t window = 0;
  bool usual = true;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const Attention* a = attention_of_layer(s, layer);
    const int64_t w = a ? a->window : 0;
    if (w > 0 && window > 0 && w != window && has_windows) s.cannot_say("windows of different lengths");
    if (w > 0) window = window > 0 ? std::min(window, w) : w;
    windowed.push_back(w > 0);
    usual &= windowed.back() == family.windowed(layer);
  }
  if (window > 0 && family.window_layers > 0 && !has_windows)
    s.cannot_say(fmt::format("windows in a model of {} layers (readers have them where there are {})", spec.layers,
                             family.window_layers));
  still_layers(s, windowed, window > 0);
  const bool cut = !has_windows && window > 0;
  s.put("context_length", cut ? std::min(window, spec.max_positions) : spec.max_positions);
  if (!has_windows) return;
  if (family.window_period == GgufFamily::kEveryLayer) {  // llama.cpp takes 0 for none
    if (window > 0 && !usual) s.cannot_say("layers with and without a window");
    return s.put("attention.sliding_window", window);
  }
  s.put("attention.sliding_window", window > 0 ? window : spec.max_positions);
  if (!usual || family.window_period == GgufFamily::kListed)
    s.set("attention.sliding_window_pattern", gguf::Array(windowed));
}

// Chunks of positions, and queries that grow with them.
void positions(const GgufSaying& s) {
  const GgufFamily& family = s.family;
  for (const auto& block : s.spec.kinds) {
    const Attention* a = attention_of(block);
    const PositionScale* p = op_of<PositionScale>(block);
    if (family.chunk == 0 && a && a->chunk > 0) s.cannot_say("attention within chunks");
    if (family.chunk == 0) {
      if (p && !family.scaled_queries) s.cannot_say("the scale of queries by their positions");
      continue;
    }
    if (a && op_of<Rope>(block) && a->chunk != family.chunk)
      s.cannot_say(fmt::format("attention within chunks of {} positions (readers take {})", a->chunk, family.chunk));
    if (a && !op_of<Rope>(block) &&
        (!p || p->every != family.chunk || p->shift != 1 || std::fabs(p->factor - 0.1f) > 1e-6f))
      s.cannot_say("layers that do not turn without Llama 4's own scale of queries");
  }
}

void caps(const GgufSaying& s) {
  const Attention* first = op_of<Attention>(s.spec);
  const bool attention = first && first->softcap > 0, logits = s.spec.logit_softcap > 0;
  if (attention != (s.family.attention_cap > 0))
    s.cannot_say(attention ? "a soft cap on attention scores" : "attention scores without a soft cap");
  if (logits && !s.family.logit_cap_key) s.cannot_say("a soft cap on logits");
  if (!logits && s.family.logit_cap > 0) s.cannot_say("logits without a soft cap");
  if (attention) s.set("attn_logit_softcapping", first->softcap);
  if (logits) s.set("final_logit_softcapping", s.spec.logit_softcap);
}

void multipliers(const GgufSaying& s) {
  const GgufMultipliers& m = s.family.multipliers;
  const auto say = [&](std::string_view config_key, const char* key, float value) {
    if (!config_key.empty()) s.set(key, value);
  };
  if (m.logits.empty() && s.spec.logit_scale != 1) s.cannot_say("a factor on the logits");
  say(m.logits, "logit_scale", m.logits_divided ? 1 / s.spec.logit_scale : s.spec.logit_scale);
  say(m.embedding, "embedding_scale", s.spec.embed_scale);
  for (const auto& block : s.spec.kinds)
    for (const BlockOp& op : block)
      if (const auto* add = std::get_if<AddTo>(&op); add && add->out == Slot::x) {
        if (m.residual.empty() && add->factor != 1) s.cannot_say("a factor on what a branch adds");
        say(m.residual, "residual_scale", add->factor);
      }
}

// What tensors there are.
void places(const GgufSaying& s) {
  if (!s.family.untied && !s.spec.tied()) s.cannot_say("a head that is not the embedding");
  if (!s.family.tied && s.spec.tied()) s.cannot_say("a head that is the embedding");
  if (s.family.output_biases) return;
  for (const auto& block : s.spec.kinds)
    for (const BlockOp& op : block) {
      const auto* group = std::get_if<Linears>(&op);
      if (!group) continue;
      for (const LinearDef& l : group->items)
        if (l.bias && l.out != Slot::q && l.out != Slot::k && l.out != Slot::v) s.cannot_say("the bias of " + l.name);
    }
}

// Of every layer the width of its MLP: that of the first dense one, or what config.json says where none is dense. A
// list where layers without attention and without an MLP have to be told from others, or where widths differ.
void mlp_widths(const GgufSaying& s) {
  std::vector<int64_t> widths;
  int64_t first = 0;
  for (int64_t layer = 0; layer < s.spec.layers; ++layer) {
    const LinearDef* down = gguf_mlp_down(s.family, s.spec.block(layer));
    const Moe* moe = op_of<Moe>(s.spec.block(layer));
    widths.push_back(down ? down->in_features : moe ? moe->gate.out_features : 0);
    if (first == 0 && down) first = down->in_features;
  }
  const bool listed = s.family.recurrent.list == GgufRecurrent::List::letters || s.family.sliding_heads;
  if (listed) return s.put_layers("feed_forward_length", widths);
  if (first == 0) first = s.c.i64("intermediate_size", s.c.i64("moe_intermediate_size", 0));
  s.put("feed_forward_length", first);
}

gguf::Metadata all(const GgufSaying& s) {
  s.out.set("general.architecture", s.arch);
  s.out.set("general.type", std::string("model"));
  s.out.set("general.quantization_version", uint32_t{2});
  s.put("embedding_length", s.spec.hidden);
  s.put("block_count", s.spec.layers);
  mlp_widths(s);
  s.put("vocab_size", s.spec.vocab);
  if (s.family.layer_norms) s.set("attention.layer_norm_epsilon", s.spec.final_norm_eps);
  if (s.spec.final_norm_kind != NormKind::layer) s.set("attention.layer_norm_rms_epsilon", s.spec.final_norm_eps);
  if (s.spec.final_norm_kind == NormKind::layer && !s.family.layer_norms) s.cannot_say("layer norms");
  if ((op_of<LatentAttention>(s.spec) != nullptr) != s.family.latent.used) s.cannot_say("latent attention");
  if (s.family.latent.used)
    latent_heads(s);
  else
    plain_heads(s);
  kv_heads(s);
  if (s.family.sliding_heads) sliding_heads(s);
  windows(s);
  positions(s);
  caps(s);
  multipliers(s);
  places(s);
  say_rotation(s);
  if (op_of<Moe>(s.spec)) say_experts(s);
  say_mixers(s);
  return s.out;
}

}  // namespace

void GgufSaying::cannot_say(const std::string& what) const {
  fail(ErrorKind::unsupported, fmt::format("{}: {} cannot be said in GGUF of architecture {}", c.where(), what, arch));
}

gguf::Metadata gguf_metadata(const ConfigView& c, const ModelSpec& spec) {
  const GgufFamily& family = gguf_family_of(spec);
  const ConfigView text = c.text_model();
  gguf::Metadata out(c.where());
  return all({text, spec, family, std::string(family.arch_of(op_of<Moe>(spec) != nullptr)), out});
}

}  // namespace fewbit

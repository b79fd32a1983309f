// The block of the Llama family, as data. Config keys and their defaults follow Hugging Face transformers.
#include "src/model/archs/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fewbit {
namespace {

constexpr int64_t kLargestSize = int64_t{1} << 31;  // keeps every product of two sizes inside int64

}  // namespace

int64_t size_key(const ConfigView& c, const std::string& key) {
  const int64_t v = c.i64(key);
  if (v < 1 || v >= kLargestSize)
    fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected an integer of at least 1, found {}", c.where(), key, v));
  return v;
}

int64_t size_key(const ConfigView& c, const std::string& key, int64_t fallback) {
  return c.has(key) ? size_key(c, key) : fallback;
}

DecoderSizes decoder_sizes(const ConfigView& c) {
  DecoderSizes s;
  s.hidden = size_key(c, "hidden_size");
  // Mixtures without a dense layer may say the width of their experts alone.
  const bool dense = c.has("intermediate_size") || !c.has("moe_intermediate_size");
  s.intermediate = size_key(c, dense ? "intermediate_size" : "moe_intermediate_size");
  s.layers = size_key(c, "num_hidden_layers");
  s.vocab = size_key(c, "vocab_size");
  s.positions = size_key(c, "max_position_embeddings", 2048);
  s.heads = static_cast<int>(size_key(c, "num_attention_heads"));
  s.kv_heads = static_cast<int>(size_key(c, "num_key_value_heads", s.heads));
  s.eps = static_cast<float>(c.f64("rms_norm_eps", 1e-6));
  if (s.layers > 100000)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: num_hidden_layers: expected at most 100000, found {}", c.where(), s.layers));
  if (s.heads % s.kv_heads != 0)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: num_key_value_heads: expected a divisor of num_attention_heads ({}), found {}", c.where(),
                     s.heads, s.kv_heads));
  if (!c.has("head_dim") && s.hidden % s.heads != 0)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: head_dim: absent, and hidden_size {} is not a multiple of num_attention_heads {}", c.where(),
                     s.hidden, s.heads));
  s.head_dim = size_key(c, "head_dim", s.hidden / s.heads);
  return s;
}

Attention decoder_attention(const DecoderSizes& s) {
  return {.q = Slot::q,
          .k = Slot::k,
          .v = Slot::v,
          .out = Slot::attn,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .scale = 1 / std::sqrt(static_cast<float>(s.head_dim))};
}

std::vector<BlockOp> gated_mlp(const std::string& prefix, int64_t hidden, int64_t intermediate, Slot out) {
  using S = Slot;
  return {Linears{S::h,
                  {{prefix + "gate_proj", S::gate, intermediate, hidden},
                   {prefix + "up_proj", S::up, intermediate, hidden}}},
          GatedAct{S::gate, S::up, S::act, Activation::silu},
          Linears{S::act, {{prefix + "down_proj", out, hidden, intermediate}}}};
}

void move_text_model(ModelSpec& spec, const std::string& prefix) {
  const bool tied = spec.tied();
  for (std::string* name : {&spec.block_prefix, &spec.embed, &spec.final_norm})
    if (name->starts_with("model.")) *name = prefix + name->substr(6);
  if (tied) spec.lm_head = spec.embed;
}

std::vector<BlockOp> decoder_block(const ConfigView& c, const DecoderSizes& s, const DecoderBiases& bias) {
  using S = Slot;
  c.must_equal("hidden_act", "silu");
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  return {
      Norm{S::x, S::h, NormKind::rms, "input_layernorm", s.hidden, s.eps},
      Linears{S::h,
              {{"self_attn.q_proj", S::q, q, s.hidden, bias.qkv},
               {"self_attn.k_proj", S::k, kv, s.hidden, bias.qkv},
               {"self_attn.v_proj", S::v, kv, s.hidden, bias.qkv}}},
      Rope{{S::q, S::k}, s.head_dim, c.rope(s.head_dim, "", s.partial)},
      decoder_attention(s),
      Linears{S::attn, {{"self_attn.o_proj", S::h, s.hidden, q, bias.o}}},
      AddTo{S::h, S::x},
      Norm{S::x, S::h, NormKind::rms, "post_attention_layernorm", s.hidden, s.eps},
      Linears{S::h,
              {{"mlp.gate_proj", S::gate, s.intermediate, s.hidden, bias.mlp},
               {"mlp.up_proj", S::up, s.intermediate, s.hidden, bias.mlp}}},
      GatedAct{S::gate, S::up, S::act, Activation::silu},
      Linears{S::act, {{"mlp.down_proj", S::h, s.hidden, s.intermediate, bias.mlp}}},
      AddTo{S::h, S::x},
  };
}

namespace {

template <class Op>
std::vector<BlockOp>::iterator first(std::vector<BlockOp>& block) {
  return std::find_if(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Op>(op); });
}

void add_norms(std::vector<BlockOp>& block, NormKind kind, int64_t q, int64_t k, float eps) {
  block.insert(first<Rope>(block), {BlockOp{HeadNorm{Slot::q, kind, "self_attn.q_norm", q, eps}},
                                    BlockOp{HeadNorm{Slot::k, kind, "self_attn.k_norm", k, eps}}});
}

}  // namespace

void add_head_norms(std::vector<BlockOp>& block, const DecoderSizes& s, NormKind kind) {
  add_norms(block, kind, s.head_dim, s.head_dim, s.eps);
}

void add_whole_norms(std::vector<BlockOp>& block, const DecoderSizes& s) {
  add_norms(block, NormKind::rms, s.heads * s.head_dim, s.kv_heads * s.head_dim, s.eps);
}

std::vector<BlockOp> without_rope(std::vector<BlockOp> block) {
  block.erase(first<Rope>(block));
  return block;
}

void turn_neighbours(std::vector<BlockOp>& block) {
  for (BlockOp& op : block)
    if (Rope* r = std::get_if<Rope>(&op)) r->neighbours = true;
}

void add_shared_expert(std::vector<BlockOp>& block, const std::string& prefix, int64_t width, const std::string& gate) {
  const auto at = first<Moe>(block);
  FEWBIT_ASSERT(at != block.end());
  const Moe moe = std::get<Moe>(*at);
  std::vector<BlockOp> shared = gated_mlp(prefix, moe.hidden, width, Slot::shared);
  if (!gate.empty()) {
    shared.push_back(Project{moe.in, Slot::share, gate, 1, moe.hidden});
    shared.push_back(SigmoidGate{Slot::share, Slot::shared, Slot::shared});
  }
  shared.push_back(moe);  // last, for it may write where all of them read
  shared.push_back(AddTo{Slot::shared, moe.out});
  block.insert(block.erase(at), shared.begin(), shared.end());
}

std::vector<BlockOp> moe_block(const ConfigView& c, const std::vector<BlockOp>& dense, const MoeNames& n,
                               int64_t intermediate, bool renormalise) {
  std::string count = "num_local_experts";
  for (const char* key : {"num_experts", "n_routed_experts", "moe_num_experts"})
    if (c.has(key)) count = key;
  const int64_t experts = size_key(c, count);
  std::string chosen = "num_experts_per_tok";
  for (const char* key : {"moe_k", "num_experts_per_token"})
    if (c.has(key)) chosen = key;
  const int64_t top_k = size_key(c, chosen);
  if (experts > 100000 || top_k > experts)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}: expected at most the number of experts (at most 100000), found {} of {}", c.where(),
                     chosen, top_k, experts));
  // The MLP is the last gate, its activation and its down projection.
  const auto act =
      std::find_if(dense.begin(), dense.end(), [](const BlockOp& op) { return std::holds_alternative<GatedAct>(op); });
  FEWBIT_ASSERT(act != dense.end());
  const Linears& wide = std::get<Linears>(act[-1]);
  const int64_t hidden = wide.items[0].in_features;
  std::vector<BlockOp> block(dense.begin(), act - 1);
  block.push_back(Moe{.in = wide.in,
                      .out = std::get<Linears>(act[1]).items[0].out,
                      .router = n.router,
                      .hidden = hidden,
                      .experts = static_cast<int>(experts),
                      .top_k = static_cast<int>(top_k),
                      .renormalise = renormalise,
                      .expert_name = n.experts,
                      .gate = {n.gate, Slot::gate, intermediate, hidden},
                      .up = {n.up, Slot::up, intermediate, hidden},
                      .down = {n.down, Slot::h, hidden, intermediate},
                      .act = std::get<GatedAct>(*act).act});
  block.insert(block.end(), act + 2, dense.end());
  return block;
}

ModelSpec decoder_spec(const ConfigView& c, const DecoderSizes& s, const std::vector<std::vector<BlockOp>>& variants,
                       const std::vector<int>& variant_of_layer, const std::vector<int64_t>& window_of_layer) {
  ModelSpec spec;
  spec.arch = c.architecture();
  spec.layers = s.layers;
  spec.hidden = s.hidden;
  spec.vocab = s.vocab;
  spec.max_positions = s.positions;
  spec.final_norm_eps = s.eps;
  if (c.flag("tie_word_embeddings", false)) spec.lm_head = spec.embed;
  spec.bos = c.has("bos_token_id") ? c.i64_list("bos_token_id").front() : -1;
  spec.eos = c.i64_list("eos_token_id");
  std::vector<std::pair<int, int64_t>> kinds;  // variant and window
  for (size_t i = 0; i < window_of_layer.size(); ++i) {
    const std::pair<int, int64_t> kind = {variant_of_layer.empty() ? 0 : variant_of_layer[i], window_of_layer[i]};
    const auto it = std::find(kinds.begin(), kinds.end(), kind);
    spec.kind_of_layer.push_back(static_cast<int>(it - kinds.begin()));
    if (it == kinds.end()) kinds.push_back(kind);
  }
  for (const auto& [variant, window] : kinds) {
    spec.kinds.push_back(variants[static_cast<size_t>(variant)]);
    for (BlockOp& op : spec.kinds.back())
      if (Attention* a = std::get_if<Attention>(&op)) a->window = window;
  }
  if (spec.kinds.size() == 1) spec.kind_of_layer.clear();
  return spec;
}

ModelSpec decoder_spec(const ConfigView& c, const DecoderSizes& s, const std::vector<BlockOp>& block,
                       const std::vector<int64_t>& window_of_layer) {
  return decoder_spec(c, s, std::vector<std::vector<BlockOp>>{block}, {}, window_of_layer);
}

std::vector<std::string> layer_types(const ConfigView& c, const DecoderSizes& s,
                                     const std::vector<std::string>& known) {
  const std::vector<std::string> types = c.str_list("layer_types");
  if (types.empty()) return types;
  if (static_cast<int64_t>(types.size()) != s.layers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: layer_types: expected {} entries, found {}", c.where(), s.layers, types.size()));
  for (size_t i = 0; i < types.size(); ++i)
    if (std::find(known.begin(), known.end(), types[i]) == known.end())
      fail(ErrorKind::unsupported, fmt::format("{}: layer_types[{}]: found \"{}\"; supported: {}", c.where(), i,
                                               types[i], fmt::join(known, ", ")));
  return types;
}

std::vector<int64_t> layer_windows(const ConfigView& c, const DecoderSizes& s, int64_t window, int64_t first_windowed) {
  std::vector<int64_t> out(static_cast<size_t>(s.layers), 0);
  const std::vector<std::string> types = layer_types(c, s, {"full_attention", "sliding_attention"});
  for (int64_t i = 0; i < s.layers; ++i)
    if (types.empty() ? i >= first_windowed : types[static_cast<size_t>(i)] == "sliding_attention")
      out[static_cast<size_t>(i)] = window;
  return out;
}

std::vector<int64_t> mistral_windows(const ConfigView& c, const DecoderSizes& s) {
  const int64_t window = c.i64("sliding_window", 0);
  if (window < 0)
    fail(ErrorKind::checkpoint, fmt::format("{}: sliding_window: expected at least 0, found {}", c.where(), window));
  return layer_windows(c, s, window, 0);
}

std::vector<int64_t> qwen_windows(const ConfigView& c, const DecoderSizes& s) {
  const int64_t window = c.flag("use_sliding_window", false) ? size_key(c, "sliding_window", 4096) : 0;
  return layer_windows(c, s, window, c.i64("max_window_layers", 28));
}

}  // namespace fewbit

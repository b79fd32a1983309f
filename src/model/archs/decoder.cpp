// The block of the Llama family, as data. Config keys and their defaults follow Hugging Face transformers.
#include "src/model/archs/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/model/limits.h"

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
  std::string width = "intermediate_size";
  for (const char* other : {"moe_intermediate_size", "block_ff_dim"})
    if (!c.has(width) && c.has(other)) width = other;
  s.intermediate = size_key(c, width);
  const std::vector<std::string> words = c.str_list("layers_block_type");  // may say the number of layers alone
  s.layers = words.empty() ? size_key(c, "num_hidden_layers")
                           : size_key(c, "num_hidden_layers", static_cast<int64_t>(words.size()));
  s.vocab = size_key(c, "vocab_size");
  s.positions = size_key(c, "max_position_embeddings", 2048);
  s.heads = static_cast<int>(size_key(c, "num_attention_heads"));
  s.kv_heads = static_cast<int>(size_key(c, "num_key_value_heads", s.heads));
  s.eps = static_cast<float>(c.f64("rms_norm_eps", 1e-6));
  if (s.layers > kMostLayers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: num_hidden_layers: expected at most {}, found {}", c.where(), kMostLayers, s.layers));
  if (s.heads % s.kv_heads != 0)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: num_key_value_heads: expected a divisor of num_attention_heads ({}), found {}", c.where(),
                     s.heads, s.kv_heads));
  if (!c.has("head_dim") && s.hidden % s.heads != 0)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: head_dim: absent, and hidden_size {} is not a multiple of num_attention_heads {}", c.where(),
                     s.hidden, s.heads));
  s.head_dim = size_key(c, "head_dim", s.hidden / s.heads);
  if (s.head_dim > kWidestHead)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: head_dim: expected at most {}, found {}", c.where(), kWidestHead, s.head_dim));
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

}  // namespace fewbit

// Llama 4 (text): three layers that turn neighbours, norm the heads of q and k without a weight and see only their own
// chunk, to one that does not turn, sees everything, and scales its queries by their positions; experts that read their
// input times the router's score, beside a shared one. Keys and defaults: configuration_llama4.py of Hugging Face
// transformers.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

using S = Slot;

// The list `key`, one entry a layer where it is there.
std::vector<int64_t> per_layer(const ConfigView& c, const DecoderSizes& s, const std::string& key) {
  std::vector<int64_t> listed = c.i64_list(key);
  if (!listed.empty() && static_cast<int64_t>(listed.size()) != s.layers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}: expected {} entries, found {}", c.where(), key, s.layers, listed.size()));
  return listed;
}

std::vector<bool> turning_layers(const ConfigView& c, const DecoderSizes& s) {
  const std::vector<int64_t> listed = per_layer(c, s, "no_rope_layers");  // 0: does not turn
  const int64_t interval = size_key(c, "no_rope_layer_interval", 4);
  std::vector<bool> turns;
  for (int64_t i = 0; i < s.layers; ++i)
    turns.push_back(listed.empty() ? (i + 1) % interval != 0 : listed[static_cast<size_t>(i)] != 0);
  return turns;
}

std::vector<bool> sparse_layers(const ConfigView& c, const DecoderSizes& s) {
  const std::vector<int64_t> listed = c.i64_list("moe_layers");
  const int64_t step = size_key(c, "interleave_moe_layer_step", 1);
  std::vector<bool> sparse;
  for (int64_t i = 0; i < s.layers; ++i)
    sparse.push_back(listed.empty() ? (i + 1) % step == 0 : std::find(listed.begin(), listed.end(), i) != listed.end());
  return sparse;
}

std::vector<BlockOp> dense_block(const ConfigView& c, const DecoderSizes& s, bool turns) {
  const bool bias = c.flag("attention_bias", false);
  std::vector<BlockOp> block;
  for (BlockOp& op : decoder_block(c, s, {.qkv = bias, .o = bias})) {
    if (auto* linears = std::get_if<Linears>(&op))
      for (LinearDef& l : linears->items)
        if (l.name.starts_with("mlp.")) l.name = "feed_forward." + l.name.substr(4);
    const auto* rope = std::get_if<Rope>(&op);
    if (rope && !turns) {
      if (c.flag("attn_temperature_tuning", true))
        block.push_back(PositionScale{S::q, static_cast<float>(c.f64("attn_scale", 0.1)),
                                      static_cast<int64_t>(c.f64("floor_scale", 8192)), 1});
      continue;
    }
    if (auto* a = std::get_if<Attention>(&op); a && turns) a->chunk = size_key(c, "attention_chunk_size", 8192);
    block.push_back(op);
    if (rope && c.flag("use_qk_norm", true))
      for (const Slot slot : {S::q, S::k}) block.push_back(HeadNorm{slot, NormKind::rms, "", s.head_dim, s.eps});
  }
  turn_neighbours(block);
  return block;
}

std::vector<BlockOp> sparse_block(const ConfigView& c, const std::vector<BlockOp>& dense) {
  const std::string at = "feed_forward.";
  const int64_t width = size_key(c, "intermediate_size");
  std::vector<BlockOp> block =
      moe_block(c, dense, {at + "router", at + "experts.", "gate_proj", "up_proj", "down_proj"}, width, false);
  for (BlockOp& op : block)
    if (auto* m = std::get_if<Moe>(&op)) {
      m->score = RouterScore::sigmoid;
      m->weigh_inputs = true;
      m->stacked_gate_up = at + "experts.gate_up_proj", m->stacked_down = at + "experts.down_proj";
      m->stacks = Moe::Stacks::turned;
    }
  add_shared_expert(block, at + "shared_expert.", width, "");
  return block;
}

ModelSpec arch_llama4(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  s.intermediate = size_key(c, "intermediate_size_mlp", s.intermediate);
  if (c.flag("attn_temperature_tuning", true) && c.f64("floor_scale", 8192) < 1)
    fail(ErrorKind::checkpoint, c.where() + ": floor_scale: expected a number of at least 1");
  layer_types(c, s, {"chunked_attention", "full_attention"});
  std::vector<std::vector<BlockOp>> variants;  // still or turning, dense or with experts
  for (const bool sparse : {false, true})
    for (const bool turns : {false, true}) {
      const std::vector<BlockOp> dense = dense_block(c, s, turns);
      variants.push_back(sparse ? sparse_block(c, dense) : dense);
    }
  const std::vector<bool> turns = turning_layers(c, s), sparse = sparse_layers(c, s);
  std::vector<int> variant_of_layer;
  for (size_t i = 0; i < turns.size(); ++i) variant_of_layer.push_back((sparse[i] ? 2 : 0) + (turns[i] ? 1 : 0));
  return decoder_spec(c, s, variants, variant_of_layer, std::vector<int64_t>(variant_of_layer.size(), 0));
}

}  // namespace

const Family family_llama4 = {
    .classes = {{"Llama4ForConditionalGeneration", "language_model.model.", "language_model.lm_head."},
                {"Llama4ForCausalLM"}},
    .model_types = {"llama4", "llama4_text"},
    .build = &arch_llama4,
    .keeps = {{"vision_model.*", kVisionTower, true}, {"multi_modal_projector.*", kProjector, true}},
    .gguf = {.arch = "llama4",
             .read_as = "Llama4ForCausalLM",
             .names = {{"feed_forward.gate_proj", "ffn_gate"},
                       {"feed_forward.up_proj", "ffn_up"},
                       {"feed_forward.down_proj", "ffn_down"},
                       {"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
                       {"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
                       {"feed_forward.shared_expert.down_proj", "ffn_down_shexp"}},
             .has_experts = true,
             .experts = {.score = RouterScore::sigmoid,
                         .renormalise = false,
                         .weigh_inputs = true,
                         .any_step = true,
                         .width_key = true,
                         .without_head_norms = 128,
                         .width = "intermediate_size",
                         .step = "interleave_moe_layer_step"},
             .pairs = true,
             .divisors = true,
             .still_period = 4,
             .chunk = 8192,
             .mlp_width = "intermediate_size_mlp"},
};

}  // namespace fewbit

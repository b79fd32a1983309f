// Llama, and those that have its block: Mistral (a sliding window on every layer), Qwen2 (biases on q, k, v, which its
// config does not mention), Seed-OSS (a bias of its own on o), SmolLM3 (some layers do not turn), HunYuan (norms of q
// and k behind the rotation), ERNIE 4.5 (neighbours turn together); alone or as the language model of a vision model.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/decoder.h"

namespace fewbit {

namespace {

// Ministral 3 scales its queries by their positions, as Llama 4 does.
void scale_queries(const ConfigView& c, std::vector<BlockOp>& block) {
  const double beta = c.rope_number("llama_4_scaling_beta", 0),
               every = c.rope_number("original_max_position_embeddings", 0);
  if (beta == 0) return;
  if (!(every >= 1))
    fail(ErrorKind::checkpoint,
         c.where() +
             ": rope_parameters.original_max_position_embeddings: expected a number of at least 1 beside "
             "llama_4_scaling_beta");
  const auto rope =
      std::find_if(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Rope>(op); });
  block.insert(rope, PositionScale{Slot::q, static_cast<float>(beta), static_cast<int64_t>(every)});
}

}  // namespace

ModelSpec arch_llama(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const std::string name = c.architecture();
  if (name == "Qwen2ForCausalLM" || name == "Qwen2_5_VLForConditionalGeneration" ||
      c.str("model_type", "") == "qwen2") {
    const DecoderBiases qkv{.qkv = true};
    return decoder_spec(c, s, decoder_block(c, s, qkv), qwen_windows(c, s));
  }
  const bool attention = c.flag("attention_bias", false);
  const DecoderBiases bias{.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)};
  // Llama's own config has no window; a config that brings one means Mistral's.
  std::vector<BlockOp> block = decoder_block(c, s, bias);
  scale_queries(c, block);
  return decoder_spec(c, s, block, mistral_windows(c, s));
}

ModelSpec arch_wrapped_llama(const ConfigView& whole) {
  const ConfigView c = whole.text_model();
  const std::vector<std::string> known = {"llama", "mistral", "ministral3", "qwen2"};
  if (const std::string type = c.str("model_type", "mistral");
      std::find(known.begin(), known.end(), type) == known.end())
    fail(ErrorKind::unsupported,
         fmt::format("{}: model_type: found \"{}\"; supported: {}", c.where(), type, fmt::join(known, ", ")));
  ModelSpec spec = arch_llama(c);
  move_text_model(spec, "language_model.model.");
  if (!spec.tied()) spec.lm_head = "language_model.lm_head.weight";
  return spec;
}

ModelSpec arch_seed_oss(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const DecoderBiases bias{.qkv = c.flag("attention_bias", true),
                           .o = c.flag("attention_out_bias", false),
                           .mlp = c.flag("mlp_bias", false)};
  return decoder_spec(c, s, decoder_block(c, s, bias), mistral_windows(c, s));
}

ModelSpec arch_smollm3(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  const DecoderBiases bias{.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)};
  const std::vector<BlockOp> turns = decoder_block(c, s, bias);
  const std::vector<int64_t> listed = c.i64_list("no_rope_layers");  // 0: does not turn
  const int64_t interval = size_key(c, "no_rope_layer_interval", 4);
  if (!listed.empty() && static_cast<int64_t>(listed.size()) != s.layers)
    fail(ErrorKind::checkpoint,
         c.where() + ": no_rope_layers: expected an entry for every layer, found " + std::to_string(listed.size()));
  std::vector<int> still;
  for (int64_t i = 0; i < s.layers; ++i)
    still.push_back(listed.empty() ? (i + 1) % interval == 0 : listed[static_cast<size_t>(i)] == 0);
  return decoder_spec(c, s, {turns, without_rope(turns)}, still, qwen_windows(c, s));
}

ModelSpec arch_hunyuan(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  c.must_be_false("use_cla");
  c.must_equal("norm_type", "rms");
  const bool attention = c.flag("attention_bias", false);
  std::vector<BlockOp> block =
      decoder_block(c, s, {.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)});
  const auto at =
      std::find_if(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Attention>(op); });
  if (c.flag("use_qk_norm", true))
    block.insert(at, {BlockOp{HeadNorm{Slot::q, NormKind::rms, "self_attn.query_layernorm", s.head_dim, s.eps}},
                      BlockOp{HeadNorm{Slot::k, NormKind::rms, "self_attn.key_layernorm", s.head_dim, s.eps}}});
  return decoder_spec(c, s, block, std::vector<int64_t>(static_cast<size_t>(s.layers), 0));
}

ModelSpec arch_ernie4_5(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool bias = c.flag("use_bias", false);
  std::vector<BlockOp> block = decoder_block(c, s, {.qkv = bias, .o = bias, .mlp = bias});
  turn_neighbours(block);
  return decoder_spec(c, s, block, std::vector<int64_t>(static_cast<size_t>(s.layers), 0));
}

}  // namespace fewbit

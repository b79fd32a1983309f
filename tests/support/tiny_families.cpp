#include "tests/support/tiny_families.h"

#include <gtest/gtest.h>

namespace fewbit::test {
namespace {

using nlohmann::json;

constexpr const char* kBase = R"({
  "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
  "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2
})";

struct Line {
  const char *class_name, *more;  // "text": what belongs into text_config, with everything of the base
};

// Qwen3.5 and Qwen3-Next: four layers, of which the last is attention.
#define FEWBIT_DELTA_NET                                                                                           \
  R"("num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, )" \
  R"("linear_value_head_dim": 32, "linear_conv_kernel_dim": 4)"
#define FEWBIT_EXPERTS \
  R"("num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128)"

// DeepSeek V2 and later, GLM-5: a dense layer, then experts.
#define FEWBIT_LATENT                                                                                                 \
  R"("kv_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32, "n_routed_experts": 4, )" \
  R"("num_experts_per_tok": 2, "moe_intermediate_size": 128, "first_k_dense_replace": 1, "n_group": 1, )"             \
  R"("topk_group": 1)"
#define FEWBIT_INDEXER R"("q_lora_rank": 128, "index_n_heads": 2, "index_head_dim": 128, "index_topk": 8)"

constexpr Line kLines[] = {
    {"LlamaForCausalLM", R"({"model_type": "llama"})"},
    {"MistralForCausalLM", R"({"model_type": "mistral"})"},
    {"Mistral3ForConditionalGeneration", R"({"model_type": "mistral3", "text": {"model_type": "mistral"}})"},
    {"MixtralForCausalLM", R"({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2})"},
    {"Qwen2ForCausalLM", R"({"model_type": "qwen2"})"},
    {"Qwen2_5_VLForConditionalGeneration",
     R"({"model_type": "qwen2_5_vl", "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}})"},
    {"Qwen2MoeForCausalLM", R"({"model_type": "qwen2_moe", )" FEWBIT_EXPERTS "}"},
    {"Qwen3ForCausalLM", R"({"model_type": "qwen3"})"},
    {"Qwen3VLForConditionalGeneration",
     R"({"model_type": "qwen3_vl", "text": {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}}})"},
    {"Qwen3MoeForCausalLM", R"({"model_type": "qwen3_moe", "norm_topk_prob": true, )" FEWBIT_EXPERTS "}"},
    {"Qwen3VLMoeForConditionalGeneration",
     R"({"model_type": "qwen3_vl_moe",
         "text": {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}, )" FEWBIT_EXPERTS "}}"},
    {"Qwen3NextForCausalLM", R"({"model_type": "qwen3_next", )" FEWBIT_DELTA_NET ", " FEWBIT_EXPERTS "}"},
    {"Qwen3_5ForConditionalGeneration", R"({"model_type": "qwen3_5", "text": {)" FEWBIT_DELTA_NET "}}"},
    {"Qwen3_5MoeForConditionalGeneration",
     R"({"model_type": "qwen3_5_moe", "text": {)" FEWBIT_DELTA_NET ", " FEWBIT_EXPERTS "}}"},
    {"Gemma2ForCausalLM",
     R"({"model_type": "gemma2", "query_pre_attn_scalar": 32, "sliding_window": 16, "tie_word_embeddings": true,
         "hidden_activation": "gelu_pytorch_tanh"})"},
    {"Gemma3ForCausalLM",
     R"({"model_type": "gemma3_text", "query_pre_attn_scalar": 32, "sliding_window": 16, "tie_word_embeddings": true,
         "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 6})"},
    {"Gemma4ForConditionalGeneration",
     R"({"model_type": "gemma4", "tie_word_embeddings": true,
         "text": {"global_head_dim": 64, "sliding_window": 16, "hidden_activation": "gelu_pytorch_tanh",
                  "tie_word_embeddings": true, "layer_types": ["sliding_attention", "full_attention"]}})"},
    {"Phi3ForCausalLM", R"({"model_type": "phi3"})"},
    {"GptOssForCausalLM",
     R"({"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
         "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
                          "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false}})"},
    {"Glm4ForCausalLM", R"({"model_type": "glm4", "attention_bias": true})"},
    {"Glm4vForConditionalGeneration",
     R"({"model_type": "glm4v", "text": {"attention_bias": true,
         "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}}})"},
    {"Glm4MoeForCausalLM",
     R"({"model_type": "glm4_moe", "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
         "n_shared_experts": 1, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "use_qk_norm": true,
         "attention_bias": true})"},
    {"MiniMaxM2ForCausalLM",
     R"({"model_type": "minimax_m2", "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 16,
         "scoring_func": "sigmoid", "use_qk_norm": true})"},
    {"Ernie4_5ForCausalLM", R"({"model_type": "ernie4_5"})"},
    {"Ernie4_5_MoeForCausalLM",
     R"({"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 128,
         "moe_num_shared_experts": 1, "moe_layer_start_index": 1})"},
    {"Olmo2ForCausalLM", R"({"model_type": "olmo2"})"},
    {"Olmo3ForCausalLM",
     R"({"model_type": "olmo3", "sliding_window": 16, "num_hidden_layers": 4, "rope_scaling": {"rope_type": "yarn",
         "factor": 8.0, "original_max_position_embeddings": 64, "attention_factor": 1.2079441541679836}})"},
    {"Exaone4ForCausalLM",
     R"({"model_type": "exaone4", "rope_scaling": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0, "original_max_position_embeddings": 128}})"},
    {"SeedOssForCausalLM", R"({"model_type": "seed_oss"})"},
    {"SmolLM3ForCausalLM", R"({"model_type": "smollm3", "num_hidden_layers": 4})"},
    {"HunYuanDenseV1ForCausalLM",
     R"({"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}})"},
    {"DeepseekV2ForCausalLM", R"({"model_type": "deepseek_v2", "q_lora_rank": 128, )" FEWBIT_LATENT "}"},
    {"DeepseekV3ForCausalLM", R"({"model_type": "deepseek_v3", "q_lora_rank": 128, )" FEWBIT_LATENT "}"},
    {"DeepseekV32ForCausalLM", R"({"model_type": "deepseek_v32", )" FEWBIT_LATENT ", " FEWBIT_INDEXER "}"},
    {"GlmMoeDsaForCausalLM", R"({"model_type": "glm_moe_dsa", )" FEWBIT_LATENT ", " FEWBIT_INDEXER "}"},
    {"DeepseekV4ForCausalLM",
     R"({"model_type": "deepseek_v4", "num_key_value_heads": 1, "head_dim": 64, "num_hidden_layers": 3,
         "sliding_window": 12, "q_lora_rank": 128, "qk_rope_head_dim": 8, "o_groups": 2, "o_lora_rank": 64,
         "hc_mult": 2, "num_hash_layers": 1,
         "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
         "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
         "index_n_heads": 2, "index_head_dim": 32, "index_topk": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 128, "scoring_func": "sqrtsoftplus", "swiglu_limit": 2.0})"},
    {"KimiLinearForCausalLM",
     R"({"model_type": "kimi_linear", "kv_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64,
         "v_head_dim": 32, "mla_use_nope": true, "num_experts": 4, "num_experts_per_token": 2,
         "moe_intermediate_size": 128, "first_k_dense_replace": 1, "num_shared_experts": 1,
         "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2], "num_heads": 4, "head_dim": 32,
                                "short_conv_kernel_size": 4}})"},
    {"Ministral3ForCausalLM",
     R"({"model_type": "ministral3", "rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
         "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}})"},
    {"LlavaForConditionalGeneration", R"({"model_type": "llava", "text": {"model_type": "llama"}})"},
    {"Llama4ForConditionalGeneration",
     R"({"model_type": "llama4", "text": {"intermediate_size_mlp": 256, "num_local_experts": 4, "num_hidden_layers": 4,
         "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}})"},
    {"GraniteForCausalLM", R"({"model_type": "granite", "residual_multiplier": 0.25})"},
    {"GraniteMoeForCausalLM",
     R"({"model_type": "granitemoe", "num_local_experts": 4, "num_experts_per_tok": 2, "logits_scaling": 4.0})"},
    {"GraniteMoeHybridForCausalLM",
     R"({"model_type": "granitemoehybrid", "shared_intermediate_size": 256, "mamba_n_heads": 32, "mamba_d_head": 8,
         "mamba_d_state": 16, "layer_types": ["mamba", "attention"]})"},
    {"CohereForCausalLM", R"({"model_type": "cohere", "tie_word_embeddings": true})"},
    {"Cohere2ForCausalLM",
     R"({"model_type": "cohere2", "tie_word_embeddings": true, "sliding_window": 16, "num_hidden_layers": 4})"},
    {"Lfm2ForCausalLM",
     R"({"model_type": "lfm2", "tie_word_embeddings": true, "block_auto_adjust_ff_dim": false,
         "layer_types": ["conv", "full_attention"]})"},
    {"NemotronHForCausalLM",
     R"({"model_type": "nemotron_h", "hybrid_override_pattern": "M*E", "num_hidden_layers": 3, "mamba_num_heads": 32,
         "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 128})"},
};

}  // namespace

json tiny_config_of(std::string_view class_name) {
  for (const Line& line : kLines) {
    if (line.class_name != class_name) continue;
    json config = json::parse(kBase);
    json more = json::parse(line.more);
    if (more.contains("text")) {
      config.update(more["text"]);
      more.erase("text");
      more["text_config"] = config;
      config = json{{"tie_word_embeddings", config["tie_word_embeddings"]}};
    }
    config.update(more);
    config["architectures"] = {class_name};
    return config;
  }
  ADD_FAILURE() << "tests/support/tiny_families.cpp has no config of " << class_name << "; add a line";
  return {};
}

}  // namespace fewbit::test

#include "src/model/synth_shapes.h"

#include <nlohmann/json.hpp>

#include "src/core/error.h"

namespace fewbit {

using nlohmann::ordered_json;

namespace {

constexpr auto kLlama = SynthShape::llama;
constexpr auto kQwen3 = SynthShape::qwen3;
constexpr auto kQwen3Moe = SynthShape::qwen3_moe;

// Values of the public models' config.json.
// clang-format off
const SynthShape kShapes[] = {
// family      hidden     ff layers heads  kv  dim   vocab positions    theta     bos     eos   factor   tied   experts top_k  width
  {{"llama3-8b", "Meta-Llama-3-8B"},
   kLlama,       4096, 14336,    32,   32,  8, 128, 128256,     8192,  500000, 128000, 128001},
  {{"llama3.1-8b", "Llama-3.1-8B (rope scaling llama3, factor 8)"},
   kLlama,       4096, 14336,    32,   32,  8, 128, 128256,   131072,  500000, 128000, 128001,       8, false},
  {{"llama3-70b", "Meta-Llama-3-70B"},
   kLlama,       8192, 28672,    80,   64,  8, 128, 128256,     8192,  500000, 128000, 128001},
  {{"llama-1b", "Llama-3.2-1B (tied head)"},
   kLlama,       2048,  8192,    16,   32,  8,  64, 128256,   131072,  500000, 128000, 128001,      32,  true},
  {{"qwen3-8b", "Qwen3-8B"},
   kQwen3,       4096, 12288,    36,   32,  8, 128, 151936,    40960, 1000000, 151643, 151645},
  {{"qwen3-32b", "Qwen3-32B"},
   kQwen3,       5120, 25600,    64,   64,  8, 128, 151936,    40960, 1000000, 151643, 151645},
  {{"qwen3-30b-a3b", "Qwen3-30B-A3B (128 experts, 8 active)"},
   kQwen3Moe,    2048,  6144,    48,   32,  4, 128, 151936,    40960, 1000000, 151643, 151645,       0, false,      128,    8,   768},
  {{"tiny", "two small blocks, for tests"},
   kLlama,        128,   256,     2,    4,  2,  32,    512,     2048,   10000,      1,      2},
  {{"tiny-moe", "two small blocks of four experts, for tests"},
   kQwen3Moe,     128,   256,     2,    4,  2,  32,    512,     2048,   10000,      1,      2,       0, false,        4,    2,   128},
};
// clang-format on

}  // namespace

std::vector<SynthPreset> synth_presets() {
  std::vector<SynthPreset> out;
  for (const SynthShape& s : kShapes) out.push_back(s.preset);
  return out;
}

const SynthShape& synth_shape(const std::string& name) {
  std::string known;
  for (const SynthShape& s : kShapes) {
    if (s.preset.name == name) return s;
    known += ' ';
    known += s.preset.name;
  }
  fail(ErrorKind::usage, "no preset \"" + name + "\"; known:" + known);
}

std::string synth_config(const SynthShape& s, int64_t layers) {
  const bool moe = s.family == SynthShape::qwen3_moe, qwen = moe || s.family == SynthShape::qwen3;
  ordered_json c;
  c["architectures"] = {moe ? "Qwen3MoeForCausalLM" : qwen ? "Qwen3ForCausalLM" : "LlamaForCausalLM"};
  c["attention_bias"] = false;
  c["attention_dropout"] = 0.0;
  c["bos_token_id"] = s.bos;
  c["eos_token_id"] = s.eos;
  c["head_dim"] = s.head_dim;
  c["hidden_act"] = "silu";
  c["hidden_size"] = s.hidden;
  c["initializer_range"] = 0.02;
  c["intermediate_size"] = s.ff;
  c["max_position_embeddings"] = s.positions;
  if (qwen) c["max_window_layers"] = layers;
  if (!qwen) c["mlp_bias"] = false;
  c["model_type"] = moe ? "qwen3_moe" : qwen ? "qwen3" : "llama";
  if (moe) {
    c["decoder_sparse_step"] = 1;
    c["mlp_only_layers"] = ordered_json::array();
    c["moe_intermediate_size"] = s.expert_ff;
    c["norm_topk_prob"] = true;
    c["num_experts"] = s.experts;
    c["num_experts_per_tok"] = s.top_k;
    c["output_router_logits"] = false;
    c["router_aux_loss_coef"] = 0.001;
  }
  c["num_attention_heads"] = s.heads;
  c["num_hidden_layers"] = layers;
  c["num_key_value_heads"] = s.kv_heads;
  if (!qwen) c["pretraining_tp"] = 1;
  c["rms_norm_eps"] = qwen ? 1e-6 : 1e-5;
  c["rope_scaling"] = nullptr;
  if (s.llama3_factor > 0) {
    c["rope_scaling"] = {{"factor", s.llama3_factor},
                         {"high_freq_factor", 4.0},
                         {"low_freq_factor", 1.0},
                         {"original_max_position_embeddings", 8192},
                         {"rope_type", "llama3"}};
  }
  c["rope_theta"] = s.theta;
  if (qwen) c["sliding_window"] = nullptr;
  c["tie_word_embeddings"] = s.tied;
  c["torch_dtype"] = "bfloat16";
  c["use_cache"] = true;
  if (qwen) c["use_sliding_window"] = false;
  c["vocab_size"] = s.vocab;
  return c.dump(2);
}

std::string synth_generation_config(const SynthShape& s) {
  const bool qwen = s.family != SynthShape::llama;
  ordered_json c;
  c["bos_token_id"] = s.bos;
  c["do_sample"] = true;
  c["eos_token_id"] = s.eos;
  c["temperature"] = 0.6;
  if (qwen) c["top_k"] = 20;
  c["top_p"] = qwen ? 0.95 : 0.9;
  return c.dump(2);
}

}  // namespace fewbit

#include "src/model/synth_shapes.h"

#include <nlohmann/json.hpp>

#include "src/core/error.h"

namespace fewbit {

// Values of the public models' config.json.
const std::vector<ModelShape>& model_shapes() {
  static const std::vector<ModelShape> all = {
      {.preset = {"llama3-8b", "Meta-Llama-3-8B"},
       .hidden = 4096,
       .ff = 14336,
       .layers = 32,
       .heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .vocab = 128256,
       .positions = 8192},
      {.preset = {"llama3.1-8b", "Llama-3.1-8B (rope scaling llama3, factor 8)"},
       .hidden = 4096,
       .ff = 14336,
       .layers = 32,
       .heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .vocab = 128256,
       .positions = 131072,
       .llama3_factor = 8},
      {.preset = {"llama3-70b", "Meta-Llama-3-70B"},
       .hidden = 8192,
       .ff = 28672,
       .layers = 80,
       .heads = 64,
       .kv_heads = 8,
       .head_dim = 128,
       .vocab = 128256,
       .positions = 8192},
      {.preset = {"llama-1b", "Llama-3.2-1B (tied head)"},
       .hidden = 2048,
       .ff = 8192,
       .layers = 16,
       .heads = 32,
       .kv_heads = 8,
       .head_dim = 64,
       .vocab = 128256,
       .positions = 131072,
       .llama3_factor = 32,
       .tied = true},
      {.preset = {"qwen3-8b", "Qwen3-8B"},
       .family = ModelShape::qwen3,
       .hidden = 4096,
       .ff = 12288,
       .layers = 36,
       .heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .vocab = 151936,
       .positions = 40960,
       .theta = 1000000,
       .bos = 151643,
       .eos = 151645},
      {.preset = {"qwen3-32b", "Qwen3-32B"},
       .family = ModelShape::qwen3,
       .hidden = 5120,
       .ff = 25600,
       .layers = 64,
       .heads = 64,
       .kv_heads = 8,
       .head_dim = 128,
       .vocab = 151936,
       .positions = 40960,
       .theta = 1000000,
       .bos = 151643,
       .eos = 151645},
      {.preset = {"qwen3-30b-a3b", "Qwen3-30B-A3B (128 experts, 8 active)"},
       .family = ModelShape::qwen3_moe,
       .hidden = 2048,
       .ff = 6144,
       .layers = 48,
       .heads = 32,
       .kv_heads = 4,
       .head_dim = 128,
       .vocab = 151936,
       .positions = 40960,
       .theta = 1000000,
       .bos = 151643,
       .eos = 151645,
       .experts = 128,
       .top_k = 8,
       .expert_ff = 768},
      {.preset = {"mixtral-8x7b", "Mixtral-8x7B (8 experts, 2 active)"},
       .family = ModelShape::mixtral,
       .hidden = 4096,
       .ff = 14336,
       .layers = 32,
       .heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .vocab = 32000,
       .positions = 32768,
       .theta = 1000000,
       .bos = 1,
       .eos = 2,
       .experts = 8,
       .top_k = 2},
      {.preset = {"gemma2-9b", "Gemma 2 9B (tied head, soft caps, windows of 4096)"},
       .family = ModelShape::gemma2,
       .hidden = 3584,
       .ff = 14336,
       .layers = 42,
       .heads = 16,
       .kv_heads = 8,
       .head_dim = 256,
       .vocab = 256000,
       .positions = 8192,
       .theta = 10000,
       .tied = true,
       .bos = 2,
       .eos = 1,
       .window = 4096},
      {.preset = {"gemma3-1b", "Gemma 3 1B (tied head, windows of 512)"},
       .family = ModelShape::gemma3,
       .hidden = 1152,
       .ff = 6912,
       .layers = 26,
       .heads = 4,
       .kv_heads = 1,
       .head_dim = 256,
       .vocab = 262144,
       .positions = 32768,
       .theta = 1000000,
       .tied = true,
       .bos = 2,
       .eos = 1,
       .window = 512},
      {.preset = {"phi3-mini", "Phi-3-mini-4k (fused q, k, v and gate, up)"},
       .family = ModelShape::phi3,
       .hidden = 3072,
       .ff = 8192,
       .layers = 32,
       .heads = 32,
       .kv_heads = 32,
       .head_dim = 96,
       .vocab = 32064,
       .positions = 4096,
       .theta = 10000,
       .bos = 1,
       .eos = 32000,
       .window = 2047},
      {.preset = {"phi4", "Phi-4 14B (fused q, k, v and gate, up)"},
       .family = ModelShape::phi3,
       .hidden = 5120,
       .ff = 17920,
       .layers = 40,
       .heads = 40,
       .kv_heads = 10,
       .head_dim = 128,
       .vocab = 100352,
       .positions = 16384,
       .theta = 250000,
       .bos = 100257,
       .eos = 100265},
      {.preset = {"tiny", "two small blocks, for tests"},
       .hidden = 128,
       .ff = 256,
       .layers = 2,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 32,
       .vocab = 512,
       .positions = 2048,
       .theta = 10000,
       .bos = 1,
       .eos = 2},
      {.preset = {"tiny-moe", "two small blocks of four experts, for tests"},
       .family = ModelShape::qwen3_moe,
       .hidden = 128,
       .ff = 256,
       .layers = 2,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 32,
       .vocab = 512,
       .positions = 2048,
       .theta = 10000,
       .bos = 1,
       .eos = 2,
       .experts = 4,
       .top_k = 2,
       .expert_ff = 128},
      {.preset = {"tiny-gemma2", "two small blocks of Gemma 2, for tests"},
       .family = ModelShape::gemma2,
       .hidden = 128,
       .ff = 256,
       .layers = 2,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 64,
       .vocab = 512,
       .positions = 2048,
       .theta = 10000,
       .tied = true,
       .bos = 2,
       .eos = 1,
       .window = 16},
      {.preset = {"tiny-gemma3", "six small blocks of Gemma 3, for tests"},
       .family = ModelShape::gemma3,
       .hidden = 128,
       .ff = 256,
       .layers = 6,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 64,
       .vocab = 512,
       .positions = 2048,
       .theta = 1000000,
       .tied = true,
       .bos = 2,
       .eos = 1,
       .window = 16},
      {.preset = {"tiny-phi3", "two small blocks of Phi-3, for tests"},
       .family = ModelShape::phi3,
       .hidden = 128,
       .ff = 256,
       .layers = 2,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 64,
       .vocab = 512,
       .positions = 2048,
       .theta = 10000,
       .bos = 1,
       .eos = 2},
  };
  return all;
}

const ModelShape& model_shape(const std::string& name) {
  std::string known;
  for (const ModelShape& s : model_shapes()) {
    if (s.preset.name == name) return s;
    known += ' ';
    known += s.preset.name;
  }
  fail(ErrorKind::usage, "no preset \"" + name + "\"; known:" + known);
}

namespace {

using nlohmann::ordered_json;

struct FamilyNames {
  const char *class_name, *model_type;
};
FamilyNames names_of(ModelShape::Family family) {
  switch (family) {
    case ModelShape::llama:
      return {"LlamaForCausalLM", "llama"};
    case ModelShape::qwen3:
      return {"Qwen3ForCausalLM", "qwen3"};
    case ModelShape::qwen3_moe:
      return {"Qwen3MoeForCausalLM", "qwen3_moe"};
    case ModelShape::mixtral:
      return {"MixtralForCausalLM", "mixtral"};
    case ModelShape::gemma2:
      return {"Gemma2ForCausalLM", "gemma2"};
    case ModelShape::gemma3:
      return {"Gemma3ForCausalLM", "gemma3_text"};
    case ModelShape::phi3:
      return {"Phi3ForCausalLM", "phi3"};
  }
  bug("a family without names");
}

void put_llama(const ModelShape&, int64_t, ordered_json& c) {
  c["mlp_bias"] = false;
  c["pretraining_tp"] = 1;
}

void put_qwen3(const ModelShape& s, int64_t layers, ordered_json& c) {
  c["max_window_layers"] = layers;
  c["rms_norm_eps"] = 1e-6;
  c["sliding_window"] = nullptr;
  c["use_sliding_window"] = false;
  if (s.experts == 0) return;
  c["decoder_sparse_step"] = 1;
  c["mlp_only_layers"] = ordered_json::array();
  c["moe_intermediate_size"] = s.expert_ff;
  c["norm_topk_prob"] = true;
  c["num_experts"] = s.experts;
  c["num_experts_per_tok"] = s.top_k;
  c["output_router_logits"] = false;
  c["router_aux_loss_coef"] = 0.001;
}

void put_mixtral(const ModelShape& s, int64_t, ordered_json& c) {
  c["num_local_experts"] = s.experts;
  c["num_experts_per_tok"] = s.top_k;
  c["output_router_logits"] = false;
  c["router_aux_loss_coef"] = 0.02;
  c["sliding_window"] = nullptr;
}

void put_gemma(const ModelShape& s, int64_t, ordered_json& c) {
  const bool second = s.family == ModelShape::gemma2;
  c.erase("hidden_act");
  c["attn_logit_softcapping"] = second ? ordered_json(50.0) : ordered_json();
  c["final_logit_softcapping"] = second ? ordered_json(30.0) : ordered_json();
  c["hidden_activation"] = "gelu_pytorch_tanh";
  c["pad_token_id"] = 0;
  c["query_pre_attn_scalar"] = s.head_dim;
  c["rms_norm_eps"] = 1e-6;
  c["sliding_window"] = s.window;
  if (second) return;
  c["rope_local_base_freq"] = 10000.0;
  c["sliding_window_pattern"] = 6;
}

void put_phi3(const ModelShape& s, int64_t, ordered_json& c) {
  c["original_max_position_embeddings"] = s.positions;
  c["sliding_window"] = s.window > 0 ? ordered_json(s.window) : ordered_json();
}

}  // namespace

ordered_json config_of(const ModelShape& s, int64_t layers) {
  const FamilyNames names = names_of(s.family);
  ordered_json c;
  c["architectures"] = {names.class_name};
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
  c["model_type"] = names.model_type;
  c["num_attention_heads"] = s.heads;
  c["num_hidden_layers"] = layers;
  c["num_key_value_heads"] = s.kv_heads;
  c["rms_norm_eps"] = 1e-5;
  c["rope_scaling"] = nullptr;
  if (s.llama3_factor > 0) {
    c["rope_scaling"] = {{"factor", s.llama3_factor},
                         {"high_freq_factor", 4.0},
                         {"low_freq_factor", 1.0},
                         {"original_max_position_embeddings", 8192},
                         {"rope_type", "llama3"}};
  }
  c["rope_theta"] = s.theta;
  c["tie_word_embeddings"] = s.tied;
  c["torch_dtype"] = "bfloat16";
  c["use_cache"] = true;
  c["vocab_size"] = s.vocab;
  switch (s.family) {
    case ModelShape::llama:
      put_llama(s, layers, c);
      break;
    case ModelShape::qwen3:
    case ModelShape::qwen3_moe:
      put_qwen3(s, layers, c);
      break;
    case ModelShape::mixtral:
      put_mixtral(s, layers, c);
      break;
    case ModelShape::gemma2:
    case ModelShape::gemma3:
      put_gemma(s, layers, c);
      break;
    case ModelShape::phi3:
      put_phi3(s, layers, c);
      break;
  }
  return c;
}

ordered_json generation_config_of(const ModelShape& s) {
  const bool qwen = s.family == ModelShape::qwen3 || s.family == ModelShape::qwen3_moe;
  ordered_json c;
  c["bos_token_id"] = s.bos;
  c["do_sample"] = true;
  c["eos_token_id"] = s.eos;
  c["temperature"] = 0.6;
  if (qwen) c["top_k"] = 20;
  c["top_p"] = qwen ? 0.95 : 0.9;
  return c;
}

}  // namespace fewbit

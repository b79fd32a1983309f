#include "src/model/synth_shapes.h"

#include <nlohmann/json.hpp>

#include "src/core/error.h"

namespace fewbit {

using nlohmann::ordered_json;

namespace {

constexpr auto kLlama = SynthShape::llama;
constexpr auto kQwen3 = SynthShape::qwen3;
constexpr auto kQwen3Moe = SynthShape::qwen3_moe;
constexpr auto kMixtral = SynthShape::mixtral;
constexpr auto kGemma2 = SynthShape::gemma2;
constexpr auto kGemma3 = SynthShape::gemma3;
constexpr auto kPhi3 = SynthShape::phi3;

// Values of the public models' config.json.
// clang-format off
const SynthShape kShapes[] = {
// hidden size, feed-forward size, layers, query and key/value heads, head size, vocabulary, positions, rotary theta,
// bos, eos, rotary scaling factor, tied head, experts, active experts, expert width, sliding window
// family     hid     ff   L   q  kv  dim   vocab     ctx    theta     bos     eos  rf   tied  exp  k  width   win
  {{"llama3-8b", "Meta-Llama-3-8B"},
   kLlama,    4096, 14336, 32, 32,  8, 128, 128256,   8192,  500000, 128000, 128001},
  {{"llama3.1-8b", "Llama-3.1-8B (rope scaling llama3, factor 8)"},
   kLlama,    4096, 14336, 32, 32,  8, 128, 128256, 131072,  500000, 128000, 128001,  8, false},
  {{"llama3-70b", "Meta-Llama-3-70B"},
   kLlama,    8192, 28672, 80, 64,  8, 128, 128256,   8192,  500000, 128000, 128001},
  {{"llama-1b", "Llama-3.2-1B (tied head)"},
   kLlama,    2048,  8192, 16, 32,  8,  64, 128256, 131072,  500000, 128000, 128001, 32,  true},
  {{"qwen3-8b", "Qwen3-8B"},
   kQwen3,    4096, 12288, 36, 32,  8, 128, 151936,  40960, 1000000, 151643, 151645},
  {{"qwen3-32b", "Qwen3-32B"},
   kQwen3,    5120, 25600, 64, 64,  8, 128, 151936,  40960, 1000000, 151643, 151645},
  {{"qwen3-30b-a3b", "Qwen3-30B-A3B (128 experts, 8 active)"},
   kQwen3Moe, 2048,  6144, 48, 32,  4, 128, 151936,  40960, 1000000, 151643, 151645,  0, false, 128, 8,   768},
  {{"mixtral-8x7b", "Mixtral-8x7B (8 experts, 2 active)"},
   kMixtral,  4096, 14336, 32, 32,  8, 128,  32000,  32768, 1000000,      1,      2,  0, false,   8, 2, 14336},
  {{"gemma2-9b", "Gemma 2 9B (tied head, soft caps, windows of 4096)"},
   kGemma2,   3584, 14336, 42, 16,  8, 256, 256000,   8192,   10000,      2,      1,  0,  true,   0, 0,     0, 4096},
  {{"gemma3-1b", "Gemma 3 1B (tied head, windows of 512)"},
   kGemma3,   1152,  6912, 26,  4,  1, 256, 262144,  32768, 1000000,      2,      1,  0,  true,   0, 0,     0,  512},
  {{"phi3-mini", "Phi-3-mini-4k (fused q, k, v and gate, up)"},
   kPhi3,     3072,  8192, 32, 32, 32,  96,  32064,   4096,   10000,      1,  32000,  0, false,   0, 0,     0, 2047},
  {{"phi4", "Phi-4 14B (fused q, k, v and gate, up)"},
   kPhi3,     5120, 17920, 40, 40, 10, 128, 100352,  16384,  250000, 100257, 100265},
  {{"tiny", "two small blocks, for tests"},
   kLlama,     128,   256,  2,  4,  2,  32,    512,   2048,   10000,      1,      2},
  {{"tiny-moe", "two small blocks of four experts, for tests"},
   kQwen3Moe,  128,   256,  2,  4,  2,  32,    512,   2048,   10000,      1,      2,  0, false,   4, 2,   128},
  {{"tiny-gemma2", "two small blocks of Gemma 2, for tests"},
   kGemma2,    128,   256,  2,  4,  2,  64,    512,   2048,   10000,      2,      1,  0,  true,   0, 0,     0,   16},
  {{"tiny-gemma3", "six small blocks of Gemma 3, for tests"},
   kGemma3,    128,   256,  6,  4,  2,  64,    512,   2048, 1000000,      2,      1,  0,  true,   0, 0,     0,   16},
  {{"tiny-phi3", "two small blocks of Phi-3, for tests"},
   kPhi3,      128,   256,  2,  2,  1,  64,    512,   2048,   10000,      1,      2},
};
// clang-format on

struct FamilyNames {
  const char *class_name, *model_type;
};
FamilyNames names_of(SynthShape::Family family) {
  switch (family) {
    case SynthShape::llama:
      return {"LlamaForCausalLM", "llama"};
    case SynthShape::qwen3:
      return {"Qwen3ForCausalLM", "qwen3"};
    case SynthShape::qwen3_moe:
      return {"Qwen3MoeForCausalLM", "qwen3_moe"};
    case SynthShape::mixtral:
      return {"MixtralForCausalLM", "mixtral"};
    case SynthShape::gemma2:
      return {"Gemma2ForCausalLM", "gemma2"};
    case SynthShape::gemma3:
      return {"Gemma3ForCausalLM", "gemma3_text"};
    case SynthShape::phi3:
      return {"Phi3ForCausalLM", "phi3"};
  }
  bug("a family without names");
}

void put_llama(const SynthShape&, int64_t, ordered_json& c) {
  c["mlp_bias"] = false;
  c["pretraining_tp"] = 1;
}

void put_qwen3(const SynthShape& s, int64_t layers, ordered_json& c) {
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

void put_mixtral(const SynthShape& s, int64_t, ordered_json& c) {
  c["num_local_experts"] = s.experts;
  c["num_experts_per_tok"] = s.top_k;
  c["output_router_logits"] = false;
  c["router_aux_loss_coef"] = 0.02;
  c["sliding_window"] = nullptr;
}

void put_gemma(const SynthShape& s, int64_t, ordered_json& c) {
  const bool second = s.family == SynthShape::gemma2;
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

void put_phi3(const SynthShape& s, int64_t, ordered_json& c) {
  c["original_max_position_embeddings"] = s.positions;
  c["sliding_window"] = s.window > 0 ? ordered_json(s.window) : ordered_json();
}

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
    case SynthShape::llama:
      put_llama(s, layers, c);
      break;
    case SynthShape::qwen3:
    case SynthShape::qwen3_moe:
      put_qwen3(s, layers, c);
      break;
    case SynthShape::mixtral:
      put_mixtral(s, layers, c);
      break;
    case SynthShape::gemma2:
    case SynthShape::gemma3:
      put_gemma(s, layers, c);
      break;
    case SynthShape::phi3:
      put_phi3(s, layers, c);
      break;
  }
  return c.dump(2);
}

std::string synth_generation_config(const SynthShape& s) {
  const bool qwen = s.family == SynthShape::qwen3 || s.family == SynthShape::qwen3_moe;
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

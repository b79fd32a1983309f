#include "src/model/synth/synth_shapes.h"

#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/text/nearest.h"
#include "src/model/family.h"
#include "src/model/synth/synth_configs.h"

namespace fewbit {

using nlohmann::ordered_json;

struct SynthKind {
  const Family* family;
  void (*put)(const SynthShape&, int64_t layers, ordered_json&);
  bool few_tokens = false;
};

namespace {

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

void put_gemma(const SynthShape& s, ordered_json& c) {
  c.erase("hidden_act");
  c["hidden_activation"] = "gelu_pytorch_tanh";
  c["pad_token_id"] = 0;
  c["query_pre_attn_scalar"] = s.head_dim;
  c["rms_norm_eps"] = 1e-6;
  c["sliding_window"] = s.window;
}

void put_gemma2(const SynthShape& s, int64_t, ordered_json& c) {
  put_gemma(s, c);
  c["attn_logit_softcapping"] = 50.0;
  c["final_logit_softcapping"] = 30.0;
}

void put_gemma3(const SynthShape& s, int64_t, ordered_json& c) {
  put_gemma(s, c);
  c["attn_logit_softcapping"] = nullptr;
  c["final_logit_softcapping"] = nullptr;
  c["rope_local_base_freq"] = 10000.0;
  c["sliding_window_pattern"] = 6;
}

void put_phi3(const SynthShape& s, int64_t, ordered_json& c) {
  c["original_max_position_embeddings"] = s.positions;
  c["sliding_window"] = s.window > 0 ? ordered_json(s.window) : ordered_json();
}

constexpr bool kFewTokens = true;  // its generation_config.json takes a token of 20

constexpr SynthKind kLlamaKind{&family_llama, &put_llama}, kQwen3Kind{&family_qwen3, &put_qwen3, kFewTokens},
    kQwen3MoeKind{&family_qwen3_moe, &put_qwen3, kFewTokens}, kMixtralKind{&family_mixtral, &put_mixtral},
    kGemma2Kind{&family_gemma2, &put_gemma2}, kGemma3Kind{&family_gemma3, &put_gemma3},
    kPhi3Kind{&family_phi3, &put_phi3};
constexpr const SynthKind *kLlama = &kLlamaKind, *kQwen3 = &kQwen3Kind, *kQwen3Moe = &kQwen3MoeKind,
                          *kMixtral = &kMixtralKind, *kGemma2 = &kGemma2Kind, *kGemma3 = &kGemma3Kind,
                          *kPhi3 = &kPhi3Kind;

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

}  // namespace

std::vector<SynthPreset> synth_presets() {
  std::vector<SynthPreset> out;
  for (const SynthShape& s : kShapes) out.push_back(s.preset);
  for (const SynthPublished& p : published_presets()) out.push_back(p.preset);
  return out;
}

const SynthShape& synth_shape(const std::string& name) {
  for (const SynthShape& s : kShapes)
    if (s.preset.name == name) return s;
  std::vector<std::string_view> known;
  for (const SynthPreset& p : synth_presets()) known.push_back(p.name);
  fail(ErrorKind::usage, unknown_name("--preset", name, known));
}

std::string synth_config(const SynthShape& s, int64_t layers) {
  ordered_json c;
  c["architectures"] = {s.kind->family->name()};
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
  c["model_type"] = s.kind->family->model_types[0];
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
  s.kind->put(s, layers, c);
  return c.dump(2);
}

std::string synth_generation_config(const SynthShape& s) {
  const bool few = s.kind->few_tokens;
  ordered_json c;
  c["bos_token_id"] = s.bos;
  c["do_sample"] = true;
  c["eos_token_id"] = s.eos;
  c["temperature"] = 0.6;
  if (few) c["top_k"] = 20;
  c["top_p"] = few ? 0.95 : 0.9;
  return c.dump(2);
}

}  // namespace fewbit

#include "src/model/gguf_family.h"

#include "src/core/error.h"

namespace fewbit {
namespace {

// The first line of a name in the file is what it is read as.
constexpr GgufFamily kFamilies[] = {
    {.class_name = "LlamaForCausalLM", .gguf = "llama", .model_type = "llama", .pairs = true, .output_biases = true},
    {.class_name = "MistralForCausalLM", .gguf = "llama", .model_type = "mistral", .pairs = true},
    {.class_name = "MixtralForCausalLM", .gguf = "llama", .model_type = "mixtral", .experts = true, .pairs = true},
    {.class_name = "Qwen2ForCausalLM", .gguf = "qwen2", .model_type = "qwen2"},
    {.class_name = "Qwen3ForCausalLM", .gguf = "qwen3", .model_type = "qwen3"},
    {.class_name = "Qwen3MoeForCausalLM",
     .gguf = "qwen3moe",
     .model_type = "qwen3_moe",
     .experts = true,
     .expert_width = true},
    {.class_name = "Gemma2ForCausalLM",
     .gguf = "gemma2",
     .model_type = "gemma2",
     .window_period = 2,
     .window = 4096,
     .attention_cap = 50,
     .logit_cap = 30,
     .logit_cap_key = true,
     .scaled_by_width = 46,  // Gemma 2 27B
     .norms_behind = true,
     .score_keys = true,
     .untied = false,
     .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh"},
    {.class_name = "Gemma3ForCausalLM",
     .gguf = "gemma3",
     .model_type = "gemma3_text",
     .window_period = 6,
     .logit_cap_key = true,
     .sliding_rotation = true,
     .scaled_by_width = 62,  // Gemma 3 27B
     .norms_behind = true,
     .score_keys = true,
     .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh"},
    {.class_name = "Phi3ForCausalLM",
     .gguf = "phi3",
     .model_type = "phi3",
     .partial_rotary = true,
     .window_period = GgufFamily::kEveryLayer,
     .long_rope = true},
};

template <class Same>
const GgufFamily* find(std::string* known, std::string_view GgufFamily::*name, const Same& same) {
  for (const GgufFamily& f : kFamilies) {
    if (same(f)) return &f;
    if (known->find(' ' + std::string(f.*name)) == std::string::npos) (*known += ' ') += f.*name;
  }
  return nullptr;
}

}  // namespace

const GgufFamily& gguf_family_of(const ModelSpec& spec) {
  std::string known;
  if (const auto* f =
          find(&known, &GgufFamily::class_name, [&](const GgufFamily& f) { return f.class_name == spec.arch; }))
    return *f;
  fail(ErrorKind::unsupported, spec.arch + ": no GGUF of this architecture is written; known:" + known);
}

const GgufFamily& gguf_family_named(const std::string& architecture, bool experts, const std::string& where) {
  std::string known;
  if (const auto* f = find(&known, &GgufFamily::gguf,
                           [&](const GgufFamily& f) { return f.gguf == architecture && f.experts == experts; }))
    return *f;
  fail(ErrorKind::unsupported, where + ": general.architecture: found \"" + architecture + "\"" +
                                   (experts ? " with experts" : "") + "; known:" + known);
}

}  // namespace fewbit

// Llama, and Mistral, which is Llama with a sliding window on every layer; alone or as the language model of a vision
// model.
#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_llama(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  const DecoderBiases bias{.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)};
  // Llama's own config has no window; a config that brings one means Mistral's.
  return decoder_spec(c, s, decoder_block(c, s, bias), mistral_windows(c, s));
}

ModelSpec arch_mistral3(const ConfigView& c) {
  c.must_equal("model_type", "mistral");  // ministral3 scales its queries by their position
  return arch_llama(c);
}

}  // namespace

const Family family_llama = {
    .classes = {{"LlamaForCausalLM"}},
    .model_types = {"llama"},
    .build = &arch_llama,
    .chat = "llama3",
    .gguf = {.arch = "llama", .pairs = true, .output_biases = true, .divisors = true},
};

const Family family_mistral = {
    .classes = {{"MistralForCausalLM"}},
    .model_types = {"mistral"},
    .build = &arch_llama,
    .chat = "mistral",
    .gguf = {.arch = "llama", .pairs = true, .divisors = true},
};

const Family family_mistral3 = {
    .classes = {{"Mistral3ForConditionalGeneration", "language_model.model.", "language_model.lm_head."}},
    .model_types = {"mistral3"},
    .build = &arch_mistral3,
    .keeps = {{"vision_tower.*", kVisionTower, true}, {"multi_modal_projector.*", kProjector, true}},
    .chat = "mistral",
    .gguf = {.arch = "mistral3", .read_as = "MistralForCausalLM", .pairs = true, .divisors = true},
};

}  // namespace fewbit

// Llama, and the two that have its block: Mistral (a sliding window on every layer) and Qwen2 (biases on q,
// k, v, which its config does not mention).
#include "src/model/archs/decoder.h"

namespace fewbit {

ModelSpec arch_llama(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const std::string name = c.architecture();
  if (name == "Qwen2ForCausalLM") {
    const DecoderBiases qkv{.qkv = true};
    return decoder_spec(c, s, decoder_block(c, s, qkv), qwen_windows(c, s));
  }
  const bool attention = c.flag("attention_bias", false);
  const DecoderBiases bias{.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)};
  // Llama's own config has no window; a config that brings one means Mistral's.
  return decoder_spec(c, s, decoder_block(c, s, bias), mistral_windows(c, s));
}

}  // namespace fewbit

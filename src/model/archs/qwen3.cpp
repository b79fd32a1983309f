// Qwen3: Llama's block with an RMS norm on every head of q and k, before the rotation; alone or as the language model
// of Qwen3-VL.
#include "src/model/archs/decoder.h"

namespace fewbit {

ModelSpec arch_qwen3(const ConfigView& whole) {
  const ConfigView c = whole.text_model();
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  std::vector<BlockOp> block = decoder_block(c, s, {.qkv = attention, .o = attention});
  add_head_norms(block, s);
  ModelSpec spec = decoder_spec(c, s, block, qwen_windows(c, s));
  if (c.architecture() == "Qwen3VLForConditionalGeneration") move_text_model(spec, "model.language_model.");
  return spec;
}

}  // namespace fewbit

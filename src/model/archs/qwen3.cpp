// Qwen3: Llama's block with an RMS norm on every head of q and k, before the rotation.
#include "src/model/archs/decoder.h"

namespace fewbit {

ModelSpec arch_qwen3(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  std::vector<BlockOp> block = decoder_block(c, s, {.qkv = attention, .o = attention});
  add_head_norms(block, s);
  return decoder_spec(c, s, block, qwen_windows(c, s));
}

}  // namespace fewbit

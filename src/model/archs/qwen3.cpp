// Qwen3: Llama's block with an RMS norm on every head of q and k, before the rotation.
#include <algorithm>

#include "src/model/archs/decoder.h"

namespace fewbit {

ModelSpec arch_qwen3(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  std::vector<BlockOp> block = decoder_block(c, s, {.qkv = attention, .o = attention});
  const auto rope = std::find_if(block.begin(), block.end(),
                                 [](const BlockOp& op) { return std::holds_alternative<Rope>(op); });
  block.insert(rope, {BlockOp{HeadNorm{Slot::q, NormKind::rms, "self_attn.q_norm", s.head_dim, s.eps}},
                      BlockOp{HeadNorm{Slot::k, NormKind::rms, "self_attn.k_norm", s.head_dim, s.eps}}});
  return decoder_spec(c, s, block, qwen_windows(c, s));
}

}  // namespace fewbit

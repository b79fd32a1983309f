#pragma once
// What the Llama family of decoders shares: sizes read from a config, the block they all have, and how layers
// get their attention windows.
#include "src/model/archs.h"

namespace fewbit {

struct DecoderSizes {
  int64_t hidden = 0, intermediate = 0, layers = 0, vocab = 0, positions = 0, head_dim = 0;
  int heads = 0, kv_heads = 0;
  float eps = 0;
};
// Error{checkpoint} naming the key where a size is absent, not positive, or does not divide.
DecoderSizes decoder_sizes(const ConfigView&);

struct DecoderBiases {
  bool qkv = false, o = false, mlp = false;
};
// x += o(attention(q, k, v of norm(x))); x += down(silu(gate) * up of norm(x)). The window is left at 0.
std::vector<BlockOp> decoder_block(const ConfigView&, const DecoderSizes&, const DecoderBiases&);

// The spec around one block: ends, tokens, and one kind of block per window in use. `window_of_layer`
// [layers], 0 = full attention.
ModelSpec decoder_spec(const ConfigView&, const DecoderSizes&, const std::vector<BlockOp>& block,
                       const std::vector<int64_t>& window_of_layer);

// Windows by `layer_types` where the config has them, else `sliding_window` from layer `first_windowed` on.
std::vector<int64_t> layer_windows(const ConfigView&, const DecoderSizes&, int64_t window,
                                   int64_t first_windowed);
// The Qwen rule: no window unless use_sliding_window, then from layer max_window_layers on.
std::vector<int64_t> qwen_windows(const ConfigView&, const DecoderSizes&);

}  // namespace fewbit

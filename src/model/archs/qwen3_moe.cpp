// Qwen3-MoE and Qwen2-MoE: the family's block with a mixture of experts for its MLP, except in the layers that
// mlp_only_layers and decoder_sparse_step leave dense. Qwen3 norms the heads of q and k; Qwen2 has biases on q, k, v
// and a shared expert with a gate.
#include <algorithm>

#include "src/model/archs/decoder.h"

namespace fewbit {

ModelSpec arch_qwen3_moe(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool second = c.architecture() == "Qwen2MoeForCausalLM", attention = c.flag("attention_bias", false);
  c.must_be_false("use_sliding_window");
  std::vector<BlockOp> dense = second ? decoder_block(c, s, {.qkv = c.flag("qkv_bias", true)})
                                      : decoder_block(c, s, {.qkv = attention, .o = attention});
  if (!second) add_head_norms(dense, s);
  const MoeNames names = {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"};
  std::vector<BlockOp> sparse =
      moe_block(c, dense, names, size_key(c, "moe_intermediate_size"), c.flag("norm_topk_prob", false));
  if (second)
    add_shared_expert(sparse, "mlp.shared_expert.", size_key(c, "shared_expert_intermediate_size"),
                      "mlp.shared_expert_gate");
  const int64_t step = size_key(c, "decoder_sparse_step", 1);
  const std::vector<int64_t> dense_layers = c.i64_list("mlp_only_layers");
  std::vector<int> variant_of_layer;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const bool listed = std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end();
    variant_of_layer.push_back(!listed && (layer + 1) % step == 0);
  }
  return decoder_spec(c, s, {dense, sparse}, variant_of_layer, std::vector<int64_t>(static_cast<size_t>(s.layers), 0));
}

}  // namespace fewbit

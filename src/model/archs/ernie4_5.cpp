// ERNIE 4.5: Llama's block, in which neighbours turn together; with experts whose router adds a correction to its
// scores for the choice alone.
#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_ernie4_5(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool bias = c.flag("use_bias", false);
  std::vector<BlockOp> block = decoder_block(c, s, {.qkv = bias, .o = bias, .mlp = bias});
  turn_neighbours(block);
  return decoder_spec(c, s, block);
}

ModelSpec arch_ernie4_5_moe(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  c.must_be_false("use_bias");
  std::vector<BlockOp> dense = decoder_block(c, s, {});
  turn_neighbours(dense);
  const int64_t width = size_key(c, "moe_intermediate_size"), shared = c.i64("moe_num_shared_experts", 2);
  std::vector<BlockOp> sparse =
      moe_block(c, dense, {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}, width, true);
  Moe& moe = experts_of(sparse);
  correct(moe, "mlp.moe_statics.e_score_correction_bias", {1, moe.experts});
  if (shared > 0) add_shared_expert(sparse, "mlp.shared_experts.", shared * width, "");
  const int64_t first = c.i64("moe_layer_start_index", 1), last = c.i64("moe_layer_end_index", -1),
                interval = size_key(c, "moe_layer_interval", 1);
  std::vector<int> variant_of_layer;
  for (int64_t i = 0; i < s.layers; ++i)
    variant_of_layer.push_back((i + 1) % interval == 0 && i >= first && (last < 0 || i <= last));
  return decoder_spec(c, s, {dense, sparse}, variant_of_layer);
}

}  // namespace

const Family family_ernie4_5 = {
    .classes = {{"Ernie4_5ForCausalLM"}},
    .model_types = {"ernie4_5"},
    .build = &arch_ernie4_5,
    .gguf = {.arch = "ernie4_5", .pairs = true, .config = R"({"use_bias": false})"},
};

const Family family_ernie4_5_moe = {
    .classes = {{"Ernie4_5_MoeForCausalLM"}},
    .model_types = {"ernie4_5_moe"},
    .build = &arch_ernie4_5_moe,
    .keeps = {{"mlp.gate_proj", kFirstDense},
              {"mlp.up_proj", kFirstDense},
              {"mlp.down_proj", kFirstDense},
              {"model.mtp_*", kNextTokens, true}},
    .gguf = {.arch = "ernie4_5-moe",
             .has_experts = true,
             .experts = {.leading_dense = true,
                         .step_key = true,
                         .width_key = true,
                         .count = "moe_num_experts",
                         .used = "moe_k",
                         .width = "moe_intermediate_size",
                         .dense_layers = "moe_layer_start_index",
                         .shared_count = "moe_num_shared_experts"},
             .pairs = true,
             .config = R"({"use_bias": false})"},
};

}  // namespace fewbit

// MiniMax-M2: Llama's block with norms over all heads of q and of k, a part of every head that turns, and experts whose
// router adds a correction to its scores for the choice alone.
#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_minimax_m2(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  if (c.has("rotary_dim")) s.partial = static_cast<double>(size_key(c, "rotary_dim")) / static_cast<double>(s.head_dim);
  c.must_equal("scoring_func", "sigmoid");
  c.must_equal("qk_norm_type", "per_layer");
  c.must_be_true("use_qk_norm");
  if (c.i64("shared_intermediate_size", 0) != 0)
    fail(ErrorKind::unsupported, c.where() + ": shared_intermediate_size: only 0 is supported");
  for (const int64_t type : c.i64_list("attn_type_list"))
    if (type != 1) fail(ErrorKind::unsupported, c.where() + ": attn_type_list: only 1 (full attention) is supported");
  std::vector<BlockOp> block = decoder_block(c, s, {});
  add_whole_norms(block, s);
  block = moe_block(c, block, {"block_sparse_moe.gate", "block_sparse_moe.experts.", "w1", "w3", "w2"}, s.intermediate,
                    true);
  Moe& moe = experts_of(block);
  moe.score = RouterScore::sigmoid;
  if (c.flag("use_routing_bias", true)) correct(moe, "block_sparse_moe.e_score_correction_bias", {moe.experts});
  return decoder_spec(c, s, block, mistral_windows(c, s));
}

}  // namespace

const Family family_minimax_m2 = {
    .classes = {{"MiniMaxM2ForCausalLM"}},
    .model_types = {"minimax_m2"},
    .build = &arch_minimax_m2,
    .gguf = {.arch = "minimax-m2",
             .has_experts = true,
             .experts = {.score = RouterScore::sigmoid, .score_key = true, .width_key = true},
             .partial_rotary = true,
             .tied = false,
             .config = R"({"scoring_func": "sigmoid", "use_qk_norm": true, "qk_norm_type": "per_layer"})"},
};

}  // namespace fewbit

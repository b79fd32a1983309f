// Look-alikes of Llama: SmolLM3 (some layers do not turn), Seed-OSS (a bias of its own on o), HunYuan (norms of q and k
// behind the rotation).
#include <algorithm>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_smollm3(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  const DecoderBiases bias{.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)};
  const std::vector<BlockOp> turns = decoder_block(c, s, bias);
  std::vector<int> still;
  for (const bool turning : turning_layers(c, s)) still.push_back(turning ? 0 : 1);
  return decoder_spec(c, s, {turns, without_rope(turns)}, still, qwen_windows(c, s));
}

ModelSpec arch_seed_oss(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const DecoderBiases bias{.qkv = c.flag("attention_bias", true),
                           .o = c.flag("attention_out_bias", false),
                           .mlp = c.flag("mlp_bias", false)};
  return decoder_spec(c, s, decoder_block(c, s, bias), mistral_windows(c, s));
}

ModelSpec arch_hunyuan(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  c.must_be_false("use_cla");
  c.must_equal("norm_type", "rms");
  const bool attention = c.flag("attention_bias", false);
  std::vector<BlockOp> block =
      decoder_block(c, s, {.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)});
  const auto at =
      std::find_if(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Attention>(op); });
  if (c.flag("use_qk_norm", true))
    block.insert(at, {BlockOp{HeadNorm{Slot::q, NormKind::rms, "self_attn.query_layernorm", s.head_dim, s.eps}},
                      BlockOp{HeadNorm{Slot::k, NormKind::rms, "self_attn.key_layernorm", s.head_dim, s.eps}}});
  return decoder_spec(c, s, block);
}

}  // namespace

const Family family_smollm3 = {
    .classes = {{"SmolLM3ForCausalLM"}},
    .model_types = {"smollm3"},
    .build = &arch_smollm3,
    .engines = {{"vllm", "has no class of its own for it and runs transformers' (models/registry.py)"}},
    .chat = "chatml",
    .gguf = {.arch = "smollm3", .pairs = true, .still_period = 4},
};

const Family family_seed_oss = {
    .classes = {{"SeedOssForCausalLM"}},
    .model_types = {"seed_oss"},
    .build = &arch_seed_oss,
    .gguf = {.arch = "seed_oss",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .presence = {{"attention_bias", "blk.0.attn_q.bias"}, {"attention_out_bias", "blk.0.attn_output.bias"}}},
};

const Family family_hunyuan = {
    .classes = {{"HunYuanDenseV1ForCausalLM"}},
    .model_types = {"hunyuan_v1_dense"},
    .build = &arch_hunyuan,
    .gguf = {.arch = "hunyuan-dense",
             .names = {{"self_attn.query_layernorm", "attn_q_norm"}, {"self_attn.key_layernorm", "attn_k_norm"}},
             .presence = {{"use_qk_norm", "blk.0.attn_q_norm.weight"}}},
};

}  // namespace fewbit

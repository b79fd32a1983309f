// Phi-3 and Phi-4: Llama's block with q, k, v in one linear and gate, up in another. Their outputs are taken apart, so
// that the checkpoint keeps its fused tensors, packed or not.
#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_phi3(const ConfigView& c) {
  using S = Slot;
  const DecoderSizes s = decoder_sizes(c);
  c.must_equal("hidden_act", "silu");
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const std::vector<BlockOp> block = {
      Norm{S::x, S::h, NormKind::rms, "input_layernorm", s.hidden, s.eps},
      Linears{S::h, {{"self_attn.qkv_proj", S::qkv, q + 2 * kv, s.hidden}}},
      Split{S::qkv, {{S::q, q}, {S::k, kv}, {S::v, kv}}},
      Rope{{S::q, S::k}, s.head_dim, c.rope(s.head_dim)},
      decoder_attention(s),
      Linears{S::attn, {{"self_attn.o_proj", S::h, s.hidden, q}}},
      AddTo{S::h, S::x},
      Norm{S::x, S::h, NormKind::rms, "post_attention_layernorm", s.hidden, s.eps},
      Linears{S::h, {{"mlp.gate_up_proj", S::gate_up, 2 * s.intermediate, s.hidden}}},
      Split{S::gate_up, {{S::gate, s.intermediate}, {S::up, s.intermediate}}},
      GatedAct{S::gate, S::up, S::act, Activation::silu},
      Linears{S::act, {{"mlp.down_proj", S::h, s.hidden, s.intermediate}}},
      AddTo{S::h, S::x},
  };
  return decoder_spec(c, s, block, mistral_windows(c, s));
}

}  // namespace

const Family family_phi3 = {
    .classes = {{"Phi3ForCausalLM"}},  // Phi-4 too
    .model_types = {"phi3"},
    .build = &arch_phi3,
    .gguf = {.arch = "phi3", .partial_rotary = true, .long_rope = true, .window_period = GgufFamily::kEveryLayer},
};

}  // namespace fewbit

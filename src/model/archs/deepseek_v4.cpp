// DeepSeek V4: several residual streams (hyper-connections), attention of all heads over one shared key that is the
// value too, within a window and over keys of whole blocks of tokens, and first layers whose experts the token itself
// says. Keys: configuration_deepseek_v4.py of transformers, and those of the published checkpoints.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/shared_keys.h"

namespace fewbit {
namespace {

using S = Slot;
constexpr int kMostStreamsOfModel = 8;  // that kernels/streams/streams.h takes

std::vector<BlockOp> block_of(const ConfigView& c, const DecoderSizes& s, const SharedKeyForm& form) {
  const int64_t width = size_key(c, "moe_intermediate_size"), shared = c.i64("n_shared_experts", 1) * width;
  const auto limit = static_cast<float>(c.f64("swiglu_limit", 0));
  std::vector<BlockOp> ops = shared_key_block(c, s, form);
  ops.push_back(read_streams_of(c, s, "hc_ffn"));
  ops.push_back(Norm{S::h, S::h, NormKind::rms, "ffn_norm", s.hidden, s.eps});
  for (BlockOp& op : gated_mlp("", s.hidden, width, S::h)) ops.push_back(std::move(op));
  ops = moe_block(c, ops, {"ffn.gate", "ffn.experts.", "w1", "w3", "w2"}, width, c.flag("norm_topk_prob", true));
  Moe& moe = experts_of(ops);
  moe.score = RouterScore::root_softplus;
  moe.scaling = static_cast<float>(c.f64("routed_scaling_factor", 1.5));
  moe.swiglu_limit = limit, moe.plain_swiglu = true;
  const TokenRoute route{S::h,    S::route,    moe.router, "ffn.gate.tid2eid", s.hidden,
                         s.vocab, moe.experts, moe.top_k,  moe.renormalise,    moe.scaling};
  if (form.hashed)
    moe.router.clear(), moe.router_in = S::route;
  else
    correct(moe, "ffn.gate.bias", {moe.experts});
  if (shared > 0) {
    add_shared_expert(ops, "ffn.shared_experts.", shared, "");
    for (BlockOp& op : ops) {
      if (auto* g = std::get_if<GatedAct>(&op)) g->limit = limit;
      if (auto* group = std::get_if<Linears>(&op))
        for (LinearDef& l : group->items)
          for (const auto& [from, to] : {std::pair{".gate_proj", ".w1"}, {".up_proj", ".w3"}, {".down_proj", ".w2"}})
            if (const size_t at = l.name.find(from); at != std::string::npos) l.name = l.name.substr(0, at) + to;
    }
  }
  const auto at =
      std::find_if(ops.begin(), ops.end(), [](const BlockOp& op) { return std::holds_alternative<Moe>(op); });
  if (form.hashed) ops.insert(at, route);
  ops.push_back(WriteStreams{S::h, S::mix, S::x});
  return ops;
}

ModelSpec arch_deepseek_v4(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  c.must_equal("hidden_act", "silu");
  c.must_equal("scoring_func", "sqrtsoftplus");
  c.must_equal("topk_method", "noaux_tc");
  if (const std::string type = c.str("expert_dtype", "bf16"); type != "bf16" && type != "fp8" && type != "fp4")
    fail(ErrorKind::unsupported,
         fmt::format("{}: expert_dtype: found \"{}\"; supported: bf16, fp8, fp4", c.where(), type));
  c.must_be_false("attention_bias");
  if (s.kv_heads != 1 || s.heads % size_key(c, "o_groups") != 0)
    fail(ErrorKind::checkpoint, fmt::format("{}: num_key_value_heads, o_groups: expected 1 and a divisor of {} heads, "
                                            "found {} and {}",
                                            c.where(), s.heads, s.kv_heads, size_key(c, "o_groups")));
  for (const auto& [key, least] :
       {std::pair{"head_dim", s.head_dim}, {"index_head_dim", c.i64("index_head_dim", s.head_dim)}})
    if (const int64_t rot = size_key(c, "qk_rope_head_dim"); rot > least || rot % 2 != 0 || least % 2 != 0)
      fail(ErrorKind::checkpoint,
           fmt::format("{}: {}: expected an even number of at least qk_rope_head_dim ({}, even too), found {}",
                       c.where(), key, rot, least));
  std::vector<SharedKeyForm> known;
  std::vector<std::vector<BlockOp>> variants;
  std::vector<int> variant_of_layer;
  for (const SharedKeyForm& form : shared_key_forms(c, s)) {
    const auto at = std::find(known.begin(), known.end(), form);
    variant_of_layer.push_back(static_cast<int>(at - known.begin()));
    if (at != known.end()) continue;
    known.push_back(form);
    variants.push_back(block_of(c, s, form));
  }
  ModelSpec spec = decoder_spec(c, s, variants, variant_of_layer);
  spec.block_prefix = "layers.", spec.final_norm = "norm.weight";
  spec.lm_head = spec.tied() ? "embed.weight" : "head.weight";
  spec.embed = "embed.weight";
  spec.streams = static_cast<int>(size_key(c, "hc_mult"));
  if (spec.streams > kMostStreamsOfModel || spec.streams < 2)
    fail(ErrorKind::unsupported, fmt::format("{}: hc_mult: expected from 2 to {} residual streams, found {}", c.where(),
                                             kMostStreamsOfModel, spec.streams));
  spec.streams_name = "hc_head", spec.streams_eps = static_cast<float>(c.f64("hc_eps", 1e-6));
  return spec;
}

}  // namespace

const Family family_deepseek_v4 = {
    .classes = {{"DeepseekV4ForCausalLM"}},
    .model_types = {"deepseek_v4"},
    .build = &arch_deepseek_v4,
    .keeps = {{"mtp.*", kNextTokens, true}},
    .gguf = {.why_not = "its attention over shared keys and its residual streams in one are not written yet"},
};

}  // namespace fewbit

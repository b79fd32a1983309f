// DeepSeek V2 and V3, and what is built like them (R1, Kimi K2): latent attention, a few dense layers, then experts
// whose router knows groups. The layer behind the last one (MTP) is not part of the model and travels as it is.
#include <fmt/format.h>

#include "src/model/archs/latent.h"

namespace fewbit {
namespace {

// Softmax scores; with topk_method group_limited_greedy groups are judged by their best.
std::vector<BlockOp> v2_experts(const ConfigView& c, const std::vector<BlockOp>& dense, const LatentDefaults& d) {
  c.must_equal("scoring_func", "softmax");
  const bool renormalise = c.flag("norm_topk_prob", false);
  std::vector<BlockOp> block = latent_experts(c, dense, renormalise, d);
  Moe& moe = experts_of(block);
  if (renormalise && moe.scaling != 1)  // the published code and transformers read that differently
    fail(ErrorKind::unsupported,
         c.where() + ": routed_scaling_factor: only 1 is supported where norm_topk_prob is true");
  moe.judges = 1;
  const std::string method = c.str("topk_method", "greedy");
  if (method == "group_limited_greedy")
    group_experts(c, moe, "n_group", d.groups, d.best_groups);
  else if (method != "greedy")
    fail(ErrorKind::unsupported,
         fmt::format("{}: topk_method: found \"{}\"; supported: greedy, group_limited_greedy", c.where(), method));
  return block;
}

std::vector<Sight> all_keys(const ConfigView& c) {
  return std::vector<Sight>(static_cast<size_t>(decoder_sizes(c).layers), Sight::all);
}

constexpr LatentDefaults kV2{.first_sparse = 0, .groups = 1, .best_groups = 1, .shared = 0, .scaling = 1},
    kV3{.first_sparse = 3, .groups = 8, .best_groups = 4, .shared = 1, .scaling = 2.5};

ModelSpec arch_deepseek_v2(const ConfigView& c) { return latent_spec(c, all_keys(c), false, v2_experts, kV2); }
ModelSpec arch_deepseek_v3(const ConfigView& c) { return latent_spec(c, all_keys(c), false, v3_experts, kV3); }

// Models of so many layers are V2-Lite and its kind to readers.
constexpr GgufLatent kLatent{.used = true, .plain_layers = {26, 27}, .plain_wide_layers = 48, .plain_vocab = 128256};

}  // namespace

const Family family_deepseek_v2 = {
    .classes = {{"DeepseekV2ForCausalLM"}},  // V2, V2-Lite, V2.5
    .model_types = {"deepseek_v2"},
    .build = &arch_deepseek_v2,
    .keeps = {{"mlp.gate_proj", kFirstDense},
              {"mlp.up_proj", kFirstDense},
              {"mlp.down_proj", kFirstDense},
              {"model.layers.*", kNextTokens, true}},
    .gguf = {.arch = "deepseek2",
             .has_experts = true,
             .experts = gguf_experts(RouterScore::softmax),
             .latent = kLatent,
             .pairs = true,
             .yarn_log = 0.1f,
             .yarn_follows = true},
};

const Family family_deepseek_v3 = {
    .classes = {{"DeepseekV3ForCausalLM"}},  // V3, V3.1, R1, Kimi K2
    .model_types = {"deepseek_v3", "kimi_k2"},
    .build = &arch_deepseek_v3,
    .keeps = {{"mlp.gate_proj", kFirstDense},
              {"mlp.up_proj", kFirstDense},
              {"mlp.down_proj", kFirstDense},
              {"model.layers.*", kNextTokens, true}},
    .gguf = {.arch = "deepseek2",
             .tell = {"expert_gating_func", gating_function(RouterScore::sigmoid)},
             .has_experts = true,
             .experts = gguf_experts(RouterScore::sigmoid),
             .latent = kLatent,
             .pairs = true,
             .yarn_log = 0.1f,
             .yarn_follows = true},
};

}  // namespace fewbit

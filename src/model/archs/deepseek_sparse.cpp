// DeepSeek V3.2 and GLM-5: DeepSeek V3 where attention looks at the keys that an indexer chooses.
#include <fmt/format.h>

#include "src/model/archs/latent.h"

namespace fewbit {
namespace {

// What each layer looks at, by indexer_types or index_topk_pattern ("FSS…": full, shared); an indexer of its own where
// the config has neither.
std::vector<Sight> sights(const ConfigView& c, const DecoderSizes& s) {
  std::vector<std::string> types = c.str_list("indexer_types");
  std::string at = "indexer_types";
  if (types.empty() && c.has("index_topk_pattern")) {
    at = "index_topk_pattern";
    for (const char ch : c.str(at)) types.emplace_back(ch == 'F' ? "full" : ch == 'S' ? "shared" : std::string(1, ch));
  }
  if (types.empty()) {
    if (c.i64("index_topk_freq", 1) != 1)
      fail(ErrorKind::unsupported,
           c.where() + ": index_topk_freq: supported only beside indexer_types, which says what each layer does");
    return std::vector<Sight>(static_cast<size_t>(s.layers), Sight::own);
  }
  if (static_cast<int64_t>(types.size()) < s.layers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}: expected {} entries, found {}", c.where(), at, s.layers, types.size()));
  std::vector<Sight> out;
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string& type = types[static_cast<size_t>(i)];
    if ((type != "full" && type != "shared") || (type == "shared" && i == 0))
      fail(ErrorKind::unsupported,
           fmt::format("{}: {}[{}]: found \"{}\"; supported: full, and behind one shared", c.where(), at, i, type));
    out.push_back(type == "full" ? Sight::own : Sight::shared);
  }
  return out;
}

constexpr LatentDefaults kV32{.first_sparse = 3, .groups = 8, .best_groups = 4, .shared = 1, .scaling = 2.5},
    kGlm5{.first_sparse = 3, .groups = 1, .best_groups = 1, .shared = 1, .scaling = 2.5};

ModelSpec arch_deepseek_v32(const ConfigView& c) {
  return latent_spec(c, sights(c, decoder_sizes(c)), c.flag("indexer_rope_interleave", false), v3_experts, kV32);
}

ModelSpec arch_glm_moe_dsa(const ConfigView& c) {
  return latent_spec(c, sights(c, decoder_sizes(c)), c.flag("indexer_rope_interleave", true), v3_experts, kGlm5);
}

}  // namespace

const Family family_deepseek_v32 = {
    .classes = {{"DeepseekV32ForCausalLM"}},
    .model_types = {"deepseek_v32"},
    .build = &arch_deepseek_v32,
    .keeps = {{"mlp.gate_proj", kFirstDense},
              {"mlp.up_proj", kFirstDense},
              {"mlp.down_proj", kFirstDense},
              {"model.layers.*", kNextTokens, true}},
    .gguf = {.arch = "deepseek32",
             .has_experts = true,
             .experts = gguf_experts(RouterScore::sigmoid),
             .latent = {.used = true, .indexer = true},
             .pairs = true,
             .yarn_log = 0.1f},
};

const Family family_glm_moe_dsa = {
    .classes = {{"GlmMoeDsaForCausalLM"}},  // GLM-5
    .model_types = {"glm_moe_dsa"},
    .build = &arch_glm_moe_dsa,
    .keeps = {{"mlp.gate_proj", kFirstDense},
              {"mlp.up_proj", kFirstDense},
              {"mlp.down_proj", kFirstDense},
              {"model.layers.*", kNextTokens, true}},
    .gguf = {.arch = "glm-dsa",
             .has_experts = true,
             .experts = gguf_experts(RouterScore::sigmoid),
             .latent = {.used = true, .indexer = true, .indexer_neighbours = true, .indexer_types = true},
             .pairs = true},
};

}  // namespace fewbit

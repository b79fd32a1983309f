// Metadata as a config: which layers there are, and what is in them beside attention and an MLP.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/strings.h"
#include "src/model/gguf/keys.h"

namespace fewbit {
namespace {

using nlohmann::json;

void put(json& c, std::string_view name, const json& value) {
  if (!name.empty()) c[std::string(name)] = value;
}

void state_space(const GgufKeys& k, json& c) {
  const GgufRecurrent& r = k.family.recurrent;
  const int64_t heads = k.get("ssm.time_step_rank"), inner = k.get("ssm.inner_size");
  if (heads < 1 || inner % heads != 0)
    fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected a multiple of {} heads, found {}", k.all().where(),
                                            k.key("ssm.inner_size"), heads, inner));
  put(c, r.heads, heads);
  put(c, r.head_dim, inner / heads);
  put(c, r.groups, k.get("ssm.group_count"));
  put(c, r.state, k.get("ssm.state_size"));
  put(c, r.taps, k.get("ssm.conv_kernel"));
}

void kinds_of_layers(const GgufKeys& k, json& c) {
  const GgufRecurrent& r = k.family.recurrent;
  const std::vector<int64_t> kv = k.of_layers("attention.head_count_kv", 0);
  if (r.list == GgufRecurrent::List::types) {
    json types = json::array();
    for (const int64_t heads : kv) types.push_back(heads == 0 ? r.word : r.attention_word);
    c["layer_types"] = types;
  } else if (r.list == GgufRecurrent::List::letters) {
    const std::vector<int64_t> mlp = k.of_layers("feed_forward_length", 0);
    const char wide = k.get("expert_count", 0) > 0 ? 'E' : '-';
    std::string letters;
    for (size_t i = 0; i < kv.size(); ++i) letters += kv[i] > 0 ? '*' : mlp[i] > 0 ? wide : 'M';
    c["hybrid_override_pattern"] = letters;
  } else {
    json recurrent = json::array(), attention = json::array();
    for (size_t i = 0; i < kv.size(); ++i) (kv[i] == 0 ? recurrent : attention).push_back(i + 1);
    c["linear_attn_config"] = {{"kda_layers", recurrent},
                               {"full_attn_layers", attention},
                               {"num_heads", k.get("attention.head_count")},
                               {"head_dim", k.get("kda.head_dim")},
                               {"short_conv_kernel_size", k.get("ssm.conv_kernel")}};
  }
}

void latent(const GgufKeys& k, json& c) {
  const int64_t rope = k.get("rope.dimension_count");
  c["qk_rope_head_dim"] = rope;
  c["qk_nope_head_dim"] = k.get("attention.key_length_mla") - rope;
  c["v_head_dim"] = k.get("attention.value_length_mla");
  c["kv_lora_rank"] = k.get("attention.kv_lora_rank");
  c["num_key_value_heads"] = k.get("attention.head_count");
  c["head_dim"] = rope;
  if (k.has("attention.q_lora_rank")) c["q_lora_rank"] = k.get("attention.q_lora_rank");
  if (!k.family.latent.indexer) return;
  c["index_n_heads"] = k.get("attention.indexer.head_count");
  c["index_head_dim"] = k.get("attention.indexer.key_length");
  c["index_topk"] = k.get("attention.indexer.top_k");
  const std::string types = k.key("attention.indexer.types");
  if (!k.family.latent.indexer_types || !k.all().is_array(types)) return;
  json listed = json::array();
  for (const bool own : k.all().flags(types)) listed.push_back(own ? "full" : "shared");
  c["indexer_types"] = listed;
}

void factors(const GgufKeys& k, json& c) {
  const GgufMultipliers& m = k.family.multipliers;
  put(c, m.embedding, k.number("embedding_scale", 1));
  put(c, m.residual, k.number("residual_scale", 1));
  put(c, m.logits, k.number("logit_scale", 1));
  if (m.scores.empty()) return;
  const double heads = k.number("attention.key_length", 0);
  put(c, m.scores, k.number("attention.scale", heads > 0 ? 1 / std::sqrt(heads) : 1));
}

// Gemma 4: layers with a window have heads of another size, and as many of keys as they like; the last layers may read
// the keys of others, and have MLPs twice as wide.
void two_kinds_of_heads(const GgufKeys& k, json& c) {
  const std::vector<int64_t> kv = k.of_layers("attention.head_count_kv", k.get("attention.head_count")),
                             mlp = k.of_layers("feed_forward_length", 0);
  const std::vector<bool> sliding = k.all().flags(k.key("attention.sliding_window_pattern"));
  const int64_t shared = k.get("attention.shared_kv_layers", 0);
  for (size_t i = 0; i < kv.size(); ++i)
    c[i < sliding.size() && sliding[i] ? "num_key_value_heads" : "num_global_key_value_heads"] = kv[i];
  c["final_logit_softcapping"] = k.number("final_logit_softcapping", 0);
  c["global_head_dim"] = k.get("attention.key_length");
  c["head_dim"] = k.get("attention.key_length_swa");
  c["hidden_size_per_layer_input"] = k.get("embedding_length_per_layer_input", 0);
  c["num_kv_shared_layers"] = shared;
  c["intermediate_size"] = mlp.front();
  c["use_double_wide_mlp"] = mlp.back() == 2 * mlp.front();
  c["enable_moe_block"] = k.get("expert_count", 0) > 0;
  // Values are the keys where a layer that sees everything has no tensor for them.
  bool values = true;
  for (int64_t layer = 0; layer < k.layers - shared; ++layer)
    values &= k.tensor(fmt::format("blk.{}.attn_v.weight", layer)) != nullptr;
  c["attention_k_eq_v"] = !values;
  if (values && c.contains("num_global_key_value_heads") &&
      c["num_global_key_value_heads"] != c.value("num_key_value_heads", c["num_global_key_value_heads"]))
    fail(ErrorKind::unsupported,
         fmt::format("{}: {}: layers with values of their own and with other heads than those with a window",
                     k.all().where(), k.key("attention.head_count_kv")));
}

}  // namespace

std::vector<int64_t> GgufKeys::of_layers(const std::string& name, int64_t fallback) const {
  if (!all().is_array(key(name))) return std::vector<int64_t>(static_cast<size_t>(layers), get(name, fallback));
  std::vector<int64_t> listed = all().integers(key(name));
  if (static_cast<int64_t>(listed.size()) != layers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}: expected {} entries, found {}", all().where(), key(name), layers, listed.size()));
  return listed;
}

int64_t GgufKeys::most(const std::string& name, int64_t fallback) const {
  const std::vector<int64_t> each = of_layers(name, fallback);
  return each.empty() ? fallback : *std::max_element(each.begin(), each.end());
}

const gguf::FileTensor* GgufKeys::tensor(const std::string& name) const {
  const auto it =
      std::find_if(file.tensors.begin(), file.tensors.end(), [&](const gguf::FileTensor& t) { return t.name == name; });
  return it == file.tensors.end() ? nullptr : &*it;
}

bool GgufKeys::has_tensor(std::string_view name) const {
  constexpr std::string_view kAny = "blk.*";
  if (!name.starts_with(kAny)) return tensor(std::string(name)) != nullptr;
  return std::any_of(file.tensors.begin(), file.tensors.end(), [&](const gguf::FileTensor& t) {
    return t.name.starts_with("blk.") && t.name.ends_with(name.substr(kAny.size()));
  });
}

std::string layers_from_gguf(const GgufKeys& k) {
  json c = json::object();
  const GgufRecurrent& r = k.family.recurrent;
  if (r.kind != GgufRecurrent::Kind::none) kinds_of_layers(k, c);
  if (r.kind == GgufRecurrent::Kind::state_space) state_space(k, c);
  if (r.kind == GgufRecurrent::Kind::short_conv) c["conv_L_cache"] = k.get("shortconv.l_cache");
  if (k.family.latent.used) latent(k, c);
  factors(k, c);
  if (k.family.sliding_heads) two_kinds_of_heads(k, c);
  if (k.family.still_switch)
    c["position_embedding_type"] = k.all().flag(k.key("rope.scaling.finetuned"), true) ? "rope" : "nope";
  return c.dump();
}

}  // namespace fewbit

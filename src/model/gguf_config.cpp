#include "src/model/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/model/gguf_names.h"

namespace fewbit {
namespace {

using nlohmann::json;

template <class Op>
const Op* op_of(const ModelSpec& spec) {
  for (const BlockOp& op : spec.kinds.front())
    if (const Op* found = std::get_if<Op>(&op)) return found;
  return nullptr;
}

[[noreturn]] void cannot_say(const ConfigView& c, const std::string& what) {
  fail(ErrorKind::unsupported, c.where() + ": " + what + " cannot be said in GGUF");
}

// The rotary parameters of the config in either spelling.
struct RopeConfig {
  double theta = 10000;
  std::string type = "default";
  json values = json::object();
};
RopeConfig rope_config(const ConfigView& c) {
  const json root = json::parse(c.text());
  RopeConfig r;
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (const auto it = root.find(key); it != root.end() && it->is_object()) r.values = *it;
  r.theta = root.value("rope_theta", r.theta);
  r.theta = r.values.value("rope_theta", r.theta);
  r.type = r.values.value("rope_type", r.values.value("type", r.type));
  return r;
}

void put_rope(const ConfigView& c, const std::string& arch, int64_t head_dim, gguf::Metadata& m) {
  const RopeConfig r = rope_config(c);
  m.set(arch + ".rope.freq_base", static_cast<float>(r.theta));
  m.set(arch + ".rope.dimension_count", static_cast<uint32_t>(head_dim));
  if (r.type != "linear" && r.type != "yarn") return;  // default, or factors in a tensor of their own
  m.set(arch + ".rope.scaling.type", r.type);
  m.set(arch + ".rope.scaling.factor", static_cast<float>(r.values.value("factor", 1.0)));
  if (r.type != "yarn") return;
  for (const char* key :
       {"attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"})
    if (r.values.contains(key) && !r.values[key].is_null()) cannot_say(c, fmt::format("YaRN's {}", key));
  m.set(arch + ".rope.scaling.original_context_length",
        static_cast<uint32_t>(
            r.values.value("original_max_position_embeddings", c.i64("max_position_embeddings", 0))));
}

void put_experts(const ConfigView& c, const ModelSpec& spec, const std::string& arch, gguf::Metadata& m) {
  const Moe* moe = op_of<Moe>(spec);
  const bool mixed = std::any_of(spec.kinds.begin(), spec.kinds.end(), [](const auto& block) {
    return std::none_of(block.begin(), block.end(),
                        [](const BlockOp& op) { return std::holds_alternative<Moe>(op); });
  });
  if (mixed) cannot_say(c, "layers with and without experts");
  if (!moe->renormalise) cannot_say(c, "routing weights that do not sum to 1 (norm_topk_prob false)");
  m.set(arch + ".expert_count", static_cast<uint32_t>(moe->experts));
  m.set(arch + ".expert_used_count", static_cast<uint32_t>(moe->top_k));
  if (arch == "qwen3moe")
    m.set(arch + ".expert_feed_forward_length", static_cast<uint32_t>(moe->gate.out_features));
}

int64_t context_of(const ModelSpec& spec) {
  int64_t context = spec.max_positions;
  for (const auto& block : spec.kinds)
    for (const BlockOp& op : block)
      if (const auto* a = std::get_if<Attention>(&op); a && a->window > 0)
        context = std::min(context, a->window);
  return context;
}

// Keys of rotary scaling that would change the frequencies and are not understood.
void refuse_other_scaling(const gguf::Metadata& m, const std::string& arch) {
  const std::string prefix = arch + ".rope.scaling.";
  for (const auto& [key, value] : m.values()) {
    if (!starts_with(key, prefix)) continue;
    const std::string rest = key.substr(prefix.size());
    if (rest == "type" || rest == "factor" || rest == "original_context_length" || rest == "finetuned")
      continue;
    fail(ErrorKind::unsupported, m.where() + ": " + key + " is not supported");
  }
}

json rope_from(const gguf::Metadata& m, const std::string& arch, const std::vector<float>& factors) {
  refuse_other_scaling(m, arch);
  json rope = {{"rope_theta", m.number(arch + ".rope.freq_base", 10000)}, {"rope_type", "default"}};
  const std::string type = m.text(arch + ".rope.scaling.type", "none");
  if (type == "linear" || type == "yarn") {
    rope["rope_type"] = type;
    rope["factor"] = m.number(arch + ".rope.scaling.factor");
    if (type == "yarn")
      rope["original_max_position_embeddings"] = m.integer(arch + ".rope.scaling.original_context_length");
  } else if (type != "none") {
    fail(ErrorKind::unsupported,
         fmt::format("{}: {}.rope.scaling.type: found \"{}\"; supported: none, linear, yarn", m.where(), arch,
                     type));
  }
  if (!factors.empty()) {
    if (type != "none")
      fail(ErrorKind::unsupported, fmt::format("{}: rope_freqs.weight beside {} scaling", m.where(), type));
    rope["rope_type"] = "factors";
    rope["factors"] = factors;
  }
  return rope;
}

const gguf::FileTensor* find(const gguf::File& f, const std::string& name) {
  const auto it = std::find_if(f.tensors.begin(), f.tensors.end(),
                               [&](const gguf::FileTensor& t) { return t.name == name; });
  return it == f.tensors.end() ? nullptr : &*it;
}

}  // namespace

gguf::Metadata gguf_metadata(const ConfigView& c, const ModelSpec& spec) {
  const std::string arch(gguf_architecture(spec));
  const Attention& a = *op_of<Attention>(spec);
  gguf::Metadata m(c.where());
  const auto put = [&](const std::string& key, int64_t v) {
    m.set(arch + "." + key, static_cast<uint32_t>(v));
  };
  m.set("general.architecture", arch);
  m.set("general.type", std::string("model"));
  m.set("general.quantization_version", uint32_t{2});
  put("context_length", context_of(spec));
  put("embedding_length", spec.hidden);
  put("block_count", spec.layers);
  put("feed_forward_length", c.i64("intermediate_size"));
  put("attention.head_count", a.heads);
  put("attention.head_count_kv", a.kv_heads);
  put("attention.key_length", a.head_dim);
  put("attention.value_length", a.head_dim);
  put("vocab_size", spec.vocab);
  m.set(arch + ".attention.layer_norm_rms_epsilon", spec.final_norm_eps);
  put_rope(c, arch, a.head_dim, m);
  if (op_of<Moe>(spec)) put_experts(c, spec, arch, m);
  return m;
}

std::vector<float> gguf_rope_factors(const ConfigView& c, const ModelSpec& spec) {
  const RopeConfig r = rope_config(c);
  if (r.type == "default" || r.type == "linear" || r.type == "yarn") return {};
  const Rope& rope = *op_of<Rope>(spec);
  std::vector<float> factors;
  const auto rot = static_cast<double>(2 * rope.params.inv_freq.size());
  for (size_t i = 0; i < rope.params.inv_freq.size(); ++i)
    factors.push_back(static_cast<float>(std::pow(r.theta, -2.0 * static_cast<double>(i) / rot) /
                                         static_cast<double>(rope.params.inv_freq[i])));
  return factors;
}

std::string config_from_gguf(const gguf::File& f, const std::vector<float>& rope_factors) {
  const gguf::Metadata& m = f.metadata;
  const std::string arch = m.text("general.architecture");
  const auto get = [&](const std::string& key) { return m.integer(arch + "." + key); };
  const auto get_or = [&](const std::string& key, int64_t fallback) {
    return m.integer(arch + "." + key, fallback);
  };
  const int64_t experts = get_or("expert_count", 0);
  const std::string class_name(class_of_gguf(arch, experts > 0));  // before keys of an unknown one are missed
  const int64_t hidden = get("embedding_length");
  const int64_t heads = get("attention.head_count");
  const gguf::FileTensor* embed = find(f, "token_embd.weight");
  if (!embed) fail(ErrorKind::checkpoint, m.where() + ": tensor 'token_embd.weight' is missing");
  const bool attention_bias = find(f, "blk.0.attn_output.bias") != nullptr;
  json c = {{"architectures", {class_name}},
            {"model_type", arch},
            {"hidden_act", "silu"},
            {"hidden_size", hidden},
            {"intermediate_size", get("feed_forward_length")},
            {"num_hidden_layers", get("block_count")},
            {"num_attention_heads", heads},
            {"num_key_value_heads", get_or("attention.head_count_kv", heads)},
            {"head_dim", get_or("attention.key_length", heads > 0 ? hidden / heads : 0)},
            {"max_position_embeddings", get("context_length")},
            {"rms_norm_eps", m.number(arch + ".attention.layer_norm_rms_epsilon")},
            {"vocab_size", embed->rows()},
            {"attention_bias", attention_bias},
            {"mlp_bias", find(f, "blk.0.ffn_down.bias") != nullptr},
            {"tie_word_embeddings", find(f, "output.weight") == nullptr},
            {"rope_parameters", rope_from(m, arch, rope_factors)}};
  for (const auto& [key, name] : {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                  {"eos_token_id", "tokenizer.ggml.eos_token_id"}})
    if (m.has(name)) c[key] = m.integer(name);
  if (experts > 0) {
    c["num_experts"] = experts;
    c["num_experts_per_tok"] = get("expert_used_count");
    c["moe_intermediate_size"] = get_or("expert_feed_forward_length", get("feed_forward_length"));
    c["norm_topk_prob"] = true;
  }
  return c.dump(1);
}

}  // namespace fewbit

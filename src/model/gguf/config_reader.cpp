// Metadata as a config.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/strings.h"
#include "src/model/family.h"
#include "src/model/gguf/config.h"

namespace fewbit {
namespace {

using nlohmann::json;

// Reads the keys of one file.
class MetadataReader {
 public:
  MetadataReader(const gguf::File& f, const GgufRopeFactors& rope_factors)
      : file_(f),
        m_(f.metadata),
        arch_(m_.text("general.architecture")),
        experts_(get("expert_count", 0)),
        of_(gguf_family_named(arch_, experts_ > 0, get("attention.sliding_window", 0) > 0,
                              m_.where())),  // before keys of an unknown one are missed
        family_(of_.gguf),
        heads_(get("attention.head_count")),
        hidden_(get("embedding_length")),
        head_dim_(get("attention.key_length", heads_ > 0 ? hidden_ / heads_ : 0)),
        layers_(get("block_count")),
        factors_(rope_factors) {}

  json config() const {
    const gguf::FileTensor* embed = tensor("token_embd.weight");
    if (!embed) fail(ErrorKind::checkpoint, m_.where() + ": tensor 'token_embd.weight' is missing");
    const std::string_view class_name = family_.read_as.empty() ? of_.name() : family_.read_as;
    json c = {{"architectures", {class_name}},
              {"model_type", model_type_of(class_name)},
              {"hidden_size", hidden_},
              {"intermediate_size", get("feed_forward_length")},
              {"num_hidden_layers", layers_},
              {"num_attention_heads", heads_},
              {"num_key_value_heads", get("attention.head_count_kv", heads_)},
              {"head_dim", head_dim_},
              {"max_position_embeddings", get("context_length")},
              {"rms_norm_eps", m_.number(key("attention.layer_norm_rms_epsilon"))},
              {"vocab_size", embed->rows()},
              {"attention_bias", tensor("blk.0.attn_output.bias") != nullptr},
              {"mlp_bias", tensor("blk.0.ffn_down.bias") != nullptr},
              {"tie_word_embeddings", tensor("output.weight") == nullptr},
              {std::string(family_.activation_key), std::string(family_.activation)}};
    for (const auto& [name, from] :
         {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"}, {"eos_token_id", "tokenizer.ggml.eos_token_id"}})
      if (m_.has(from)) c[name] = m_.integer(from);
    put_rotation(c);
    put_windows(c);
    if (family_.score_keys) put_score_keys(c);
    if (experts_ > 0) put_experts(c);
    if (family_.delta_net) put_delta_net(c);
    for (const GgufPresence& p : family_.presence)
      if (!p.key.empty()) c[std::string(p.key)] = tensor(std::string(p.tensor)) != nullptr;
    if (!family_.config.empty()) c.update(json::parse(family_.config));
    return c;
  }

 private:
  // A look-alike may have a model_type of its own, at the place of its class.
  static std::string_view model_type_of(std::string_view class_name) {
    const Family& family = *find_family(class_name);
    size_t at = 0;
    while (family.classes[at].name != class_name) ++at;
    return family.model_types[at].empty() ? family.model_types[0] : family.model_types[at];
  }
  std::string key(const std::string& name) const { return arch_ + "." + name; }
  int64_t get(const std::string& name) const { return m_.integer(key(name)); }
  int64_t get(const std::string& name, int64_t fallback) const { return m_.integer(key(name), fallback); }
  const gguf::FileTensor* tensor(const std::string& name) const {
    const auto it = std::find_if(file_.tensors.begin(), file_.tensors.end(),
                                 [&](const gguf::FileTensor& t) { return t.name == name; });
    return it == file_.tensors.end() ? nullptr : &*it;
  }

  // Keys of rotary scaling that would change the frequencies and are not understood.
  void refuse_other_scaling(const std::set<std::string>& understood) const {
    const std::string prefix = key("rope.scaling.");
    for (const auto& [name, value] : m_.values()) {
      if (!starts_with(name, prefix)) continue;
      const std::string rest = name.substr(prefix.size());
      if (understood.count(rest)) continue;
      fail(ErrorKind::unsupported, m_.where() + ": " + name + " is not supported");
    }
  }

  json scaled_rotation() const {
    json rope = {{"rope_theta", m_.number(key("rope.freq_base"), 10000)}, {"rope_type", "default"}};
    const std::string type = m_.text(key("rope.scaling.type"), "none");
    const bool two_tables = factors_.count(kRopeLong) || factors_.count(kRopeShort);
    if (two_tables && family_.long_rope && (type == "none" || type == "longrope")) {
      put_long_rope(rope);
      return rope;
    }
    refuse_other_scaling({"type", "factor", "original_context_length", "finetuned"});
    if (two_tables)
      fail(ErrorKind::unsupported, fmt::format("{}: {} beside {} scaling, in architecture {}", m_.where(),
                                               factors_.begin()->first, type, arch_));
    if (type == "linear" || type == "yarn") {
      rope["rope_type"] = type;
      rope["factor"] = m_.number(key("rope.scaling.factor"));
      if (type == "yarn") rope["original_max_position_embeddings"] = get("rope.scaling.original_context_length");
      if (type == "yarn" && family_.untruncated_yarn) rope["truncate"] = false;
    } else if (type != "none") {
      fail(ErrorKind::unsupported, fmt::format("{}: {}: found \"{}\"; supported: none, linear, yarn", m_.where(),
                                               key("rope.scaling.type"), type));
    }
    if (factors_.count(kRopeFreqs)) {
      if (!family_.divisors)
        fail(ErrorKind::unsupported, fmt::format("{}: rope_freqs.weight in architecture {}", m_.where(), arch_));
      if (type != "none")
        fail(ErrorKind::unsupported, fmt::format("{}: rope_freqs.weight beside {} scaling", m_.where(), type));
      rope["rope_type"] = "factors";
      rope["factors"] = factors_.at(kRopeFreqs);
    }
    return rope;
  }

  void put_long_rope(json& rope) const {
    refuse_other_scaling({"type", "original_context_length", "finetuned", "attn_factor"});
    for (const auto& [name, other] : {std::pair{kRopeLong, kRopeShort}, {kRopeShort, kRopeLong}})
      if (!factors_.count(name))
        fail(ErrorKind::checkpoint,
             fmt::format("{}: tensor '{}': expected beside {}, found nothing", m_.where(), name, other));
    if (factors_.count(kRopeFreqs))
      fail(ErrorKind::unsupported, fmt::format("{}: {} beside {}", m_.where(), kRopeFreqs, kRopeLong));
    rope["rope_type"] = "longrope";
    rope["long_factor"] = factors_.at(kRopeLong);
    rope["short_factor"] = factors_.at(kRopeShort);
    rope["attention_factor"] = m_.number(key("rope.scaling.attn_factor"), 1);
    rope["original_max_position_embeddings"] = get("rope.scaling.original_context_length");
  }

  json rotation() const {
    json rope = scaled_rotation();
    const int64_t features = get("rope.dimension_count", head_dim_);
    if (features != head_dim_) {
      if (!family_.partial_rotary)
        fail(ErrorKind::unsupported, fmt::format("{}: {}: expected {} (the size of a head), found {}", m_.where(),
                                                 key("rope.dimension_count"), head_dim_, features));
      rope["partial_rotary_factor"] = static_cast<double>(features) / static_cast<double>(head_dim_);
    }
    return rope;
  }

  void put_rotation(json& c) const {
    const json all = rotation();
    const double base = all["rope_theta"], sliding = m_.number(key("rope.freq_base_swa"), 10000);
    if (family_.sliding_rotation) {
      c["rope_parameters"] = {{"full_attention", all},
                              {"sliding_attention", {{"rope_theta", sliding}, {"rope_type", "default"}}}};
      return;
    }
    if (m_.has(key("rope.freq_base_swa")) && sliding != base)
      fail(ErrorKind::unsupported, fmt::format("{}: {}: expected {} as in {}, found {}", m_.where(),
                                               key("rope.freq_base_swa"), base, key("rope.freq_base"), sliding));
    c["rope_parameters"] = all;
    if (m_.has(key("rope.scaling.original_context_length")))
      c["original_max_position_embeddings"] = get("rope.scaling.original_context_length");
  }

  void put_windows(json& c) const {
    if (family_.window_layers > 0 && !family_.has_windows(layers_)) return;  // readers leave the key unread
    if (family_.window_period == GgufFamily::kNoWindow) {
      if (get("attention.sliding_window", 0) > 0 && get("attention.sliding_window") < get("context_length"))
        fail(ErrorKind::unsupported,
             fmt::format("{}: {} is not supported", m_.where(), key("attention.sliding_window")));
      return;
    }
    const int64_t window = get("attention.sliding_window", family_.window);
    c["sliding_window"] = window > 0 ? json(window) : json();
    if (family_.window_period == GgufFamily::kEveryLayer) return;
    const std::vector<bool> windowed = windowed_layers(window);
    json types = json::array();
    for (const bool w : windowed) types.push_back(w ? "sliding_attention" : "full_attention");
    c["layer_types"] = std::move(types);
    if (window <= 0) c.erase("sliding_window");
  }

  // By a list, by a period in the file, or by the architecture's own.
  std::vector<bool> windowed_layers(int64_t window) const {
    const std::string name = key("attention.sliding_window_pattern");
    std::vector<bool> listed;
    if (m_.is_array(name)) {
      listed = m_.flags(name);
      if (static_cast<int64_t>(listed.size()) != layers_)
        fail(ErrorKind::checkpoint,
             fmt::format("{}: {}: expected {} entries, found {}", m_.where(), name, layers_, listed.size()));
    } else {
      GgufFamily rule = family_;
      rule.window_period = static_cast<int>(m_.integer(name, rule.window_period));
      for (int64_t layer = 0; layer < layers_; ++layer) listed.push_back(rule.windowed(layer));
    }
    if (window <= 0) listed.assign(listed.size(), false);
    return listed;
  }

  void put_score_keys(json& c) const {
    const auto cap = [&](const char* from, float fallback) {
      const double value = m_.number(key(from), fallback);
      return value > 0 ? json(value) : json();
    };
    c["attn_logit_softcapping"] = cap("attn_logit_softcapping", family_.attention_cap);
    c["final_logit_softcapping"] = cap("final_logit_softcapping", family_.logit_cap);
    c["query_pre_attn_scalar"] = family_.score_divisor(layers_, hidden_, std::max<int64_t>(heads_, 1), head_dim_);
    c.erase("mlp_bias");
  }

  void put_delta_net(json& c) const {
    c["linear_conv_kernel_dim"] = get("ssm.conv_kernel");
    c["linear_num_key_heads"] = get("ssm.group_count");
    c["linear_num_value_heads"] = get("ssm.time_step_rank");
    c["linear_key_head_dim"] = get("ssm.state_size");
    c["linear_value_head_dim"] = get("ssm.state_size");
    c["full_attention_interval"] = get("full_attention_interval", 4);
    const std::string name = key("attention.recurrent_layers");
    if (!m_.is_array(name)) return;
    json types = json::array();
    for (const bool recurrent : m_.flags(name)) types.push_back(recurrent ? "linear_attention" : "full_attention");
    c["layer_types"] = types;
  }

  void put_experts(json& c) const {
    const GgufExperts& e = family_.experts;
    const auto put = [&](std::string_view name, const json& value) {
      if (!name.empty()) c[std::string(name)] = value;
    };
    put(e.count, experts_);
    put(e.used, get("expert_used_count"));
    put(e.width, get("expert_feed_forward_length", get("feed_forward_length")));
    put(e.renormalised, e.norm_key ? m_.flag(key("expert_weights_norm"), false) : e.renormalise);
    const double scaling = m_.number(key("expert_weights_scale"), 1);
    put(e.scaling, scaling == 0 ? 1 : scaling);  // 0 is none
    put(e.dense_layers, get("leading_dense_block_count", 0));
    put(e.shared_count, get("expert_shared_count", 0));
    put(e.shared_width, get("expert_shared_feed_forward_length", get("feed_forward_length")));
    if (e.norm_key && get("expert_group_count", 1) > 1) {
      c["n_group"] = get("expert_group_count");
      c["topk_group"] = get("expert_group_used_count");
    }
    expect("expert_gating_func", e.score_key ? gating_function(e.score) : 0, 0);
    expect("interleave_moe_layer_step", e.step_key ? 1 : 0, 1);
  }

  // A value that stands for what is implemented; `wanted` 0 = the family has no such key. Absent: the reader's own.
  void expect(const std::string& name, int64_t wanted, int64_t fallback) const {
    const int64_t found = get(name, fallback);
    if (wanted == 0 || found == wanted || found == 0) return;
    fail(ErrorKind::unsupported, fmt::format("{}: {}: expected {}, found {}", m_.where(), key(name), wanted, found));
  }

  const gguf::File& file_;
  const gguf::Metadata& m_;
  std::string arch_;
  int64_t experts_;
  const Family& of_;
  const GgufFamily& family_;
  int64_t heads_, hidden_, head_dim_, layers_;
  const GgufRopeFactors& factors_;
};

}  // namespace

std::string config_from_gguf(const gguf::File& f, const GgufRopeFactors& rope_factors) {
  return MetadataReader(f, rope_factors).config().dump(1);
}

}  // namespace fewbit

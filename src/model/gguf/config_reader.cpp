// Metadata as a config.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/strings.h"
#include "src/model/family.h"
#include "src/model/gguf/config.h"
#include "src/model/gguf/keys.h"
#include "src/model/limits.h"

namespace fewbit {
namespace {

using nlohmann::json;

// Reads the keys of one file.
class MetadataReader {
 public:
  MetadataReader(const gguf::File& f, const GgufRopeFactors& rope_factors)
      : m_(f.metadata),
        of_(gguf_family_named(m_)),  // before keys of an unknown one are missed
        family_(of_.gguf),
        k_{f, family_, m_.text("general.architecture"), 0},
        arch_(k_.arch),
        experts_(get("expert_count", 0)),
        heads_(get("attention.head_count")),
        hidden_(get("embedding_length")),
        head_dim_(get("attention.key_length", heads_ > 0 ? hidden_ / heads_ : 0)),
        layers_(k_.layers = get("block_count")),
        factors_(rope_factors) {
    if (layers_ < 1 || layers_ > kMostLayers)
      fail(ErrorKind::checkpoint,
           fmt::format("{}: {}: expected 1 to {}, found {}", m_.where(), key("block_count"), kMostLayers, layers_));
  }

  json config() const {
    const gguf::FileTensor* embed = tensor("token_embd.weight");
    if (!embed) fail(ErrorKind::checkpoint, m_.where() + ": tensor 'token_embd.weight' is missing");
    const std::string_view class_name = family_.read_as.empty() ? of_.name() : family_.read_as;
    json c = {{"architectures", {class_name}},
              {"model_type", model_type_of(class_name)},
              {"hidden_size", hidden_},
              {"intermediate_size", k_.most("feed_forward_length", 0)},
              {"num_hidden_layers", layers_},
              {"num_attention_heads", heads_},
              {"num_key_value_heads", k_.most("attention.head_count_kv", heads_)},
              {"head_dim", head_dim_},
              {"max_position_embeddings", get("context_length")},
              {std::string(family_.epsilon), epsilon()},
              {"vocab_size", embed->rows()},
              {"attention_bias", tensor("blk.0.attn_output.bias") != nullptr},
              {"mlp_bias", tensor("blk.0.ffn_down.bias") != nullptr},
              {"tie_word_embeddings", tensor("output.weight") == nullptr},
              {std::string(family_.activation_key), std::string(family_.activation)}};
    c[std::string(family_.mlp_width)] = c["intermediate_size"];
    for (const auto& [name, from] :
         {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"}, {"eos_token_id", "tokenizer.ggml.eos_token_id"}})
      if (m_.has(from)) c[name] = m_.integer(from);
    put_rotation(c);
    put_windows(c);
    if (family_.score_keys) put_score_keys(c);
    if (experts_ > 0) put_experts(c);
    if (family_.delta_net) put_delta_net(c);
    for (const GgufPresence& p : family_.presence)
      if (!p.key.empty()) c[std::string(p.key)] = k_.has_tensor(p.tensor);
    c.merge_patch(json::parse(layers_from_gguf(k_)));
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
  std::string key(const std::string& name) const { return k_.key(name); }
  int64_t get(const std::string& name) const { return k_.get(name); }
  int64_t get(const std::string& name, int64_t fallback) const { return k_.get(name, fallback); }
  const gguf::FileTensor* tensor(const std::string& name) const { return k_.tensor(name); }
  double epsilon() const {
    const std::string layer = key("attention.layer_norm_epsilon"), rms = key("attention.layer_norm_rms_epsilon");
    return m_.number(family_.layer_norms && m_.has(layer) ? layer : rms);
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
    refuse_other_scaling({"type", "factor", "original_context_length", "finetuned", "yarn_log_multiplier"});
    if (two_tables)
      fail(ErrorKind::unsupported, fmt::format("{}: {} beside {} scaling, in architecture {}", m_.where(),
                                               factors_.begin()->first, type, arch_));
    if (type == "linear" || type == "yarn") {
      rope["rope_type"] = type;
      rope["factor"] = m_.number(key("rope.scaling.factor"));
      if (type == "yarn") put_yarn(rope);
    } else if (type != "none") {
      fail(ErrorKind::unsupported, fmt::format("{}: {}: found \"{}\"; supported: none, linear, yarn", m_.where(),
                                               key("rope.scaling.type"), type));
    }
    if (factors_.count(kRopeFreqs)) {
      if (!family_.divisors)
        fail(ErrorKind::unsupported, fmt::format("{}: rope_freqs.weight in architecture {}", m_.where(), arch_));
      if (type != "none")
        fail(ErrorKind::unsupported, fmt::format("{}: rope_freqs.weight beside {} scaling", m_.where(), type));
      put_divisors(rope);
    }
    return rope;
  }

  void put_yarn(json& rope) const {
    rope["original_max_position_embeddings"] = get("rope.scaling.original_context_length");
    if (family_.untruncated_yarn) rope["truncate"] = false;
    if (family_.scaled_queries) rope["llama_4_scaling_beta"] = m_.number(key("attention.temperature_scale"), 0);
    const double all = m_.number(key("rope.scaling.yarn_log_multiplier"), 0);
    if (all == 0 || family_.yarn_log == 0) return;
    // Rounded: the file has an f32 of a product.
    const double each = std::round(all / static_cast<double>(family_.yarn_log) * 1e6) / 1e6;
    rope["mscale_all_dim"] = each;
    rope["mscale"] = family_.yarn_follows ? each : 1;
  }

  // Ones, then divisors of frequencies that are 0: the first pairs turn, with the frequencies of all.
  void put_divisors(json& rope) const {
    const std::vector<float>& divisors = factors_.at(kRopeFreqs);
    const auto still = [](float d) { return d >= kStill / 10; };
    const auto first = std::find_if(divisors.begin(), divisors.end(), still);
    const auto one = [](float d) { return d == 1; };
    if (family_.sliding_heads && std::all_of(divisors.begin(), first, one) &&
        std::all_of(first, divisors.end(), still)) {
      rope["rope_type"] = "proportional";
      rope["partial_rotary_factor"] =
          static_cast<double>(first - divisors.begin()) / static_cast<double>(divisors.size());
      return;
    }
    rope["rope_type"] = "factors";
    rope["factors"] = divisors;
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
    if (features != head_dim_ && !family_.latent.used) {
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
    if (family_.chunk > 0) c["floor_scale"] = c["attention_chunk_size"] = family_.chunk;
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
    put(e.width, get("expert_feed_forward_length", k_.most("feed_forward_length", 0)));
    put(e.renormalised, e.norm_key ? m_.flag(key("expert_weights_norm"), false) : e.renormalise);
    if (e.without_head_norms > 0) c["use_qk_norm"] = experts_ != e.without_head_norms;
    put(e.step, get("interleave_moe_layer_step", 1));
    const double scaling = m_.number(key("expert_weights_scale"), 1);
    put(e.scaling, scaling == 0 ? 1 : scaling);  // 0 is none
    put(e.dense_layers, get("leading_dense_block_count", 0));
    put(e.shared_count, get("expert_shared_count", 0));
    put(e.shared_width, get("expert_shared_feed_forward_length", k_.most("feed_forward_length", 0)));
    if (e.norm_key || e.scale_key) {
      put(e.groups, get("expert_group_count", 1));
      c["topk_group"] = get("expert_group_used_count", 1);
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

  const gguf::Metadata& m_;
  const Family& of_;
  const GgufFamily& family_;
  GgufKeys k_;
  std::string arch_;
  int64_t experts_;
  int64_t heads_, hidden_, head_dim_, layers_;
  const GgufRopeFactors& factors_;
};

}  // namespace

std::string config_from_gguf(const gguf::File& f, const GgufRopeFactors& rope_factors) {
  return MetadataReader(f, rope_factors).config().dump(1);
}

}  // namespace fewbit

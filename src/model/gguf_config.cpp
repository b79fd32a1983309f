// A config as metadata. Keys: llama.cpp's gguf-py/gguf/constants.py; what its readers make of them:
// src/models.
#include "src/model/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/model/gguf_family.h"

namespace fewbit {
namespace {

using nlohmann::json;

template <class Op>
const Op* op_of(const std::vector<BlockOp>& block) {
  for (const BlockOp& op : block)
    if (const Op* found = std::get_if<Op>(&op)) return found;
  return nullptr;
}

// The metadata of one model, part by part.
class MetadataWriter {
 public:
  MetadataWriter(const ConfigView& c, const ModelSpec& spec)
      : c_(c),
        spec_(spec),
        family_(gguf_family_of(spec)),
        attention_(*op_of<Attention>(spec.kinds.front())),
        out_(c.where()) {}

  gguf::Metadata all() {
    out_.set("general.architecture", std::string(family_.arch));
    out_.set("general.type", std::string("model"));
    out_.set("general.quantization_version", uint32_t{2});
    put("embedding_length", spec_.hidden);
    put("block_count", spec_.layers);
    put("feed_forward_length", c_.i64("intermediate_size"));
    put("vocab_size", spec_.vocab);
    set("attention.layer_norm_rms_epsilon", spec_.final_norm_eps);
    heads();
    windows();
    caps();
    places();
    rotation();
    if (std::any_of(spec_.kinds.begin(), spec_.kinds.end(), [](const auto& block) { return op_of<Moe>(block); }))
      experts();
    return std::move(out_);
  }

 private:
  void set(const std::string& key, gguf::Value v) { out_.set(std::string(family_.arch) + "." + key, std::move(v)); }
  void put(const std::string& key, int64_t v) { set(key, static_cast<uint32_t>(v)); }
  [[noreturn]] void cannot_say(const std::string& what) const {
    fail(ErrorKind::unsupported,
         fmt::format("{}: {} cannot be said in GGUF of architecture {}", c_.where(), what, family_.arch));
  }

  void heads() {
    put("attention.head_count", attention_.heads);
    put("attention.head_count_kv", attention_.kv_heads);
    put("attention.key_length", attention_.head_dim);
    put("attention.value_length", attention_.head_dim);
    const int64_t divisor = family_.score_divisor(spec_.layers, spec_.hidden, attention_.heads, attention_.head_dim);
    const float scale = 1 / std::sqrt(static_cast<float>(divisor));
    if (std::fabs(attention_.scale / scale - 1) > 1e-5f)
      cannot_say(fmt::format("an attention scale of {} (it is taken to be 1 / sqrt({}))", attention_.scale, divisor));
  }

  // Where the file has no word for a window, the context is cut to it, within which both are the same model.
  void windows() {
    std::vector<bool> windowed;
    int64_t window = 0;
    bool usual = true;
    for (int64_t layer = 0; layer < spec_.layers; ++layer) {
      const int64_t w = attention_of(spec_.block(layer))->window;
      if (w > 0 && window > 0 && w != window && family_.window_period != GgufFamily::kNoWindow)
        cannot_say("windows of different lengths");
      if (w > 0) window = window > 0 ? std::min(window, w) : w;
      windowed.push_back(w > 0);
      usual &= windowed.back() == family_.windowed(layer);
    }
    const bool cut = family_.window_period == GgufFamily::kNoWindow && window > 0;
    put("context_length", cut ? std::min(window, spec_.max_positions) : spec_.max_positions);
    if (family_.window_period == GgufFamily::kNoWindow) return;
    if (family_.window_period == GgufFamily::kEveryLayer) {  // llama.cpp takes 0 for none
      if (window > 0 && !usual) cannot_say("layers with and without a window");
      return put("attention.sliding_window", window);
    }
    put("attention.sliding_window", window > 0 ? window : spec_.max_positions);
    if (!usual) set("attention.sliding_window_pattern", gguf::Array(windowed));
  }

  void caps() {
    const bool attention = attention_.softcap > 0, logits = spec_.logit_softcap > 0;
    if (attention != (family_.attention_cap > 0))
      cannot_say(attention ? "a soft cap on attention scores" : "attention scores without a soft cap");
    if (logits && !family_.logit_cap_key) cannot_say("a soft cap on logits");
    if (!logits && family_.logit_cap > 0) cannot_say("logits without a soft cap");
    if (attention) set("attn_logit_softcapping", attention_.softcap);
    if (logits) set("final_logit_softcapping", spec_.logit_softcap);
  }

  // What tensors there are.
  void places() const {
    if (!family_.untied && !spec_.tied()) cannot_say("a head that is not the embedding");
    for (const auto& block : spec_.kinds)
      for (const BlockOp& op : block) {
        const auto* group = std::get_if<Linears>(&op);
        if (!group || family_.output_biases) continue;
        for (const LinearDef& l : group->items)
          if (l.bias && l.out != attention_.q && l.out != attention_.k && l.out != attention_.v)
            cannot_say("the bias of " + l.name);
      }
  }

  void rotation() {
    const ConfigView::RopeText r = c_.rope_text(family_.sliding_rotation ? "full_attention" : "");
    const json values = json::parse(r.values);
    const auto features = static_cast<int64_t>(2 * op_of<Rope>(spec_.kinds.front())->params.inv_freq.size());
    if (features != attention_.head_dim && !family_.partial_rotary)
      cannot_say(fmt::format("a rotation of {} features of {}", features, attention_.head_dim));
    put("rope.dimension_count", features);
    set("rope.freq_base", static_cast<float>(r.theta));
    if (family_.sliding_rotation) sliding_rotation(r.type);
    if (r.type == "default" && c_.has("original_max_position_embeddings"))
      put("rope.scaling.original_context_length", c_.i64("original_max_position_embeddings"));
    if (r.type == "longrope") return long_rotation();
    if (r.type != "linear" && r.type != "yarn") return;  // default, or factors in a tensor of their own
    set("rope.scaling.type", r.type);
    set("rope.scaling.factor", static_cast<float>(values.value("factor", 1.0)));
    if (r.type != "yarn") return;
    for (const char* key : {"attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"})
      if (values.contains(key) && !values[key].is_null()) cannot_say(fmt::format("YaRN's {}", key));
    put("rope.scaling.original_context_length",
        values.value("original_max_position_embeddings", c_.i64("max_position_embeddings", 0)));
  }

  // The type of scaling stays unsaid: readers take the tensors without it.
  void long_rotation() {
    if (!family_.long_rope) cannot_say("LongRoPE");
    const RopeParams& params = op_of<Rope>(spec_.kinds.front())->params;
    put("rope.scaling.original_context_length", params.original_positions);
    set("rope.scaling.attn_factor", params.attention_scale);
  }

  // Scaling belongs to the layers that see everything.
  void sliding_rotation(const std::string& full_type) {
    const ConfigView::RopeText r = c_.rope_text("sliding_attention");
    if (r.type != "default") cannot_say("rotary scaling of layers with a window");
    if (full_type != "default" && full_type != "linear") cannot_say("rotary scaling of type " + full_type);
    set("rope.freq_base_swa", static_cast<float>(r.theta));
  }

  void experts() {
    for (const auto& block : spec_.kinds)
      if (!op_of<Moe>(block)) cannot_say("layers with and without experts");
    const Moe& moe = *op_of<Moe>(spec_.kinds.front());
    if (!moe.renormalise) cannot_say("routing weights that do not sum to 1 (norm_topk_prob false)");
    put("expert_count", moe.experts);
    put("expert_used_count", moe.top_k);
    if (family_.expert_width) put("expert_feed_forward_length", moe.gate.out_features);
  }

  const ConfigView& c_;
  const ModelSpec& spec_;
  const GgufFamily& family_;
  const Attention& attention_;
  gguf::Metadata out_;
};

}  // namespace

gguf::Metadata gguf_metadata(const ConfigView& c, const ModelSpec& spec) { return MetadataWriter(c, spec).all(); }

GgufRopeFactors gguf_rope_factors(const ConfigView& c, const ModelSpec& spec) {
  if (gguf_family_of(spec).sliding_rotation) return {};
  const ConfigView::RopeText r = c.rope_text();
  if (r.type == "default" || r.type == "linear" || r.type == "yarn") return {};
  if (r.type == "longrope") {
    const json values = json::parse(r.values);
    return {{kRopeLong, values["long_factor"].get<std::vector<float>>()},
            {kRopeShort, values["short_factor"].get<std::vector<float>>()}};
  }
  const Rope& rope = *op_of<Rope>(spec.kinds.front());
  std::vector<float> factors;
  const auto rot = static_cast<double>(2 * rope.params.inv_freq.size());
  for (size_t i = 0; i < rope.params.inv_freq.size(); ++i)
    factors.push_back(static_cast<float>(std::pow(r.theta, -2.0 * static_cast<double>(i) / rot) /
                                         static_cast<double>(rope.params.inv_freq[i])));
  return {{kRopeFreqs, std::move(factors)}};
}

}  // namespace fewbit

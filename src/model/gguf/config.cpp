// A config as metadata. Keys: llama.cpp's gguf-py/gguf/constants.py; what its readers make of them:
// src/models.
#include "src/model/gguf/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "src/model/gguf/family.h"

namespace fewbit {
namespace {

using nlohmann::json;

template <class Op>
const Op* op_of(const std::vector<BlockOp>& block) {
  for (const BlockOp& op : block)
    if (const Op* found = std::get_if<Op>(&op)) return found;
  return nullptr;
}
// The first of any layer.
template <class Op>
const Op* op_of(const ModelSpec& spec) {
  for (const auto& block : spec.kinds)
    if (const Op* found = op_of<Op>(block)) return found;
  return nullptr;
}

// The features of the expert beside the others, 0 where there is none.
int64_t shared_width(const std::vector<BlockOp>& block) {
  for (const BlockOp& op : block)
    for (const LinearDef& l : linears_of(op))
      if (l.out == Slot::shared) return l.in_features;
  return 0;
}

// The metadata of one model, part by part.
class MetadataWriter {
 public:
  MetadataWriter(const ConfigView& c, const ModelSpec& spec)
      : c_(c.text_model()),
        spec_(spec),
        family_(gguf_family_of(spec)),
        attention_(*op_of<Attention>(spec)),
        rope_(op_of<Rope>(spec)),
        out_(c.where()) {}

  gguf::Metadata all() {
    if (!rope_) cannot_say("a model that does not turn its heads");
    out_.set("general.architecture", std::string(family_.arch));
    out_.set("general.type", std::string("model"));
    out_.set("general.quantization_version", uint32_t{2});
    put("embedding_length", spec_.hidden);
    put("block_count", spec_.layers);
    put("feed_forward_length", c_.i64("intermediate_size", c_.i64("moe_intermediate_size", 0)));
    put("vocab_size", spec_.vocab);
    set("attention.layer_norm_rms_epsilon", spec_.final_norm_eps);
    heads();
    windows();
    caps();
    places();
    rotation();
    if (op_of<PositionScale>(spec_)) cannot_say("the scale of queries by their positions");
    if (op_of<Moe>(spec_)) experts();
    if (family_.delta_net) delta_net();
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
    for (const auto& block : spec_.kinds)
      if (const Attention* a = attention_of(block);
          a ? std::tie(a->heads, a->kv_heads, a->head_dim) !=
                  std::tie(attention_.heads, attention_.kv_heads, attention_.head_dim)
            : !op_of<DeltaRule>(block))
        cannot_say("layers with other heads than the first one's");
    if (family_.square && attention_.heads * attention_.head_dim != spec_.hidden)
      cannot_say(fmt::format("{} heads of {} beside a hidden size of {}", attention_.heads, attention_.head_dim,
                             spec_.hidden));
    const int64_t divisor = family_.score_divisor(spec_.layers, spec_.hidden, attention_.heads, attention_.head_dim);
    const float scale = 1 / std::sqrt(static_cast<float>(divisor));
    if (std::fabs(attention_.scale / scale - 1) > 1e-5f)
      cannot_say(fmt::format("an attention scale of {} (it is taken to be 1 / sqrt({}))", attention_.scale, divisor));
  }

  // Where the file has no word for a window, the context is cut to it, within which both are the same model.
  void windows() {
    const bool has_windows = family_.has_windows(spec_.layers);
    std::vector<bool> windowed;
    int64_t window = 0;
    bool usual = true;
    for (int64_t layer = 0; layer < spec_.layers; ++layer) {
      const Attention* a = attention_of(spec_.block(layer));
      const int64_t w = a ? a->window : 0;
      if (w > 0 && window > 0 && w != window && has_windows) cannot_say("windows of different lengths");
      if (w > 0) window = window > 0 ? std::min(window, w) : w;
      windowed.push_back(w > 0);
      usual &= windowed.back() == family_.windowed(layer);
    }
    if (window > 0 && family_.window_layers > 0 && !has_windows)
      cannot_say(fmt::format("windows in a model of {} layers (readers have them where there are {})", spec_.layers,
                             family_.window_layers));
    still_layers(windowed, window > 0);
    const bool cut = !has_windows && window > 0;
    put("context_length", cut ? std::min(window, spec_.max_positions) : spec_.max_positions);
    if (!has_windows) return;
    if (family_.window_period == GgufFamily::kEveryLayer) {  // llama.cpp takes 0 for none
      if (window > 0 && !usual) cannot_say("layers with and without a window");
      return put("attention.sliding_window", window);
    }
    put("attention.sliding_window", window > 0 ? window : spec_.max_positions);
    if (!usual) set("attention.sliding_window_pattern", gguf::Array(windowed));
  }

  // Which layers do not turn is no key: readers know it of the family.
  void still_layers(const std::vector<bool>& windowed, bool some_windowed) const {
    for (int64_t layer = 0; layer < spec_.layers; ++layer)
      if (attention_of(spec_.block(layer)) &&
          family_.still(layer, windowed[static_cast<size_t>(layer)], some_windowed) ==
              (op_of<Rope>(spec_.block(layer)) != nullptr))
        cannot_say(fmt::format("layer {}, which {} its heads,", layer,
                               op_of<Rope>(spec_.block(layer)) ? "turns" : "does not turn"));
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
    if (!family_.tied && spec_.tied()) cannot_say("a head that is the embedding");
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
    const auto features = static_cast<int64_t>(2 * rope_->params.inv_freq.size());
    if (features != attention_.head_dim && !family_.partial_rotary)
      cannot_say(fmt::format("a rotation of {} features of {}", features, attention_.head_dim));
    put("rope.dimension_count", features);
    set("rope.freq_base", static_cast<float>(r.type == "dynamic" ? stretched_theta() : r.theta));
    if (family_.sections) sections(values);
    if (family_.sliding_rotation) sliding_rotation(r.type);
    if (r.type == "default" && c_.has("original_max_position_embeddings"))
      put("rope.scaling.original_context_length", c_.i64("original_max_position_embeddings"));
    if (r.type == "longrope") return long_rotation();
    const bool factors = r.type == "llama3" || r.type == "factors";
    if (factors && !family_.divisors) cannot_say("rotary scaling of type " + r.type);
    if (factors || r.type == "default" || r.type == "dynamic") return;
    if (r.type != "linear" && r.type != "yarn") cannot_say("rotary scaling of type " + r.type);
    set("rope.scaling.type", r.type);
    set("rope.scaling.factor", static_cast<float>(values.value("factor", 1.0)));
    if (r.type == "yarn") yarn(values);
  }

  // HunYuan's `alpha` has stretched theta once and for all.
  double stretched_theta() const {
    const std::vector<float>& f = rope_->params.inv_freq;
    const auto last = static_cast<double>(f.size() - 1);
    return std::pow(static_cast<double>(f.back()), -static_cast<double>(f.size()) / last);
  }

  void sections(const json& values) {
    const json usual = json::parse(family_.usual_sections.empty() ? "null" : family_.usual_sections);
    const json given = values.contains("mrope_section") ? values["mrope_section"] : usual;
    if (given.is_null()) cannot_say("rotary scaling without mrope_section");
    auto axes = given.get<std::vector<int32_t>>();
    axes.resize(4);  // time, height, width, and one that is not in use
    set("rope.dimension_sections", gguf::Array(axes));
  }

  // What readers take for granted may be said in config.json.
  void yarn(const json& values) {
    const std::pair<const char*, double> usual[] = {
        {"attention_factor", 0.1 * std::log(values.value("factor", 1.0)) + 1}, {"beta_fast", 32}, {"beta_slow", 1}};
    for (const auto& [key, value] : usual)
      if (values.contains(key) && !values[key].is_null() && std::fabs(values[key].get<double>() / value - 1) > 1e-6)
        cannot_say(fmt::format("YaRN's {}, where it is not {},", key, value));
    for (const char* key : {"mscale", "mscale_all_dim"})
      if (values.contains(key) && !values[key].is_null()) cannot_say(fmt::format("YaRN's {}", key));
    if (values.value("truncate", true) == family_.untruncated_yarn) cannot_say("YaRN's truncate");
    put("rope.scaling.original_context_length",
        values.value("original_max_position_embeddings", c_.i64("max_position_embeddings", 0)));
  }

  // The type of scaling stays unsaid: readers take the tensors without it.
  void long_rotation() {
    if (!family_.long_rope) cannot_say("LongRoPE");
    const RopeParams& params = rope_->params;
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
    const Moe& moe = *op_of<Moe>(spec_);
    const GgufExperts& e = family_.experts;
    put("expert_count", moe.experts);
    put("expert_used_count", moe.top_k);
    if (e.width_key) put("expert_feed_forward_length", moe.gate.out_features);
    if (moe.swiglu_limit != e.swiglu_limit) cannot_say(fmt::format("a swiglu_limit of {}", moe.swiglu_limit));
    router(moe, e);
    dense_layers(e);
    int64_t shared = 0;
    for (const auto& block : spec_.kinds)
      if (op_of<Moe>(block)) shared = shared_width(block);
    if (shared == 0) return;
    put("expert_shared_feed_forward_length", shared);
    if (shared % moe.gate.out_features == 0) put("expert_shared_count", shared / moe.gate.out_features);
  }

  void router(const Moe& moe, const GgufExperts& e) {
    if (moe.score != e.score && !e.score_key)
      cannot_say(moe.score == RouterScore::sigmoid ? "scores by the logistic function" : "scores by softmax");
    if (e.score_key) put("expert_gating_func", gating_function(moe.score));
    if (!e.norm_key) {
      if (moe.renormalise != e.renormalise)
        cannot_say(fmt::format("routing weights that {} (norm_topk_prob {})",
                               moe.renormalise ? "sum to 1" : "do not sum to 1", moe.renormalise));
      if (moe.scaling != 1) cannot_say(fmt::format("a factor of {} on the routing weights", moe.scaling));
      if (moe.groups > 1) cannot_say("groups of experts");
      return;
    }
    set("expert_weights_norm", moe.renormalise);
    set("expert_weights_scale", moe.scaling);
    if (moe.groups == 1) return;
    put("expert_group_count", moe.groups);
    put("expert_group_used_count", moe.best_groups);
  }

  // Of a gated delta net, whose keys and values have heads of one size there.
  void delta_net() {
    const DeltaRule* d = op_of<DeltaRule>(spec_);
    const ShortConv* conv = op_of<ShortConv>(spec_);
    if (!d || !conv) cannot_say("a model without layers of a delta net");
    if (d->k_dim != d->v_dim) cannot_say(fmt::format("keys of {} features and values of {}", d->k_dim, d->v_dim));
    put("ssm.conv_kernel", conv->taps);
    put("ssm.state_size", d->k_dim);
    put("ssm.group_count", d->k_heads);
    put("ssm.time_step_rank", d->v_heads);
    put("ssm.inner_size", d->v_heads * d->v_dim);
    std::vector<bool> recurrent;
    for (int64_t layer = 0; layer < spec_.layers; ++layer)
      recurrent.push_back(op_of<DeltaRule>(spec_.block(layer)) != nullptr);
    int64_t interval = 0;
    while (interval < spec_.layers && recurrent[static_cast<size_t>(interval)]) ++interval;
    put("full_attention_interval", ++interval);
    for (int64_t layer = 0; layer < spec_.layers; ++layer)
      if (recurrent[static_cast<size_t>(layer)] != ((layer + 1) % interval != 0))
        return set("attention.recurrent_layers", gguf::Array(recurrent));
  }

  void dense_layers(const GgufExperts& e) {
    int64_t dense = 0;
    while (dense < spec_.layers && !op_of<Moe>(spec_.block(dense))) ++dense;
    for (int64_t layer = dense; layer < spec_.layers; ++layer)
      if (!op_of<Moe>(spec_.block(layer))) cannot_say("layers without experts behind one with");
    if (dense > 0 && !e.leading_dense) cannot_say("layers with and without experts");
    if (e.leading_dense) put("leading_dense_block_count", dense);
    if (e.step_key) put("interleave_moe_layer_step", 1);
  }

  const ConfigView c_;
  const ModelSpec& spec_;
  const GgufFamily& family_;
  const Attention& attention_;
  const Rope* rope_;
  gguf::Metadata out_;
};

}  // namespace

gguf::Metadata gguf_metadata(const ConfigView& c, const ModelSpec& spec) { return MetadataWriter(c, spec).all(); }

GgufRopeFactors gguf_rope_factors(const ConfigView& c, const ModelSpec& spec) {
  if (gguf_family_of(spec).sliding_rotation) return {};
  const ConfigView::RopeText r = c.text_model().rope_text();
  if (r.type != "longrope" && r.type != "llama3" && r.type != "factors") return {};
  if (r.type == "longrope") {
    const json values = json::parse(r.values);
    return {{kRopeLong, values["long_factor"].get<std::vector<float>>()},
            {kRopeShort, values["short_factor"].get<std::vector<float>>()}};
  }
  const Rope& rope = *op_of<Rope>(spec);
  std::vector<float> factors;
  const auto rot = static_cast<double>(2 * rope.params.inv_freq.size());
  for (size_t i = 0; i < rope.params.inv_freq.size(); ++i)
    factors.push_back(static_cast<float>(std::pow(r.theta, -2.0 * static_cast<double>(i) / rot) /
                                         static_cast<double>(rope.params.inv_freq[i])));
  return {{kRopeFreqs, std::move(factors)}};
}

}  // namespace fewbit

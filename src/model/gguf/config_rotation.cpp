// The rotation of heads as metadata, and as the tensors of divisors that some files have beside it.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/model/gguf/config.h"
#include "src/model/gguf/saying.h"

namespace fewbit {
namespace {

using nlohmann::json;

// Of the layers that see everything, and of queries: an indexer's have the same frequencies.
const Rope* main_rope(const GgufSaying& s) {
  for (const auto& block : s.spec.kinds)
    if (const Attention* a = attention_of(block); !a || a->window == 0 || !s.family.sliding_heads)
      if (const Rope* r = op_of<Rope>(block)) return r;
  return nullptr;
}

// HunYuan's `alpha` has stretched theta once and for all.
double stretched_theta(const Rope& rope) {
  const std::vector<float>& f = rope.params.inv_freq;
  const auto last = static_cast<double>(f.size() - 1);
  return std::pow(static_cast<double>(f.back()), -static_cast<double>(f.size()) / last);
}

void sections(const GgufSaying& s, const json& values) {
  const json usual = json::parse(s.family.usual_sections.empty() ? "null" : s.family.usual_sections);
  const json given = values.contains("mrope_section") ? values["mrope_section"] : usual;
  if (given.is_null()) s.cannot_say("rotary scaling without mrope_section");
  auto axes = given.get<std::vector<int32_t>>();
  axes.resize(4);  // time, height, width, and one that is not in use
  s.set("rope.dimension_sections", gguf::Array(axes));
}

// Where readers have a key for mscale_all_dim they take mscale for granted; scores of latent attention, which take the
// factor too, come out right with that key alone.
void yarn_scales(const GgufSaying& s, const json& values) {
  const auto number = [&](const char* key) {
    return values.contains(key) && values[key].is_number() ? values[key].get<double>() : 0.0;
  };
  const double each = number("mscale"), all = number("mscale_all_dim");
  if (s.family.yarn_log == 0) {
    for (const char* key : {"mscale", "mscale_all_dim"})
      if (values.contains(key) && !values[key].is_null()) s.cannot_say(fmt::format("YaRN's {}", key));
    return;
  }
  if (all == 0 && s.family.latent.used) s.cannot_say("YaRN without mscale_all_dim");
  if (all == 0 && each == 0) return;
  const double taken = s.family.yarn_follows ? all : 1;
  if (each != taken || (s.family.latent.used && !s.family.yarn_follows && all != 1))
    s.cannot_say(fmt::format("YaRN's mscale of {} beside mscale_all_dim of {}", each, all));
  s.set("rope.scaling.yarn_log_multiplier", static_cast<float>(all * static_cast<double>(s.family.yarn_log)));
}

// What readers take for granted may be said in config.json.
void yarn(const GgufSaying& s, const json& values) {
  const std::pair<const char*, double> usual[] = {
      {"attention_factor", 0.1 * std::log(values.value("factor", 1.0)) + 1}, {"beta_fast", 32}, {"beta_slow", 1}};
  for (const auto& [key, value] : usual)
    if (values.contains(key) && !values[key].is_null() && std::fabs(values[key].get<double>() / value - 1) > 1e-6)
      s.cannot_say(fmt::format("YaRN's {}, where it is not {},", key, value));
  yarn_scales(s, values);
  if (values.value("truncate", true) == s.family.untruncated_yarn) s.cannot_say("YaRN's truncate");
  const auto original = values.value("original_max_position_embeddings", s.c.i64("max_position_embeddings", 0));
  s.put("rope.scaling.original_context_length", original);
  const PositionScale* p = op_of<PositionScale>(s.spec);
  if (!p || !s.family.scaled_queries) return;
  if (p->every != original || p->shift != 0)
    s.cannot_say(fmt::format("queries that grow every {} positions beside YaRN of {}", p->every, original));
  s.set("attention.temperature_scale", p->factor);
}

// The type of scaling stays unsaid: readers take the tensors without it.
void long_rotation(const GgufSaying& s, const Rope& rope) {
  if (!s.family.long_rope) s.cannot_say("LongRoPE");
  s.put("rope.scaling.original_context_length", rope.params.original_positions);
  s.set("rope.scaling.attn_factor", rope.params.attention_scale);
}

// Scaling belongs to the layers that see everything.
void sliding_rotation(const GgufSaying& s, const std::string& full_type) {
  const ConfigView::RopeText r = s.c.rope_text("sliding_attention");
  if (r.type != "default") s.cannot_say("rotary scaling of layers with a window");
  if (s.family.sliding_heads ? full_type != "proportional" && full_type != "factors" && full_type != "default"
                             : full_type != "default" && full_type != "linear")
    s.cannot_say("rotary scaling of type " + full_type);
  s.set("rope.freq_base_swa", static_cast<float>(r.theta));
}

void scaling(const GgufSaying& s, const Rope& rope, const ConfigView::RopeText& r, const json& values) {
  if (op_of<PositionScale>(s.spec) && s.family.scaled_queries && r.type != "yarn")
    s.cannot_say("the scale of queries by their positions without YaRN");
  if (r.type == "default" && s.c.has("original_max_position_embeddings"))
    s.put("rope.scaling.original_context_length", s.c.i64("original_max_position_embeddings"));
  if (r.type == "longrope") return long_rotation(s, rope);
  const bool factors = r.type == "llama3" || r.type == "factors" || r.type == "proportional";
  if (factors && !s.family.divisors) s.cannot_say("rotary scaling of type " + r.type);
  if (factors || r.type == "default" || r.type == "dynamic") return;
  if (r.type != "linear" && r.type != "yarn") s.cannot_say("rotary scaling of type " + r.type);
  s.set("rope.scaling.type", r.type);
  s.set("rope.scaling.factor", static_cast<float>(values.value("factor", 1.0)));
  if (r.type == "yarn") yarn(s, values);
}

}  // namespace

void say_rotation(const GgufSaying& s) {
  const Rope* rope = main_rope(s);
  const Attention* attention = op_of<Attention>(s.spec);
  if (!rope) {
    const bool known = s.family.still_period == 1 || s.family.still_switch || !s.family.latent.turns;
    if (!known) s.cannot_say("a model that does not turn its heads");
    const LatentAttention* latent = op_of<LatentAttention>(s.spec);
    s.put("rope.dimension_count", latent ? latent->rope : attention->head_dim);
    return;
  }
  const ConfigView::RopeText r = s.c.rope_text(s.family.sliding_rotation ? "full_attention" : "");
  const json values = json::parse(r.values);
  const auto features = static_cast<int64_t>(2 * rope->params.inv_freq.size());
  if (attention && !s.family.sliding_heads && features != attention->head_dim && !s.family.partial_rotary)
    s.cannot_say(fmt::format("a rotation of {} features of {}", features, attention->head_dim));
  s.put("rope.dimension_count", features);
  s.set("rope.freq_base", static_cast<float>(r.type == "dynamic" ? stretched_theta(*rope) : r.theta));
  if (s.family.sections) sections(s, values);
  if (s.family.sliding_rotation) sliding_rotation(s, r.type);
  scaling(s, *rope, r, values);
}

GgufRopeFactors gguf_rope_factors(const ConfigView& c, const ModelSpec& spec) {
  const GgufFamily& family = gguf_family_of(spec);
  if (family.sliding_rotation && !family.divisors) return {};
  const ConfigView::RopeText r = c.text_model().rope_text(family.sliding_rotation ? "full_attention" : "");
  const bool proportional = r.type == "proportional" || (r.type == "default" && family.sliding_heads);
  if (r.type != "longrope" && r.type != "llama3" && r.type != "factors" && !proportional) return {};
  if (r.type == "longrope") {
    const json values = json::parse(r.values);
    return {{kRopeLong, values["long_factor"].get<std::vector<float>>()},
            {kRopeShort, values["short_factor"].get<std::vector<float>>()}};
  }
  gguf::Metadata none;
  const Rope* rope = main_rope({c, spec, family, "", none});
  if (!rope) return {};
  std::vector<float> factors;
  const auto rot = static_cast<double>(2 * rope->params.inv_freq.size());
  for (size_t i = 0; i < rope->params.inv_freq.size(); ++i) {
    const auto frequency = static_cast<double>(rope->params.inv_freq[i]);
    const double plain = std::pow(r.theta, -2.0 * static_cast<double>(i) / rot);
    factors.push_back(frequency == 0 ? kStill : proportional ? 1.f : static_cast<float>(plain / frequency));
  }
  return {{kRopeFreqs, std::move(factors)}};
}

}  // namespace fewbit

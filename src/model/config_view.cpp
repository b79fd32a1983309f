// Long because: the one file that knows JSON has both spellings of every key and every rope type.
// Typed access to config.json. Every message names the file and the key; the rotary formulas are those of
// Hugging Face transformers (modeling_rope_utils.py), the RoPE scalings those of Llama 3.1, of YaRN (arXiv
// 2309.00071) and of LongRoPE (arXiv 2402.13753).
#include "src/model/config_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "formats/guarded_json.h"

namespace fewbit {

using nlohmann::json;

struct ConfigView::Impl {
  std::string text, where;
  json root;
};

namespace {

// The member of `o`, or null where it is absent or null.
const json* member(const json& o, const std::string& key) {
  const auto it = o.find(key);
  return it == o.end() || it->is_null() ? nullptr : &*it;
}

std::string shown(const json& v) {
  const std::string s = python_json(v);
  return s.size() <= 60 ? s : s.substr(0, 57) + "...";
}

[[noreturn]] void wrong_type(const std::string& where, const std::string& key, const char* expected, const json* v) {
  fail(ErrorKind::checkpoint,
       fmt::format("{}: {}: expected {}, found {}", where, key, expected, v ? shown(*v) : "nothing"));
}

int64_t as_i64(const std::string& where, const std::string& key, const json* v) {
  if (!v || !v->is_number_integer() || (v->is_number_unsigned() && v->get<uint64_t>() > INT64_MAX))
    wrong_type(where, key, "an integer", v);
  return v->get<int64_t>();
}

double as_f64(const std::string& where, const std::string& key, const json* v) {
  if (!v || !v->is_number()) wrong_type(where, key, "a number", v);
  if (!std::isfinite(v->get<double>())) wrong_type(where, key, "a finite number", v);
  return v->get<double>();
}

std::string as_str(const std::string& where, const std::string& key, const json* v) {
  if (!v || !v->is_string()) wrong_type(where, key, "a string", v);
  return v->get<std::string>();
}

}  // namespace

ConfigView::ConfigView(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ConfigView::ConfigView(ConfigView&&) noexcept = default;
ConfigView& ConfigView::operator=(ConfigView&&) noexcept = default;
ConfigView::~ConfigView() = default;

ConfigView ConfigView::open(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    fail(ErrorKind::io, path.string() + ": cannot be read; a model directory holds a config.json");
  return parse(json_text(path, kConfigJson), path.string());
}

ConfigView ConfigView::parse(const std::string& json_text, const std::string& where) {
  auto impl = std::make_unique<Impl>();
  impl->text = json_text;
  impl->where = where;
  impl->root = parse_json(json_text, where, kConfigJson);
  if (!impl->root.is_object())
    fail(ErrorKind::checkpoint, fmt::format("{}: expected a JSON object, found {}", where, shown(impl->root)));
  return ConfigView(std::move(impl));
}

const std::string& ConfigView::text() const { return impl_->text; }
const std::string& ConfigView::where() const { return impl_->where; }

ConfigView ConfigView::section(const std::string& key) const {
  const json* object = member(impl_->root, key);
  if (!object || !object->is_object()) wrong_type(where(), key, "an object", object);
  return ConfigView(std::make_unique<Impl>(Impl{impl_->text, impl_->where + ": " + key, *object}));
}

ConfigView ConfigView::text_model() const {
  if (!has("text_config")) return ConfigView(std::make_unique<Impl>(*impl_));
  ConfigView text = section("text_config");
  json& root = text.impl_->root;
  for (const char* key : {"architectures", "tie_word_embeddings", "bos_token_id", "eos_token_id"})
    if (const json* whole = member(impl_->root, key);
        whole && (!member(root, key) || key == std::string("architectures")))
      root[key] = *whole;
  return text;
}

ConfigView ConfigView::with_defaults(const std::string& json_object) const {
  auto impl = std::make_unique<Impl>(*impl_);
  const ConfigView defaults = parse(json_object, "defaults");
  for (const auto& [key, value] : defaults.impl_->root.items())
    if (!member(impl->root, key)) impl->root[key] = value;
  return ConfigView(std::move(impl));
}

std::string ConfigView::architecture() const {
  const std::vector<std::string> names = str_list("architectures");
  if (names.empty())
    fail(ErrorKind::checkpoint, where() + ": architectures: expected a list with a class name, found nothing");
  return names[0];
}

bool ConfigView::has(const std::string& key) const { return member(impl_->root, key) != nullptr; }
bool ConfigView::mentions(const std::string& key) const { return impl_->root.contains(key); }

int64_t ConfigView::i64(const std::string& key) const { return as_i64(where(), key, member(impl_->root, key)); }
double ConfigView::f64(const std::string& key) const { return as_f64(where(), key, member(impl_->root, key)); }
std::string ConfigView::str(const std::string& key) const { return as_str(where(), key, member(impl_->root, key)); }

int64_t ConfigView::i64(const std::string& key, int64_t fallback) const { return has(key) ? i64(key) : fallback; }
double ConfigView::f64(const std::string& key, double fallback) const { return has(key) ? f64(key) : fallback; }
std::string ConfigView::str(const std::string& key, const std::string& fallback) const {
  return has(key) ? str(key) : fallback;
}

bool ConfigView::flag(const std::string& key, bool fallback) const {
  const json* v = member(impl_->root, key);
  if (!v) return fallback;
  if (!v->is_boolean()) wrong_type(where(), key, "true or false", v);
  return v->get<bool>();
}

std::vector<int64_t> ConfigView::i64_list(const std::string& key) const {
  const json* v = member(impl_->root, key);
  if (!v) return {};
  if (!v->is_array()) return {as_i64(where(), key, v)};
  std::vector<int64_t> out;
  for (const json& e : *v) out.push_back(as_i64(where(), key, &e));
  return out;
}

std::vector<std::string> ConfigView::str_list(const std::string& key) const {
  const json* v = member(impl_->root, key);
  if (!v) return {};
  if (!v->is_array()) wrong_type(where(), key, "a list of strings", v);
  std::vector<std::string> out;
  for (const json& e : *v) out.push_back(as_str(where(), key, &e));
  return out;
}

namespace {

// A number that may be infinite, as transformers 5 writes it too: {"__float__": "Infinity"}.
std::optional<double> end_of_interval(const json& v) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (const json* tagged = v.is_object() ? member(v, "__float__") : nullptr)
    return *tagged == "Infinity"    ? std::optional(kInfinity)
           : *tagged == "-Infinity" ? std::optional(-kInfinity)
                                    : std::nullopt;
  if (!v.is_number() || std::isnan(v.get<double>())) return std::nullopt;
  return v.get<double>();
}

}  // namespace

std::pair<double, double> ConfigView::interval(const std::string& key) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const json* v = member(impl_->root, key);
  if (!v) return {-kInfinity, kInfinity};
  if (v->is_array() && v->size() == 2)
    if (const auto low = end_of_interval((*v)[0]), high = end_of_interval((*v)[1]); low && high && *low <= *high)
      return {*low, *high};
  wrong_type(where(), key, "two numbers, the lower one first", v);
}

void ConfigView::must_equal(const std::string& key, const std::string& value) const {
  if (!has(key)) return;
  if (const std::string found = str(key); found != value)
    fail(ErrorKind::unsupported,
         fmt::format("{}: {}: found \"{}\"; only \"{}\" is supported", where(), key, found, value));
}

void ConfigView::must_be_false(const std::string& key) const {
  if (flag(key, false))
    fail(ErrorKind::unsupported, fmt::format("{}: {}: found true; only false is supported", where(), key));
}

void ConfigView::must_be_true(const std::string& key) const {
  if (!flag(key, true))
    fail(ErrorKind::unsupported, fmt::format("{}: {}: found false; only true is supported", where(), key));
}

namespace {

// The rotary settings of one config, whichever spelling they came in.
struct RopeSettings {
  std::string where, at;         // file, and the key that holds the object, for messages
  json object = json::object();  // factor, low_freq_factor, …
  std::string type = "default";
  double theta = 10000, partial = 1;
  int64_t max_positions = 0;
  int64_t original_positions = 0;  // of longrope: original_max_position_embeddings of the root, else of the object

  const json* get(const std::string& key) const { return member(object, key); }
  double number(const std::string& key) const { return as_f64(where, at + "." + key, get(key)); }
  double number(const std::string& key, double fallback) const { return get(key) ? number(key) : fallback; }
  double positive(const std::string& key) const {
    const double v = number(key);
    if (!(v > 0)) wrong_type(where, at + "." + key, "a number above 0", get(key));
    return v;
  }
};

const json* object_of(const std::string& where, const std::string& key, const json* v) {
  if (v && !v->is_object()) wrong_type(where, key, "an object", v);
  return v;
}

// Newer spelling: everything in rope_parameters, maybe one object per layer type. Older: rope_theta (Gemma 3
// keeps a second one for its sliding layers in rope_local_base_freq), rope_scaling, partial_rotary_factor.
RopeSettings read_rope(const json& root, const std::string& where, const std::string& section, double partial = 1) {
  RopeSettings s;
  s.partial = partial;
  s.where = where;
  if (section == "full_attention") s.theta = 1e6;  // the default of the one family with sections
  if (const json* m = member(root, "max_position_embeddings"))
    s.max_positions = as_i64(where, "max_position_embeddings", m);
  if (const json* p = member(root, "partial_rotary_factor")) s.partial = as_f64(where, "partial_rotary_factor", p);
  if (const json* t = member(root, "rope_theta")) s.theta = as_f64(where, "rope_theta", t);
  s.at = "rope_scaling";
  const json* object = object_of(where, s.at, member(root, "rope_scaling"));
  if (const json* p = object_of(where, "rope_parameters", member(root, "rope_parameters"))) {
    s.at = "rope_parameters";
    object = p;
    const bool nested = std::any_of(p->begin(), p->end(), [](const json& v) { return v.is_object(); });
    if (nested) {
      if (section.empty() || !p->contains(section))
        fail(ErrorKind::unsupported,
             fmt::format("{}: rope_parameters: one entry per layer type is not supported here; "
                         "expected {}",
                         where, section.empty() ? "one set of values" : "an entry \"" + section + "\""));
      s.at += "." + section;
      object = object_of(where, s.at, &(*p)[section]);
    }
  } else if (section == "sliding_attention") {
    const json* local = member(root, "rope_local_base_freq");
    s.theta = local ? as_f64(where, "rope_local_base_freq", local) : 1e4;
    object = nullptr;
  }
  if (object) s.object = *object;
  if (s.get("rope_theta")) s.theta = s.number("rope_theta");
  if (s.get("partial_rotary_factor")) s.partial = s.number("partial_rotary_factor");
  for (const char* key : {"type", "rope_type"})
    if (const json* t = s.get(key)) s.type = as_str(where, s.at + "." + key, t);
  // Names from before it was published. YaRN has no such lists: under its name transformers reads LongRoPE as well.
  if (s.type == "mrope") s.type = "default";  // three axes of positions, which are one for text
  if (s.type == "su" || (s.type == "yarn" && s.get("short_factor") && s.get("long_factor"))) s.type = "longrope";
  if (s.type == "longrope") {
    const std::string key = "original_max_position_embeddings";
    const json* at_root = member(root, key);
    s.original_positions = at_root ? as_i64(where, key, at_root) : as_i64(where, s.at + "." + key, s.get(key));
    if (s.original_positions < 2)
      wrong_type(where, at_root ? key : s.at + "." + key, "an integer above 1", at_root ? at_root : s.get(key));
  }
  return s;
}

// Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, between them a linear blend.
void scale_llama3(const RopeSettings& s, std::vector<double>& inv_freq) {
  const double factor = s.positive("factor"), low = s.positive("low_freq_factor"),
               high = s.positive("high_freq_factor");
  const double original = s.positive("original_max_position_embeddings");
  for (double& f : inv_freq) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength < original / high) continue;
    if (wavelength > original / low) {
      f /= factor;
    } else {
      const double smooth = (original / wavelength - low) / (high - low);
      f = (1 - smooth) * f / factor + smooth * f;
    }
  }
}

double yarn_mscale(double scale, double mscale) { return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0; }

// YaRN: features that turn often within the original context keep their frequency, slow ones are
// interpolated. Returns the factor on cos and sin.
double scale_yarn(const RopeSettings& s, std::vector<double>& inv_freq) {
  const auto half = static_cast<int64_t>(inv_freq.size());
  const double dim = 2.0 * static_cast<double>(half);
  const double original = s.get("original_max_position_embeddings") ? s.positive("original_max_position_embeddings")
                                                                    : static_cast<double>(s.max_positions);
  if (!(original > 0)) wrong_type(s.where, s.at + ".original_max_position_embeddings", "a number above 0", nullptr);
  const double factor = s.get("factor") ? s.positive("factor") : static_cast<double>(s.max_positions) / original;
  const auto correction = [&](double rotations) {
    return dim * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(s.theta));
  };
  double low = correction(s.number("beta_fast", 32)), high = correction(s.number("beta_slow", 1));
  const json* truncate = s.get("truncate");
  if (truncate && !truncate->is_boolean()) wrong_type(s.where, s.at + ".truncate", "true or false", truncate);
  if (!truncate || truncate->get<bool>()) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (int64_t i = 0; i < half; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& f = inv_freq[static_cast<size_t>(i)];
    f = f / factor * ramp + f * (1 - ramp);
  }
  if (s.get("attention_factor")) return s.number("attention_factor");
  const double mscale = s.number("mscale", 0), all = s.number("mscale_all_dim", 0);
  return mscale != 0 && all != 0 ? yarn_mscale(factor, mscale) / yarn_mscale(factor, all) : yarn_mscale(factor, 1);
}

// Every frequency has a divisor of its own, in the list `key`: "factors" is how a GGUF file tells Llama 3.1's scaling.
void divide_by(const RopeSettings& s, const std::string& key, std::vector<double>& inv_freq) {
  const json* factors = s.get(key);
  const std::string at = s.at + "." + key, expected = fmt::format("{} positive numbers", inv_freq.size());
  if (!factors || !factors->is_array()) wrong_type(s.where, at, expected.c_str(), factors);
  if (factors->size() != inv_freq.size())
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}: expected {}, found {} entries", s.where, at, expected, factors->size()));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const json& entry = (*factors)[i];
    if (!entry.is_number() || !(entry.get<double>() > 0) || std::isinf(entry.get<double>()))
      wrong_type(s.where, fmt::format("{}[{}]", at, i), "a number above 0", &entry);
    inv_freq[i] /= entry.get<double>();
  }
}

// LongRoPE: divisors for sequences within the original context and others for longer ones. A `factor` in the config
// goes before the ratio of the contexts, as in transformers 5.
RopeParams scale_longrope(const RopeSettings& s, const std::vector<double>& inv_freq) {
  // A factor on cos and sin for each table: no model of the architectures read here has them.
  for (const char* key : {"short_mscale", "long_mscale"})
    if (s.get(key)) fail(ErrorKind::unsupported, fmt::format("{}: {}.{} is not supported", s.where, s.at, key));
  std::vector<double> within = inv_freq, beyond = inv_freq;
  divide_by(s, "short_factor", within);
  divide_by(s, "long_factor", beyond);
  const auto original = static_cast<double>(s.original_positions);
  const double factor = s.get("factor") ? s.positive("factor") : static_cast<double>(s.max_positions) / original;
  const double scale = s.get("attention_factor") ? s.positive("attention_factor")
                       : factor <= 1             ? 1
                                                 : std::sqrt(1 + std::log(factor) / std::log(original));
  return {.inv_freq = {within.begin(), within.end()},
          .attention_scale = static_cast<float>(scale),
          .long_inv_freq = {beyond.begin(), beyond.end()},
          .original_positions = s.original_positions};
}

// HunYuan: `alpha` stretches theta once and for all; the other keys of its dynamic scaling do nothing.
double scaled_theta(const RopeSettings& s, int64_t rot) {
  if (s.type != "dynamic" || !s.get("alpha")) return s.theta;
  return s.theta * std::pow(s.positive("alpha"), static_cast<double>(rot) / static_cast<double>(rot - 2));
}

RopeParams rope_of(const RopeSettings& s, int64_t head_dim) {
  const std::string& where = s.where;
  if (!(s.theta > 1))
    fail(ErrorKind::checkpoint, fmt::format("{}: rope_theta: expected a number above 1, found {}", where, s.theta));
  if (!(s.partial > 0 && s.partial <= 1))
    fail(ErrorKind::checkpoint,
         fmt::format("{}: partial_rotary_factor: expected a number in (0, 1], found {}", where, s.partial));
  const auto rot = static_cast<int64_t>(static_cast<double>(head_dim) * s.partial);
  if (rot < 2 || rot % 2 != 0)
    fail(ErrorKind::unsupported,
         fmt::format("{}: rotary features: expected an even count, found {} (head_dim {})", where, rot, head_dim));
  if (s.type == "proportional") {  // the first pairs of the head turn, with the frequencies of all of them
    RopeParams params;
    for (int64_t j = 0; j < head_dim / 2; ++j)
      params.inv_freq.push_back(j < rot / 2 ? static_cast<float>(std::pow(s.theta, -2.0 * static_cast<double>(j) /
                                                                                       static_cast<double>(head_dim)))
                                            : 0.f);
    return params;
  }
  std::vector<double> inv_freq;
  const double theta = scaled_theta(s, rot);
  for (int64_t i = 0; i < rot; i += 2)
    inv_freq.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(rot)));
  RopeParams params;
  if (s.type == "linear") {
    for (double& f : inv_freq) f /= s.positive("factor");
  } else if (s.type == "llama3") {
    scale_llama3(s, inv_freq);
  } else if (s.type == "yarn") {
    params.attention_scale = static_cast<float>(scale_yarn(s, inv_freq));
    if (const double all = s.number("mscale_all_dim", 0); all != 0)
      params.score_scale = static_cast<float>(std::pow(yarn_mscale(s.number("factor", 1), all), 2));
  } else if (s.type == "factors") {
    divide_by(s, "factors", inv_freq);
  } else if (s.type == "longrope") {
    return scale_longrope(s, inv_freq);
  } else if (s.type != "default" && !(s.type == "dynamic" && s.get("alpha"))) {
    fail(ErrorKind::unsupported,
         fmt::format("{}: {}.rope_type: found \"{}\"; supported: default, linear, llama3, yarn, longrope", where, s.at,
                     s.type));
  }
  params.inv_freq.assign(inv_freq.begin(), inv_freq.end());
  return params;
}

}  // namespace

ConfigView::RopeText ConfigView::rope_text(const std::string& section) const {
  const RopeSettings s = read_rope(impl_->root, where(), section);
  return {s.type, s.theta, s.partial, s.object.dump()};
}

double ConfigView::rope_number(const std::string& key, double fallback) const {
  return read_rope(impl_->root, where(), "").number(key, fallback);
}

RopeParams ConfigView::unscaled_rope(int64_t head_dim) const {
  RopeSettings s = read_rope(impl_->root, where(), "");
  s.type = "default";
  return rope_of(s, head_dim);
}

RopeParams ConfigView::rope_of_theta(int64_t head_dim, const std::string& key, double fallback, bool scaled) const {
  RopeSettings s = read_rope(impl_->root, where(), "");
  s.theta = f64(key, fallback);
  if (!scaled) s.type = "default";
  return rope_of(s, head_dim);
}

RopeParams ConfigView::rope(int64_t head_dim, const std::string& section, double partial) const {
  return rope_of(read_rope(impl_->root, where(), section, partial), head_dim);
}

}  // namespace fewbit

// Reads quantization_config: our own map of linears, AutoGPTQ's and GPTQModel's configs with `dynamic` rules.
// Which linears are packed is decided by the tensors that exist; the config says how.
#include <nlohmann/json.hpp>
// g++ 12 with sanitizers takes std::regex's own unions for uninitialized.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <regex>

#include "formats/checkpoint_format.h"
#include "src/core/error.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

using nlohmann::ordered_json;
using HasTensor = std::function<bool(const std::string&)>;

// A JSON object with its place, for messages.
struct Object {
  const ordered_json* json = nullptr;
  std::string where;

  const ordered_json* find(const char* key) const {
    const auto it = json->find(key);
    return it == json->end() || it->is_null() ? nullptr : &*it;
  }
  [[noreturn]] void wrong(const char* key, const std::string& expected, const ordered_json* found) const {
    fail(ErrorKind::checkpoint,
         where + '.' + key + ": expected " + expected + ", found " + (found ? shown(*found) : "nothing"));
  }
  static std::string shown(const ordered_json& v) {
    const std::string s = v.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    return s.size() <= 60 ? s : s.substr(0, 57) + "...";
  }
  std::string str(const char* key, const std::string& fallback) const {
    const ordered_json* v = find(key);
    if (v && !v->is_string()) wrong(key, "a string", v);
    return v ? v->get<std::string>() : fallback;
  }
  bool flag(const char* key, bool fallback) const {
    const ordered_json* v = find(key);
    if (v && !v->is_boolean()) wrong(key, "true or false", v);
    return v ? v->get<bool>() : fallback;
  }
  // The values of key, or those of `inherited` where it is absent.
  int bits(const QuantSpec* inherited) const {
    const ordered_json* v = find("bits");
    if (!v && inherited) return inherited->bits;
    if (!v || !v->is_number_integer()) wrong("bits", "an integer", v);
    const auto b = v->get<int64_t>();
    if (b != 2 && b != 3 && b != 4 && b != 8)
      fail(ErrorKind::unsupported, where + ".bits: found " + std::to_string(b) + "; supported: 2, 3, 4, 8");
    return static_cast<int>(b);
  }
  int64_t group_size(const QuantSpec* inherited) const {
    const ordered_json* v = find("group_size");
    if (!v && inherited) return inherited->group;
    if (!v || !v->is_number_integer() || (v->get<int64_t>() < 1 && v->get<int64_t>() != -1))
      wrong("group_size", "-1 or a positive integer", v);
    return v->get<int64_t>();
  }
  std::optional<Object> object(const char* key) const {
    const ordered_json* v = find(key);
    if (v && !v->is_object()) wrong(key, "an object", v);
    if (!v) return std::nullopt;
    return Object{v, where + '.' + key};
  }
};

ordered_json parse(const std::string& text, const std::string& where) {
  ordered_json tree;
  try {
    tree = ordered_json::parse(text);
  } catch (const ordered_json::parse_error& e) {
    fail(ErrorKind::checkpoint, where + ": not JSON: syntax error at byte " + std::to_string(e.byte));
  }
  if (!tree.is_object())
    fail(ErrorKind::checkpoint, where + ": expected a JSON object, found " + Object::shown(tree));
  return tree;
}

const Packing& packing_named(const std::string& name, const std::string& where) {
  std::string known;
  for (const Packing* p : packings()) {
    if (p->name == name) return *p;
    known += ' ';
    known += p->name;
  }
  fail(ErrorKind::unsupported, where + ": found \"" + name + "\"; known:" + known);
}

// The name of the tensor that holds a linear's codes: the first of the packing's plan, whatever the shape.
std::string codes_tensor(const std::string& linear, const LinearFormat& f) {
  return linear + '.' + f.packing->tensors(f.spec, 256, 256, f.act_order)[0].suffix;
}

LinearFormat map_entry(const Object& o) {
  LinearFormat f;
  f.packing = &packing_named(o.str("packing", ""), o.where + ".packing");
  f.spec.bits = o.bits(nullptr);
  f.spec.group = o.group_size(nullptr);
  f.spec.symmetric = o.flag("sym", true);
  f.act_order = o.flag("act_order", false);
  return f;
}

// Our own map: the default, and an entry for every linear that differs from it.
void read_map(const Object& fewbit, const std::vector<std::string>& linears, const HasTensor& has_tensor,
              QuantizationSummary& out) {
  const ordered_json* version = fewbit.find("version");
  if (!version || *version != 1)
    fail(ErrorKind::unsupported, fewbit.where + ".version: found " +
                                     (version ? Object::shown(*version) : "nothing") +
                                     "; this program reads version 1");
  const auto common = fewbit.object("default");
  if (!common) fewbit.wrong("default", "an object", nullptr);
  const LinearFormat default_format = map_entry(*common);
  std::map<std::string, LinearFormat> listed;
  if (const auto entries = fewbit.object("linears")) {
    for (const auto& [name, value] : entries->json->items()) {
      if (!value.is_object()) entries->wrong(name.c_str(), "an object", &value);
      listed[name] = map_entry({&value, entries->where + '.' + name});
    }
  }
  for (const std::string& linear : linears) {
    const auto it = listed.find(linear);
    const LinearFormat f = it == listed.end() ? default_format : it->second;
    if (has_tensor(codes_tensor(linear, f))) {
      out.linears[linear] = f;
    } else if (it != listed.end()) {
      fail(ErrorKind::checkpoint,
           fewbit.where + ".linears." + linear + ": tensor '" + codes_tensor(linear, f) + "' is missing");
    } else {
      out.dense.push_back(linear);
    }
    if (it != listed.end()) listed.erase(it);
  }
  if (!listed.empty())
    fail(ErrorKind::checkpoint,
         fewbit.where + ".linears." + listed.begin()->first + ": the model has no such linear");
}

// One rule of GPTQModel's `dynamic`: a regular expression from the start of the module's name.
struct Rule {
  std::regex pattern;
  bool skip;  // "-:": not quantized
  Object values;
};

std::vector<Rule> read_rules(const Object& config) {
  std::vector<Rule> rules;
  const auto dynamic = config.object("dynamic");
  if (!dynamic) return rules;
  for (const auto& [key, value] : dynamic->json->items()) {
    if (!value.is_object()) dynamic->wrong(key.c_str(), "an object", &value);
    const bool prefixed = starts_with(key, "-:") || starts_with(key, "+:");
    try {
      rules.push_back({std::regex(key.substr(prefixed ? 2 : 0)),
                       key[0] == '-' && prefixed,
                       {&value, dynamic->where + '.' + key}});
    } catch (const std::regex_error& e) {
      fail(ErrorKind::unsupported,
           dynamic->where + ": cannot read the regular expression \"" + key + "\": " + e.what());
    }
  }
  return rules;
}

const Rule* first_match(const std::vector<Rule>& rules, const std::string& linear) {
  for (const Rule& r : rules)
    if (std::regex_search(linear, r.pattern, std::regex_constants::match_continuous)) return &r;
  return nullptr;
}

// A config without our map: one format for all, changed by `dynamic`.
void read_uniform(const Object& config, const Packing& packing, const std::vector<std::string>& linears,
                  const HasTensor& has_tensor, QuantizationSummary& out) {
  LinearFormat base{.packing = &packing, .act_order = config.flag("desc_act", false)};
  base.spec.bits = config.bits(nullptr);
  base.spec.group = config.group_size(nullptr);
  base.spec.symmetric = config.flag("sym", true);
  if (&packing == &packing_marlin && (base.spec.bits != 4 || !base.spec.symmetric || base.act_order)) {
    fail(ErrorKind::unsupported,
         config.where + ": checkpoint_format marlin wants bits 4, sym true, desc_act false, found " +
             base.spec.str() + (base.act_order ? ", desc_act true" : ""));
  }
  const std::vector<Rule> rules = read_rules(config);
  for (const std::string& linear : linears) {
    LinearFormat f = base;
    const Rule* rule = first_match(rules, linear);
    if ((rule && rule->skip) || !has_tensor(codes_tensor(linear, f))) {
      out.dense.push_back(linear);
      continue;
    }
    if (rule) {
      f.spec.bits = rule->values.bits(&base.spec);
      f.spec.group = rule->values.group_size(&base.spec);
      f.spec.symmetric = rule->values.flag("sym", base.spec.symmetric);
      f.act_order = rule->values.flag("desc_act", base.act_order);
    }
    out.linears[linear] = f;
  }
}

// The quantization_config object, or nothing for a dense checkpoint. `tree` keeps it alive.
std::optional<Object> find_config(const std::string& config_json, const std::string& quantize_config_json,
                                  ordered_json& tree) {
  tree = parse(config_json, "config.json");
  if (const auto config = Object{&tree, "config.json"}.object("quantization_config")) return config;
  if (quantize_config_json.empty()) return std::nullopt;
  tree = parse(quantize_config_json, "quantize_config.json");
  return Object{&tree, "quantize_config.json"};
}

}  // namespace

QuantizationSummary read_quantization(const std::string& config_json, const std::string& quantize_config_json,
                                      const std::vector<std::string>& linears, const HasTensor& has_tensor,
                                      std::string* name) {
  QuantizationSummary out;
  if (name) *name = "dense";
  ordered_json tree;
  const auto config = find_config(config_json, quantize_config_json, tree);
  if (!config) return out;
  // Files of before 2024 do not name the method in quantize_config.json.
  const std::string unnamed = config->where == "quantize_config.json" ? "gptq" : "";
  const std::string method = config->str("quant_method", config->str("method", unnamed));
  if (method != "gptq") {
    fail(ErrorKind::unsupported, config->where + ".quant_method: found \"" + method +
                                     "\"; known: gptq (with checkpoint_format gptq, gptq_v2 or marlin)");
  }
  const char* old = config->flag("is_marlin_format", false) ? "marlin" : "gptq";
  const std::string format = config->str("checkpoint_format", config->str("format", old));
  const Packing& packing = packing_named(format, config->where + ".checkpoint_format");
  if (const std::string words = config->str("pack_dtype", "int32"); words != "int32")
    fail(ErrorKind::unsupported,
         config->where + ".pack_dtype: found \"" + words + "\"; only int32 is supported");
  if (config->flag("lm_head", false) && !has_tensor("lm_head.weight"))
    fail(ErrorKind::unsupported, config->where + ".lm_head: found true; a quantized head is not supported");
  if (name) *name = format;
  if (const auto fewbit = config->object("fewbit")) {
    read_map(*fewbit, linears, has_tensor, out);
  } else {
    read_uniform(*config, packing, linears, has_tensor, out);
  }
  return out;
}

}  // namespace fewbit

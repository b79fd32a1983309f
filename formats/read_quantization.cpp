// Reads quantization_config: our own map of linears, AutoGPTQ's and GPTQModel's configs with `dynamic` rules,
// and compressed-tensors (formats/checkpoints/compressed_tensors.cpp). Which linears are packed is decided by
// the tensors that exist; the config says how.
#include "formats/checkpoint_format.h"
#include "formats/checkpoints/compressed_tensors.h"
#include "formats/config_object.h"
#include "src/core/error.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

// The values of key, or those of `inherited` where it is absent.
int read_bits(const ConfigObject& o, const QuantSpec* inherited) {
  const auto b = o.integer("bits");
  if (!b && inherited) return inherited->bits;
  if (!b) o.wrong("bits", "an integer");
  if (*b != 2 && *b != 3 && *b != 4 && *b != 8) o.unsupported("bits", "2, 3, 4, 8");
  return static_cast<int>(*b);
}
int64_t read_group_size(const ConfigObject& o, const QuantSpec* inherited) {
  const auto g = o.integer("group_size");
  if (!g && inherited) return inherited->group;
  if (!g || (*g < 1 && *g != -1)) o.wrong("group_size", "-1 or a positive integer");
  return *g;
}

// The packings whose config is the GPTQ family's.
const Packing& packing_named(const std::string& name, const std::string& where) {
  std::string known;
  for (const Packing* p : {&packing_marlin, &packing_gptq, &packing_gptq_v2}) {
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

bool packed(const TensorSource& tensor, const std::string& linear, const LinearFormat& f) {
  return tensor(codes_tensor(linear, f)).data != nullptr;
}

LinearFormat map_entry(const ConfigObject& o) {
  LinearFormat f;
  f.packing = &packing_named(o.str("packing", ""), o.where + ".packing");
  f.spec.bits = read_bits(o, nullptr);
  f.spec.group = read_group_size(o, nullptr);
  f.spec.symmetric = o.flag("sym", true);
  f.act_order = o.flag("act_order", false);
  return f;
}

// Our own map: the default, and an entry for every linear that differs from it.
void read_map(const ConfigObject& fewbit, const std::vector<std::string>& linears, const TensorSource& tensor,
              QuantizationSummary& out) {
  if (fewbit.integer("version") != 1) fewbit.unsupported("version", "1");
  const auto common = fewbit.object("default");
  if (!common) fewbit.wrong("default", "an object");
  const LinearFormat default_format = map_entry(*common);
  std::map<std::string, LinearFormat> listed;
  if (const auto entries = fewbit.object("linears"))
    for (const auto& [name, value] : entries->members()) listed[name] = map_entry(value);
  for (const std::string& linear : linears) {
    const auto it = listed.find(linear);
    const LinearFormat f = it == listed.end() ? default_format : it->second;
    if (packed(tensor, linear, f)) {
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
  NamePattern pattern;
  bool skip;  // "-:": not quantized
  ConfigObject values;
};

std::vector<Rule> read_rules(const ConfigObject& config) {
  std::vector<Rule> rules;
  const auto dynamic = config.object("dynamic");
  if (!dynamic) return rules;
  for (const auto& [key, value] : dynamic->members()) {
    const bool prefixed = starts_with(key, "-:") || starts_with(key, "+:");
    rules.push_back(
        {NamePattern(key.substr(prefixed ? 2 : 0), dynamic->where), key[0] == '-' && prefixed, value});
  }
  return rules;
}

const Rule* first_match(const std::vector<Rule>& rules, const std::string& linear) {
  for (const Rule& r : rules)
    if (r.pattern.matches(linear)) return &r;
  return nullptr;
}

// A config without our map: one format for all, changed by `dynamic`.
void read_uniform(const ConfigObject& config, const Packing& packing, const std::vector<std::string>& linears,
                  const TensorSource& tensor, QuantizationSummary& out) {
  LinearFormat base{.packing = &packing, .act_order = config.flag("desc_act", false)};
  base.spec.bits = read_bits(config, nullptr);
  base.spec.group = read_group_size(config, nullptr);
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
    if ((rule && rule->skip) || !packed(tensor, linear, f)) {
      out.dense.push_back(linear);
      continue;
    }
    if (rule) {
      f.spec.bits = read_bits(rule->values, &base.spec);
      f.spec.group = read_group_size(rule->values, &base.spec);
      f.spec.symmetric = rule->values.flag("sym", base.spec.symmetric);
      f.act_order = rule->values.flag("desc_act", base.act_order);
    }
    out.linears[linear] = f;
  }
}

QuantizationSummary read_gptq(const ConfigObject& config, const std::vector<std::string>& linears,
                              const TensorSource& tensor, std::string& name) {
  const char* old = config.flag("is_marlin_format", false) ? "marlin" : "gptq";
  const std::string format = config.str("checkpoint_format", config.str("format", old));
  const Packing& packing = packing_named(format, config.where + ".checkpoint_format");
  if (config.str("pack_dtype", "int32") != "int32") config.unsupported("pack_dtype", "int32");
  if (config.flag("lm_head", false) && !tensor("lm_head.weight").data)
    fail(ErrorKind::unsupported, config.where + ".lm_head: found true; a quantized head is not supported");
  name = format;
  QuantizationSummary out;
  if (const auto fewbit = config.object("fewbit")) {
    read_map(*fewbit, linears, tensor, out);
  } else {
    read_uniform(config, packing, linears, tensor, out);
  }
  return out;
}

// The quantization_config object, or nothing for a dense checkpoint. `tree` keeps it alive.
std::optional<ConfigObject> find_config(const std::string& config_json,
                                        const std::string& quantize_config_json,
                                        std::optional<ConfigTree>& tree) {
  tree.emplace(config_json, "config.json");
  if (const auto config = tree->root().object("quantization_config")) return config;
  if (quantize_config_json.empty()) return std::nullopt;
  tree.emplace(quantize_config_json, "quantize_config.json");
  return tree->root();
}

}  // namespace

QuantizationSummary read_quantization(const std::string& config_json, const std::string& quantize_config_json,
                                      const std::vector<std::string>& linears, const TensorSource& tensor,
                                      std::string* name) {
  std::optional<ConfigTree> tree;
  const auto config = find_config(config_json, quantize_config_json, tree);
  std::string format = "dense";
  QuantizationSummary out;
  if (config) {
    // Files of before 2024 do not name the method in quantize_config.json.
    const std::string unnamed = config->where == "quantize_config.json" ? "gptq" : "";
    const std::string method = config->str("quant_method", config->str("method", unnamed));
    if (method == "gptq") {
      out = read_gptq(*config, linears, tensor, format);
    } else if (method == "compressed-tensors") {
      out = compressed_tensors::read(*config, linears, tensor);
      format = method;
    } else {
      fail(ErrorKind::unsupported, config->where + ".quant_method: found \"" + method +
                                       "\"; known: gptq (with checkpoint_format gptq, gptq_v2 or marlin), "
                                       "compressed-tensors");
    }
  }
  if (name) *name = format;
  return out;
}

}  // namespace fewbit

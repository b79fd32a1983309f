// Reads the GPTQ family's quantization_config: our own map of linears, else AutoGPTQ's and GPTQModel's keys
// with `dynamic` rules.
#include <algorithm>

#include "formats/checkpoints/fewbit_map.h"
#include "formats/checkpoints/readers.h"
#include "src/core/error.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

// The packings whose config is the GPTQ family's.
constexpr std::initializer_list<const Packing*> kFamily = {&packing_marlin, &packing_gptq, &packing_gptq_v2,
                                                           &packing_marlin_24};

// One rule of GPTQModel's `dynamic`: a regular expression from the start of the module's name.
struct Rule {
  Regex pattern;
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
        {Regex(key.substr(prefixed ? 2 : 0), Regex::Use::names, dynamic->where), key[0] == '-' && prefixed, value});
  }
  return rules;
}

const Rule* first_match(const std::vector<Rule>& rules, const std::string& linear, Regex::Effort& effort) {
  for (const Rule& r : rules)
    if (r.pattern.matches(linear, effort)) return &r;
  return nullptr;
}

// A config without our map: one format for all, changed by `dynamic`.
void read_uniform(const ReadRequest& r, const Packing& packing, QuantizationSummary& out) {
  const ConfigObject& config = r.config;
  LinearFormat base{.packing = &packing, .act_order = config.flag("desc_act", false)};
  base.spec.bits = fewbit_map::read_bits(config, nullptr);
  base.spec.group = fewbit_map::read_group_size(config, nullptr);
  base.spec.symmetric = config.flag("sym", true);
  if (&packing == &packing_marlin && (base.spec.bits != 4 || !base.spec.symmetric || base.act_order)) {
    fail(ErrorKind::unsupported, config.where +
                                     ": checkpoint_format marlin wants bits 4, sym true, desc_act false, found " +
                                     base.spec.str() + (base.act_order ? ", desc_act true" : ""));
  }
  const std::vector<Rule> rules = read_rules(config);
  Regex::Effort effort = effort_for(r.linears);
  for (const std::string& linear : r.linears) {
    LinearFormat f = base;
    const Rule* rule = first_match(rules, linear, effort);
    if ((rule && rule->skip) || !fewbit_map::packed(r.tensor, linear, f)) {
      out.dense.push_back(linear);
      continue;
    }
    if (rule) {
      f.spec.bits = fewbit_map::read_bits(rule->values, &base.spec);
      f.spec.group = fewbit_map::read_group_size(rule->values, &base.spec);
      f.spec.symmetric = rule->values.flag("sym", base.spec.symmetric);
      f.act_order = rule->values.flag("desc_act", base.act_order);
    }
    out.linears[linear] = f;
  }
}

}  // namespace

QuantizationSummary read_gptq(const ReadRequest& r, std::string& name) {
  const ConfigObject& config = r.config;
  const char* old = config.flag("is_marlin_format", false) ? "marlin" : "gptq";
  const std::string format = config.str("checkpoint_format", config.str("format", old));
  const std::string where = config.where + ".checkpoint_format";
  const Packing& packing = fewbit_map::packing_named(format, kFamily, where);
  if (config.str("pack_dtype", "int32") != "int32") config.unsupported("pack_dtype", "int32");
  if (config.flag("lm_head", false) && !r.tensor("lm_head.weight").data &&
      std::find(r.linears.begin(), r.linears.end(), "lm_head") == r.linears.end())
    fail(ErrorKind::checkpoint, config.where + ".lm_head: found true; the model has no head of its own");
  name = format;
  QuantizationSummary out;
  if (const auto fewbit = config.object("fewbit")) {
    fewbit_map::read(*fewbit, kFamily, r.linears, r.tensor, out);
  } else {
    read_uniform(r, packing, out);
  }
  return out;
}

}  // namespace fewbit

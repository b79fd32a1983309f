// --format compressed-tensors: for vLLM, SGLang and transformers, and the default of W8A8 and FP8. One group
// of linears with one scheme is addressed by its class; where schemes differ every group names its modules,
// which no reader can take for another group's (docs/formats/compressed-tensors.md).
#include "formats/checkpoints/ct_transforms.h"
#include "formats/checkpoints/fewbit_map.h"
#include "formats/checkpoints/readers.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "src/core/error.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::pair<const char*, const Packing*>, 6> kFormats = {
    {{"pack-quantized", &packing_ct_pack},
     {"int-quantized", &packing_ct_int},
     {"float-quantized", &packing_ct_float},
     {"nvfp4-pack-quantized", &packing_ct_nvfp4},
     {"mxfp4-pack-quantized", &packing_ct_mxfp4},
     {"marlin-24", &packing_ct_marlin_24}}};

std::string known_formats() {
  std::string s;
  for (const auto& [name, packing] : kFormats) s += std::string(s.empty() ? "" : ", ") + name;
  return s;
}

const char* format_name(const Packing* packing) {
  for (const auto& [name, p] : kFormats)
    if (p == packing) return name;
  bug("a packing that compressed-tensors does not have");
}

// --- writing

const char* type_name(const QuantSpec& spec) { return spec.grid == Grid::integer ? "int" : "float"; }

// Every key of the library's QuantizationArgs that is needed; it refuses unknown ones.
ordered_json arguments(int bits, const char* type, bool symmetric, const char* strategy) {
  return {{"num_bits", bits},     {"type", type},          {"symmetric", symmetric},
          {"strategy", strategy}, {"group_size", nullptr}, {"block_structure", nullptr},
          {"dynamic", false},     {"actorder", nullptr}};
}

// Of weights and activations alike.
ordered_json fp4_arguments(const QuantSpec& s, const ordered_json& dynamic) {
  ordered_json j = arguments(s.bits, "float", true, s.two_level() ? "tensor_group" : "group");
  j["group_size"] = s.group;
  j["dynamic"] = dynamic;
  if (!s.two_level()) j["scale_dtype"] = "torch.uint8";
  return j;
}

ordered_json weights(const LinearFormat& f) {
  const QuantSpec& s = f.spec;
  if (s.grid == Grid::f4_e2m1) return fp4_arguments(s, false);
  if (s.out_group > 1 && s.group == -1) return arguments(s.bits, type_name(s), s.symmetric, "tensor");
  if (s.group == -1) return arguments(s.bits, type_name(s), s.symmetric, "channel");
  ordered_json j = arguments(s.bits, type_name(s), s.symmetric, s.out_group > 1 ? "block" : "group");
  if (s.out_group > 1) {
    j["block_structure"] = {s.out_group, s.group};
  } else {
    j["group_size"] = s.group;
  }
  if (f.act_order) j["actorder"] = "group";
  return j;
}

// Dynamic activations of block weights are described as the library's FP8_BLOCK does, one scale per 128
// inputs.
ordered_json activations(const QuantSpec& s) {
  if (s.activations == ActQuant::none) return nullptr;
  if (s.grid == Grid::f4_e2m1) {  // "local": scales of groups under a static one
    ordered_json j = fp4_arguments(s, s.two_level() ? ordered_json("local") : ordered_json(true));
    if (s.two_level()) j["scale_dtype"] = "torch.float8_e4m3fn";  // left out, the library does not round them
    return j;
  }
  if (s.activations == ActQuant::token && s.grid == Grid::integer && s.act_bits != 8) {
    ordered_json j = arguments(s.act_bits, "int", true, "token");
    j["dynamic"] = true;
    if (s.act_clip != 100) j["observer_kwargs"] = {{"clip_ratio", s.act_clip / 100.0}};
    return j;
  }
  if (s.activations == ActQuant::tensor) return arguments(8, type_name(s), true, "tensor");
  const bool block = s.out_group > 1 && s.group != -1;
  ordered_json j = arguments(8, type_name(s), true, block ? "group" : "token");
  if (block) j["group_size"] = s.group;
  j["dynamic"] = true;
  return j;
}

ordered_json scheme_of(const LinearFormat& f) {
  return {{"targets", ordered_json::array()},
          {"format", format_name(f.packing)},
          {"weights", weights(f)},
          {"input_activations", activations(f.spec)},
          {"output_activations", nullptr}};
}

struct Group {
  ordered_json scheme;
  std::vector<std::string> names;
};

std::vector<Group> groups_of(const QuantizationSummary& summary) {
  std::vector<Group> groups;
  for (const auto& [name, format] : summary.linears) {
    ordered_json scheme = scheme_of(format);
    auto it = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.scheme == scheme; });
    if (it == groups.end()) it = groups.insert(it, Group{std::move(scheme), {}});
    it->names.push_back(name);
  }
  return groups;
}

std::vector<const Packing*> candidates(const QuantSpec& spec) {
  if (spec.grid == Grid::f8_e4m3) return {&packing_ct_float};
  if (spec.two_level()) return {&packing_ct_nvfp4};
  if (spec.grid == Grid::f4_e2m1) return {&packing_ct_mxfp4};
  if (spec.activations != ActQuant::none && spec.bits == 8 && spec.act_bits == 8) return {&packing_ct_int};
  return {&packing_ct_pack};
}

std::string write_config(const QuantizationSummary& summary) {
  if (summary.linears.empty() && !summary.fp8_kv_cache) return "";
  std::vector<Group> groups = groups_of(summary);
  const ordered_json first = groups.empty() ? ordered_json("dense") : groups[0].scheme["format"];
  const bool one_format =
      std::all_of(groups.begin(), groups.end(), [&](const Group& g) { return g.scheme["format"] == first; });
  ordered_json c;
  c["quant_method"] = "compressed-tensors";
  c["format"] = one_format ? first : ordered_json("mixed-precision");
  c["quantization_status"] = "compressed";
  c["global_compression_ratio"] = nullptr;
  if (summary.fp8_kv_cache)
    c["kv_cache_scheme"] = {
        {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"dynamic", false}, {"symmetric", true}};
  c["ignore"] = summary.dense;
  if (!summary.linears.count("lm_head") &&
      std::find(summary.dense.begin(), summary.dense.end(), "lm_head") == summary.dense.end())
    c["ignore"].push_back("lm_head");
  c["config_groups"] = ordered_json::object();
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].scheme["targets"] = groups.size() == 1 ? ordered_json({"Linear"}) : ordered_json(groups[i].names);
    if (groups.size() == 1)  // an embedding is of another class
      for (const std::string& name : groups[i].names)
        if (ends_with(name, "embed_tokens")) groups[i].scheme["targets"].push_back(name);
    c["config_groups"]["group_" + std::to_string(i)] = std::move(groups[i].scheme);
  }
  if (const std::string turned = ct::transform_config(summary); !turned.empty())
    c["transform_config"] = ordered_json::parse(turned);
  return c.dump(2);
}

// --- reading

// Entries of `targets` and `ignore`: a module's full name, "re:" and a regular expression from its start, or
// a class, of which a linear has "Linear".
struct Matcher {
  std::set<std::string> names;
  std::vector<Regex> patterns;

  Matcher(const ConfigObject& o, const char* key) {
    for (const std::string& entry : o.strings(key)) {
      if (starts_with(entry, "re:")) {
        patterns.emplace_back(std::string_view(entry).substr(3), Regex::Use::names, o.where + '.' + key);
      } else {
        names.insert(entry);
      }
    }
  }
  bool has(const std::string& name) const { return names.count(name) > 0; }
  bool pattern(const std::string& name, Regex::Effort& effort) const {
    return std::any_of(patterns.begin(), patterns.end(), [&](const auto& p) { return p.matches(name, effort); });
  }
};

struct Scheme {
  LinearFormat format;
  bool per_tensor = false;  // out_group is the linear's own number of outputs
  Matcher targets;
};

// "128x128", as the library wrote it once, or [128, 128].
void read_block(const ConfigObject& w, QuantSpec& spec) {
  std::vector<int64_t> block;
  if (w.shown("block_structure").front() == '"') {
    long long n = 0, k = 0;
    if (std::sscanf(w.str("block_structure", "").c_str(), "%lldx%lld", &n, &k) == 2) block = {n, k};
  } else {
    block = w.integers("block_structure");
  }
  if (block.size() != 2 || block[0] < 2 || block[1] < 1) w.wrong("block_structure", "[outputs, inputs] of a block");
  spec.out_group = block[0];
  spec.group = block[1];
}

// Two levels of scales ("tensor_group") or powers of two ("group").
QuantSpec read_fp4(const ConfigObject& w) {
  const std::string strategy = w.str("strategy", "");
  if (strategy != "tensor_group" && strategy != "group")
    w.unsupported("strategy", "tensor_group, group, where there are 4 bits of float");
  const QuantSpec& spec = strategy == "tensor_group" ? kNvfp4 : kMxfp4;
  if (w.integer("group_size").value_or(spec.group) != spec.group)
    w.unsupported("group_size", std::to_string(spec.group));
  return spec;
}

void read_weights(const ConfigObject& w, Scheme& scheme) {
  QuantSpec& spec = scheme.format.spec;
  const std::string type = w.str("type", "int"), strategy = w.str("strategy", "");
  if (type != "int" && type != "float") w.unsupported("type", "int, float");
  if (type == "float" && w.integer("num_bits") == 4) {
    spec = read_fp4(w);
    return;
  }
  spec.grid = type == "int" ? Grid::integer : Grid::f8_e4m3;
  const int64_t bits = w.integer("num_bits").value_or(8);
  if (bits != 8 && (type == "float" || (bits != 2 && bits != 3 && bits != 4)))
    w.unsupported("num_bits", type == "int" ? "2, 3, 4, 8" : "8");
  spec.bits = static_cast<int>(bits);
  spec.symmetric = w.flag("symmetric", true);
  if (w.has("dynamic") && w.shown("dynamic") != "false") w.unsupported("dynamic", "false");
  const auto group = w.integer("group_size");
  if (strategy == "block") {
    read_block(w, spec);
  } else if (strategy == "group" || (strategy.empty() && group.value_or(-1) > 0)) {
    if (!group || *group < 1) w.wrong("group_size", "a positive integer");
    spec.group = *group;
  } else if (strategy == "channel" || strategy == "tensor" || strategy.empty()) {
    spec.group = -1;
    scheme.per_tensor = strategy == "tensor" || (strategy.empty() && !group);
  } else {
    w.unsupported("strategy", "tensor, channel, group, block");
  }
  const std::string order = w.shown("actorder");
  scheme.format.act_order = order == "\"group\"" || order == "\"dynamic\"" || order == "true";
  if (!scheme.format.act_order && order != "nothing" && order != "false" && order != "\"weight\"" &&
      order != "\"static\"")
    w.unsupported("actorder", "null, weight, group");
}

ActQuant read_activations(const std::optional<ConfigObject>& a, QuantSpec& spec) {
  if (!a) return ActQuant::none;
  const int64_t bits = spec.grid == Grid::f4_e2m1 ? 4 : 8, found = a->integer("num_bits").value_or(8);
  const bool int4 = found == 4 && spec.grid == Grid::integer;
  if (found != bits && !int4) a->unsupported("num_bits", spec.grid == Grid::integer ? "4, 8" : std::to_string(bits));
  spec.act_bits = int4 ? 4 : 8;
  spec.act_clip = ct::clip_of(*a, int4);
  if (const std::string type = spec.grid == Grid::integer ? "int" : "float"; a->str("type", "int") != type)
    a->unsupported("type", type + ", as the weights");
  if (!a->flag("symmetric", true)) a->unsupported("symmetric", "true");
  const std::string dynamic = a->shown("dynamic"), strategy = a->str("strategy", "tensor");
  if (spec.grid == Grid::f4_e2m1) {
    if (spec.two_level() && strategy == "tensor_group" && dynamic == "\"local\"") return ActQuant::tensor;
    if (!spec.two_level() && strategy == "group" && dynamic == "true") return ActQuant::token;
    a->unsupported("strategy", "tensor_group with dynamic \"local\", as nvfp4; group with dynamic true, as mxfp4");
  }
  const bool block = spec.out_group > 1;
  if (dynamic == "true" && (strategy == "token" || (strategy == "group" && block))) return ActQuant::token;
  if (int4) a->unsupported("strategy", "token with dynamic true, of 4 bits");
  if (dynamic != "true" && dynamic != "\"local\"" && strategy == "tensor") return ActQuant::tensor;
  a->unsupported("strategy", "token with dynamic true, tensor with dynamic false; group with block weights");
}

const Packing* read_format(const ConfigObject& group, const std::string& global) {
  const std::string format = group.str("format", global);
  for (const auto& [name, packing] : kFormats)
    if (format == name) return packing;
  fail(ErrorKind::unsupported, group.where + ".format: found \"" + format + "\"; known: " + known_formats());
}

Scheme read_scheme(const ConfigObject& group, const std::string& global_format) {
  Scheme scheme{.format = {}, .per_tensor = false, .targets = Matcher(group, "targets")};
  scheme.format.packing = read_format(group, global_format);
  const auto w = group.object("weights");
  if (!w) group.wrong("weights", "an object");
  read_weights(*w, scheme);
  QuantSpec& spec = scheme.format.spec;
  spec.activations = read_activations(group.object("input_activations"), spec);
  if (group.has("output_activations")) group.unsupported("output_activations", "null");
  // A shape that fits every group: what is refused here is refused for every linear.
  constexpr int64_t kOut = 1 << 20;
  QuantSpec any = spec;
  if (scheme.per_tensor) any.out_group = kOut;
  const int64_t in = spec.group == -1 ? kOut : 2 * spec.group;
  if (const Packing& p = *scheme.format.packing; p.pack)
    if (const std::string why = p.refuses(any, kOut, in, scheme.format.act_order); !why.empty())
      fail(ErrorKind::unsupported, group.where + ": " + why);
  return scheme;
}

// A name goes before a pattern, a pattern before the class.
const Scheme* scheme_of(const std::vector<Scheme>& schemes, const std::string& linear, Regex::Effort& effort) {
  for (const Scheme& s : schemes)
    if (s.targets.has(linear)) return &s;
  for (const Scheme& s : schemes)
    if (s.targets.pattern(linear, effort)) return &s;
  for (const Scheme& s : schemes)
    if (s.targets.has("Linear")) return &s;
  return nullptr;
}

// What only the tensors tell: the type of the scales, the outputs that one scale serves, whether the order
// was kept.
LinearFormat completed(const Scheme& scheme, const std::string& linear, const TensorSource& tensor) {
  LinearFormat f = scheme.format;
  const ConstTensorView scale = tensor(linear + ".weight_scale"), weight = tensor(linear + ".weight");
  for (DType d : {DType::f16, DType::bf16, DType::f32})
    if (scale.data && scale.dtype == d) f.spec.scale_dtype = d;
  if (scheme.per_tensor && weight.data) f.spec.out_group = weight.rows();
  f.act_order = f.act_order && tensor(linear + ".weight_g_idx").data;
  return f;
}

void refuse_what_changes_values(const ConfigObject& config, const std::vector<std::string>& linears,
                                const TensorSource& tensor) {
  const auto sparsity = config.object("sparsity_config");
  if (sparsity && sparsity->str("format", "dense") != "dense") sparsity->unsupported("format", "dense");
  if (std::find(linears.begin(), linears.end(), "lm_head") == linears.end() && tensor("lm_head.weight_scale").data)
    fail(ErrorKind::unsupported,
         "tensor 'lm_head.weight_scale': a quantized head where the model has no head of its own");
}

// Scales are used for an FP8 cache only where they were made for one.
void read_kv_cache(const ConfigObject& config, QuantizationSummary& out) {
  const auto scheme = config.object("kv_cache_scheme");
  if (!scheme) return;
  const std::string strategy = scheme->str("strategy", "tensor");
  out.fp8_kv_cache = scheme->str("type", "int") == "float" && scheme->integer("num_bits").value_or(8) == 8 &&
                     scheme->shown("dynamic") != "true" && (strategy == "tensor" || strategy == "attn_head");
  if (!out.fp8_kv_cache)
    out.foreign_kv_cache = scheme->where + " describes another cache than static FP8 with a scale per tensor or head";
}

// Floats, rounded inputs and the scales of an FP8 cache.
bool is_default(const QuantSpec& spec, bool fp8_kv_cache) {
  return spec.grid != Grid::integer || spec.activations != ActQuant::none || fp8_kv_cache;
}

}  // namespace

QuantizationSummary read_compressed_tensors(const ReadRequest& r, std::string& name) {
  const auto& [config, linears, tensor] = r;
  name = "compressed-tensors";
  refuse_what_changes_values(config, linears, tensor);
  const std::string format = config.str("format", "");
  const auto groups = config.object("config_groups");
  if (!groups) config.wrong("config_groups", "an object");
  std::vector<Scheme> schemes;
  for (const auto& [key, group] : groups->members()) schemes.push_back(read_scheme(group, format));
  const Matcher ignore(config, "ignore");
  QuantizationSummary out;
  read_kv_cache(config, out);
  Regex::Effort effort = effort_for(linears);
  std::map<std::string, int64_t> turned = ct::turned_inputs(config);
  for (const std::string& linear : linears) {
    const Scheme* scheme = scheme_of(schemes, linear, effort);
    const bool ignored = ignore.has(linear) || ignore.pattern(linear, effort) || ignore.has("Linear");
    if (scheme && !ignored) {
      if (LinearFormat f = completed(*scheme, linear, tensor); fewbit_map::packed(tensor, linear, f)) {
        if (const auto at = turned.find(linear); at != turned.end()) {
          f.spec.turn = at->second;
          turned.erase(at);
        }
        out.linears[linear] = f;
        continue;
      }
    }
    out.dense.push_back(linear);
  }
  if (!turned.empty())
    fail(ErrorKind::unsupported, config.where + ".transform_config: turns the input of " + turned.begin()->first +
                                     ", which is no packed linear of the model");
  return out;
}

constinit const CheckpointFormat format_compressed_tensors = {
    .name = "compressed-tensors",
    .summary = "packed integers, W8A8 and FP8 for vLLM, SGLang and transformers",
    .candidates = candidates,
    .write_config = write_config,
    .is_default = is_default,
    .fp8_kv_cache = true,
    .packed_ends = true,
    .published = true,
};

}  // namespace fewbit

// The grammar: words to a Recipe, and one recipe over another.
#include "src/quant/plan/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "src/core/names.h"
#include "src/core/registry.h"
#include "src/core/strings.h"
#include "src/quant/plan/recipe_words.h"
#include "src/quant/search/schemes.h"

namespace fewbit {
namespace {

constexpr std::array<std::pair<Effort, std::string_view>, 4> kEfforts{{{Effort::quick, "quick"},
                                                                       {Effort::standard, "default"},
                                                                       {Effort::best, "best"},
                                                                       {Effort::reference, "reference"}}};
constexpr std::array<std::pair<ActOrder, std::string_view>, 4> kActOrders{
    {{ActOrder::off, "off"}, {ActOrder::static_groups, "static"}, {ActOrder::gar, "gar"}, {ActOrder::full, "full"}}};

constexpr std::array<std::pair<Targets, std::string_view>, 4> kTargets{
    {{Targets::residual, "on"}, {Targets::inputs, "inputs"}, {Targets::half, "half"}, {Targets::off, "off"}}};

constexpr std::array<std::pair<ActQuant, std::string_view>, 3> kActivations{
    {{ActQuant::none, "off"}, {ActQuant::token, "token"}, {ActQuant::tensor, "tensor"}}};

// Nothing where the whole of the text is no number.
template <class T>
std::optional<T> number(std::string_view text) {
  T n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return n;
}
std::optional<int64_t> number_after(std::string_view word, std::string_view prefix) {
  return starts_with(word, prefix) ? number<int64_t>(word.substr(prefix.size())) : std::nullopt;
}

// In front of a chain: the whole model is turned before any block is looked at.
constexpr std::string_view kRotate = "rotate+";

// Names that the grammar reserves; the registry says which of them this version has.
bool is_chain_word(std::string_view word) {
  static constexpr std::string_view known[] = {"rtn", "gptq", "awq", "smoothquant", "fp8", "auto"};
  const std::vector<std::string> parts = split(word, '+');
  return std::all_of(parts.begin(), parts.end(), [](const std::string& p) {
    if (std::find(std::begin(known), std::end(known), p) != std::end(known)) return true;
    return find_transform(p) || find_named(methods(), p);
  });
}

std::vector<std::string> transforms_in(const std::vector<std::string>& chain) {
  std::vector<std::string> names;
  for (const std::string& name : chain)
    if (find_transform(name)) names.push_back(name);
  return names;
}

// The chain of an override: its method behind the transforms of the run.
std::vector<std::string> overlaid_chain(const std::vector<std::string>& base, const std::vector<std::string>& over) {
  std::vector<std::string> chain = transforms_in(base);
  const std::vector<std::string> stated = transforms_in(over);
  if (!stated.empty() && stated != chain)
    fail(ErrorKind::usage,
         fmt::format("\"{}\" for some linears: transforms rewrite whole blocks, so every linear of a run has the "
                     "same ({}); only the method may differ",
                     join(over, "+"), chain.empty() ? "none" : join(chain, "+")));
  if (stated == over) return base;  // it names no method
  for (const std::string& name : over)
    if (!find_transform(name)) chain.push_back(name);
  return chain;
}

DType scale_from(std::string_view v) {
  static constexpr std::array<std::pair<DType, std::string_view>, 3> kScales{
      {{DType::f16, "f16"}, {DType::bf16, "bf16"}, {DType::f32, "f32"}}};
  return from_name(kScales, "type of scale=", v);
}

float damp_from(std::string_view v) {
  const auto d = number<float>(v);
  if (!d || !(*d > 0 && *d < 1))
    fail(ErrorKind::usage, fmt::format("damp= (--damp): expected a number between 0 and 1, found \"{}\"", v));
  return *d;
}

float percentile_from(std::string_view v) {
  const auto p = number<float>(v);
  if (!p || !(*p > 0 && *p <= 100))
    fail(ErrorKind::usage, fmt::format("percentile=: expected a number above 0 and up to 100, found \"{}\"", v));
  return *p;
}

// In hundredths, which files have without rounding.
uint8_t clip_from(std::string_view v) {
  const auto share = number<double>(v);
  const double hundredths = share.value_or(0) * 100;
  if (!(hundredths >= 10 && hundredths <= 100) || std::fabs(hundredths - std::round(hundredths)) > 1e-6)
    fail(
        ErrorKind::usage,
        fmt::format("clip=: expected a share of a row's largest input in whole hundredths, 0.1 to 1, found \"{}\"", v));
  return static_cast<uint8_t>(std::round(hundredths));
}

bool on_or_off(std::string_view setting, std::string_view v) {
  if (v == "on") return true;
  if (v == "off") return false;
  fail(ErrorKind::usage, unknown_name(std::string(setting), v, {"on", "off"}));
}

bool two_of_four_from(std::string_view v) {
  if (v == "2:4") return true;
  if (v == "off") return false;
  fail(ErrorKind::usage, unknown_name("pattern of sparse= (--sparse)", v, {"2:4", "off"}));
}

bool fp8_kv_cache_from(std::string_view v) {
  if (v == "fp8") return true;
  if (v == "bf16") return false;
  if (v == "int8")
    fail(ErrorKind::usage,
         "kv=int8: an int8 cache takes its scales from each token and needs nothing in the "
         "checkpoint; give --kv-cache int8 to runner and evaluate");
  fail(ErrorKind::usage, unknown_name("cache of kv= (--kv-cache)", v, {"fp8", "bf16"}));
}

Migration migration_from(std::string_view v) {
  if (v == "search") return {};
  const auto alpha = number<float>(v);
  if (!alpha || !(*alpha >= 0 && *alpha <= 1))
    fail(ErrorKind::usage, fmt::format("alpha= (--alpha): expected search or a number from 0 to 1, found \"{}\"", v));
  return {*alpha};
}

double target_bits_from(std::string_view v) {
  const auto bits = number<double>(v);
  if (!bits || !(*bits >= 2 && *bits <= 16))
    fail(ErrorKind::usage,
         fmt::format("target-bits= (--target-bits): expected bits per weight between 2 and 16, found \"{}\"", v));
  return *bits;
}

int bits_from(std::string_view v) {
  const auto bits = number<int>(v);
  if (!bits || *bits < 2 || *bits > 8)
    fail(ErrorKind::usage,
         fmt::format("bits= (--bits): expected 2, 3, 4 or 8 (5, 6, 7 where a format takes them), found \"{}\"", v));
  return *bits;
}

// "token4": per token, and in int4.
void set_activations(Recipe& r, std::string_view v) {
  r.act_bits = v == "token4" ? 4 : 8;
  r.activations = v == "token4" ? ActQuant::token : activations_from(v);
}

uint64_t rotation_seed_from(std::string_view v) {
  const auto seed = number<uint64_t>(v);
  if (!seed)
    fail(ErrorKind::usage, fmt::format("rotation=: expected the seed of its signs, a number from 0, found \"{}\"", v));
  return *seed;
}

constexpr int64_t kLargestGroup = int64_t{1} << 24;  // no linear is as wide

// The words KEY=VALUE.
struct Setting {
  std::string_view key;
  void (*apply)(Recipe&, std::string_view value);
};
constexpr Setting kSettings[] = {
    {"act", [](Recipe& r, std::string_view v) { r.act_order = act_order_from(v); }},
    {"sparse", [](Recipe& r, std::string_view v) { r.two_of_four = two_of_four_from(v); }},
    {"acts", [](Recipe& r, std::string_view v) { set_activations(r, v); }},
    {"rotation", [](Recipe& r, std::string_view v) { r.rotation_seed = rotation_seed_from(v); }},
    {"online", [](Recipe& r, std::string_view v) { r.turns_inputs = on_or_off("online=", v); }},
    {"percentile", [](Recipe& r, std::string_view v) { r.percentile = percentile_from(v); }},
    {"clip", [](Recipe& r, std::string_view v) { r.act_clip = clip_from(v); }},
    {"alpha", [](Recipe& r, std::string_view v) { r.migration = migration_from(v); }},
    {"scale", [](Recipe& r, std::string_view v) { r.scale = scale_from(v); }},
    {"damp", [](Recipe& r, std::string_view v) { r.damp = damp_from(v); }},
    {"targets", [](Recipe& r, std::string_view v) { r.targets = targets_from(v); }},
    {"curvature", [](Recipe& r, std::string_view v) { r.weighs_outputs = on_or_off("curvature= (--curvature)", v); }},
    {"effort", [](Recipe& r, std::string_view v) { r.effort = effort_from(v); }},
    {"kv", [](Recipe& r, std::string_view v) { r.fp8_kv_cache = fp8_kv_cache_from(v); }},
    {"format", [](Recipe& r, std::string_view v) { r.format = std::string(v); }},
    {"target-bits", [](Recipe& r, std::string_view v) { r.target_bits = target_bits_from(v); }},
    {"schemes", [](Recipe& r, std::string_view v) { r.schemes = schemes_from(v); }},
    {"budget", [](Recipe& r, std::string_view v) { r.budget = budget_from(v); }},
    {"ends", [](Recipe& r, std::string_view v) { r.chooses_ends = on_or_off("ends= (--ends)", v); }},
    {"bits", [](Recipe& r, std::string_view v) { r.bits = bits_from(v); }},
};

constexpr auto kSettingKeys = [] {
  std::array<std::string_view, std::size(kSettings)> keys;
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = kSettings[i].key;
  return keys;
}();

void apply_setting(Recipe& r, std::string_view key, std::string_view value) {
  for (const Setting& s : kSettings)
    if (s.key == key) return s.apply(r, value);
  fail(ErrorKind::usage, unknown_name("setting of RECIPE, KEY=VALUE,", key, kSettingKeys));
}

void set_blocks(Recipe& r, int64_t out_group, int64_t group) {
  r.out_group = out_group;
  r.group = group;
}

// int8 weights per output, inputs quantized per token.
void set_w8a8(Recipe& r) {
  r.grid = Grid::integer;
  r.bits = 8;
  set_blocks(r, 1, -1);
  r.symmetric = true;
  if (!r.activations) r.activations = ActQuant::token;
}

void set_fp4(Recipe& r, const QuantSpec& spec) {
  r.grid = spec.grid;
  r.bits = spec.bits;
  r.group = spec.group;
  r.scale = spec.scale_dtype;
  r.symmetric = true;
}

// NVFP4 weights, and inputs in NVFP4 too.
void set_w4a4(Recipe& r) {
  set_fp4(r, kNvfp4);
  if (!r.activations) r.activations = ActQuant::tensor;
}

void apply_word(Recipe& r, const std::string& word) {
  if (const size_t eq = word.find('='); eq != std::string::npos)
    return apply_setting(r, std::string_view(word).substr(0, eq), std::string_view(word).substr(eq + 1));
  if (word == "keep")
    r.keep = true;
  else if (word == "source")
    r.source_grid = true;
  else if (word == "sym")
    r.symmetric = true;
  else if (word == "asym")
    r.symmetric = false;
  else if (word == "gch" || word == "channel")
    set_blocks(r, 1, -1);
  else if (word == "tensor")
    set_blocks(r, kAllOutputs, -1);
  else if (const auto block = number_after(word, "block"); block && *block >= 2)
    set_blocks(r, *block, *block);
  else if (word == "fp8" && !r.chain.empty())
    r.grid = Grid::f8_e4m3;
  else if (word == "nvfp4")
    set_fp4(r, kNvfp4);
  else if (word == "mxfp4")
    set_fp4(r, kMxfp4);
  else if (word == "w8a8")
    set_w8a8(r);
  else if (word == "w4a4")
    set_w4a4(r);
  else if (const auto bits = number_after(word, "int")) {
    if (*bits < 2 || *bits > 8)
      fail(ErrorKind::usage,
           fmt::format("RECIPE: expected int2, int3, int4 or int8 (int5, int6, int7 where a format takes them), found "
                       "\"{}\"",
                       word));
    r.grid = Grid::integer;
    r.bits = static_cast<int>(*bits);
  } else if (const auto group = number_after(word, "g")) {
    if (*group == 0 || *group < -1 || *group > kLargestGroup)
      fail(ErrorKind::usage, fmt::format("RECIPE (--group-size): expected a group size from 1 to {}, such as g128, or "
                                         "gch for one group a row, found \"{}\"",
                                         kLargestGroup, word));
    r.group = *group;
  } else if (starts_with(word, kRotate) && is_chain_word(word.substr(kRotate.size()))) {
    apply_word(r, word.substr(kRotate.size()));
    r.rotates = true;
  } else if (is_chain_word(word)) {
    if (!r.chain.empty())
      fail(ErrorKind::usage,
           fmt::format("a recipe has one chain of methods; found \"{}\" after \"{}\"", word, r.chain_str()));
    r.chain = split(word, '+');
  } else {
    refuse_word(word, kSettingKeys);
  }
}

}  // namespace

std::string_view name_of(Effort e) { return to_name(kEfforts, e); }
std::string_view name_of(ActOrder a) { return to_name(kActOrders, a); }
Effort effort_from(std::string_view s) { return from_name(kEfforts, "effort= (--effort)", s); }
ActOrder act_order_from(std::string_view s) { return from_name(kActOrders, "act= (--act-order)", s); }
std::string_view name_of(ActQuant a) { return to_name(kActivations, a); }
std::string_view name_of(Targets t) { return to_name(kTargets, t); }
Targets targets_from(std::string_view s) { return from_name(kTargets, "targets= (--targets)", s); }
ActQuant activations_from(std::string_view s) { return from_name(kActivations, "acts= (--acts)", s); }

std::string Recipe::chain_str() const { return (rotates ? std::string(kRotate) : "") + join(chain, "+"); }

Recipe parse_recipe(std::string_view text) {
  Recipe r;
  const std::vector<std::string> all = words(text);
  if (all.empty()) fail(ErrorKind::usage, "an empty recipe; example: \"gptq int4 g128\"");
  for (const std::string& w : all) apply_word(r, w);
  return r;
}

namespace {

// Another grid; what a 4-bit float brought with it goes.
Recipe with_grid_of(Recipe base, const Recipe& over) {
  if (base.grid == Grid::f4_e2m1 && over.grid != base.grid) {
    base.group.reset();
    base.scale.reset();
    base.symmetric.reset();
  }
  base.grid = over.grid;
  return base;
}

// `auto` under another method for some linears: what is only auto's goes, its format stays.
Recipe without_auto(Recipe base) {
  base.format = resolve(base).format;
  base.target_bits.reset();
  base.schemes.clear();
  base.budget.reset();
  base.chooses_ends.reset();
  return base;
}

}  // namespace

Recipe overlay(Recipe base, const Recipe& over) {
  if (base.chooses_precision() && !over.chain.empty() && !over.chooses_precision())
    base = without_auto(std::move(base));
  if (over.rotates && !base.rotates)
    fail(ErrorKind::usage, "\"rotate\" for some linears: it turns the whole model; put it into the recipe itself");
  base.keep = over.keep;
  if (over.act_bits) {  // clip= is of the inputs that it stands beside
    base.act_bits = over.act_bits;
    base.act_clip.reset();
  }
  if (over.rotation_seed) base.rotation_seed = over.rotation_seed;
  if (over.turns_inputs) base.turns_inputs = over.turns_inputs;
  base.source_grid = over.source_grid;
  if (!over.chain.empty()) base.chain = base.chain.empty() ? over.chain : overlaid_chain(base.chain, over.chain);
  if (over.bits) base.bits = over.bits;
  if (over.grid) base = with_grid_of(std::move(base), over);
  if (over.group) base.group = over.group;
  if (over.out_group) base.out_group = over.out_group;
  if (over.symmetric) base.symmetric = over.symmetric;
  if (over.activations) base.activations = over.activations;
  if (over.percentile) base.percentile = over.percentile;
  if (over.act_clip) base.act_clip = over.act_clip;
  if (over.act_order) base.act_order = over.act_order;
  if (over.two_of_four) base.two_of_four = over.two_of_four;
  if (over.effort) base.effort = over.effort;
  if (over.scale) base.scale = over.scale;
  if (over.damp) base.damp = over.damp;
  if (over.targets) base.targets = over.targets;
  if (over.weighs_outputs) base.weighs_outputs = over.weighs_outputs;
  if (over.fp8_kv_cache) base.fp8_kv_cache = over.fp8_kv_cache;
  if (over.migration) base.migration = over.migration;
  if (over.target_bits) base.target_bits = over.target_bits;
  if (!over.schemes.empty()) base.schemes = over.schemes;
  if (over.budget) base.budget = over.budget;
  if (over.chooses_ends) base.chooses_ends = over.chooses_ends;
  if (!over.format.empty()) base.format = over.format;
  return base;
}

}  // namespace fewbit

#include "src/quant/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "formats/checkpoint_format.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

constexpr std::array<std::pair<Effort, std::string_view>, 4> kEfforts{{{Effort::quick, "quick"},
                                                                       {Effort::standard, "default"},
                                                                       {Effort::best, "best"},
                                                                       {Effort::reference, "reference"}}};
constexpr std::array<std::pair<ActOrder, std::string_view>, 4> kActOrders{
    {{ActOrder::off, "off"},
     {ActOrder::static_groups, "static"},
     {ActOrder::gar, "gar"},
     {ActOrder::full, "full"}}};

constexpr std::array<std::pair<ActQuant, std::string_view>, 3> kActivations{
    {{ActQuant::none, "off"}, {ActQuant::token, "token"}, {ActQuant::tensor, "tensor"}}};

template <class E, size_t N>
E from_name(const std::array<std::pair<E, std::string_view>, N>& table, std::string_view what,
            std::string_view name) {
  std::string known;
  for (const auto& [value, text] : table) {
    if (text == name) return value;
    known += fmt::format(" {}", text);
  }
  fail(ErrorKind::usage, fmt::format("unknown {} \"{}\"; known:{}", what, name, known));
}

template <class E, size_t N>
std::string_view to_name(const std::array<std::pair<E, std::string_view>, N>& table, E value) {
  for (const auto& [v, text] : table)
    if (v == value) return text;
  bug("an enum value without a name");
}

// The number behind a prefix, or nothing when the rest is not a number.
std::optional<int64_t> number_after(std::string_view word, std::string_view prefix) {
  if (!starts_with(word, prefix)) return std::nullopt;
  const std::string_view rest = word.substr(prefix.size());
  int64_t n = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), n);
  if (error != std::errc{} || end != rest.data() + rest.size() || rest.empty()) return std::nullopt;
  return n;
}

// Names that the grammar reserves; the registry says which of them this version has.
bool is_chain_word(std::string_view word) {
  static constexpr std::string_view known[] = {"rtn", "gptq", "awq", "smoothquant", "fp8", "auto"};
  const std::vector<std::string> parts = split(word, '+');
  return std::all_of(parts.begin(), parts.end(), [](const std::string& p) {
    if (std::find(std::begin(known), std::end(known), p) != std::end(known)) return true;
    if (find_transform(p)) return true;
    return std::any_of(methods().begin(), methods().end(), [&](const Method* m) { return m->name == p; });
  });
}

std::vector<std::string> transforms_in(const std::vector<std::string>& chain) {
  std::vector<std::string> names;
  for (const std::string& name : chain)
    if (find_transform(name)) names.push_back(name);
  return names;
}

// The chain of an override: its method behind the transforms of the run.
std::vector<std::string> overlaid_chain(const std::vector<std::string>& base,
                                        const std::vector<std::string>& over) {
  std::vector<std::string> chain = transforms_in(base);
  const std::vector<std::string> stated = transforms_in(over);
  if (!stated.empty() && stated != chain)
    fail(ErrorKind::usage,
         fmt::format(
             "\"{}\" for some linears: transforms rewrite whole blocks, so every linear of a run has the "
             "same ({}); only the method may differ",
             join(over, "+"), chain.empty() ? "none" : join(chain, "+")));
  if (stated == over) return base;  // it names no method
  for (const std::string& name : over)
    if (!find_transform(name)) chain.push_back(name);
  return chain;
}

// Splits a chain into its transforms and the method at its end.
void resolve_chain(const Recipe& r, FullRecipe& f) {
  if (r.chooses_precision()) {
    f.method = &method_gptq;
    return;
  }
  for (const std::string& name : r.chain) {
    const Transform* t = find_transform(name);
    if (f.method)
      fail(ErrorKind::usage,
           fmt::format("\"{}\": a chain is transforms and then one method, and \"{}\" stands behind {}",
                       r.chain_str(), name, f.method->name));
    if (t && std::find(f.transforms.begin(), f.transforms.end(), t) != f.transforms.end())
      fail(ErrorKind::usage, fmt::format("\"{}\": {} stands twice", r.chain_str(), name));
    if (t)
      f.transforms.push_back(t);
    else
      f.method = &method(name);
  }
  if (!f.method) f.method = r.grid == Grid::f8_e4m3 ? &method_fp8 : &method_rtn;
}

// The type that bits and symmetry ask for where none is named.
std::string_view usual_type(const QuantSpec& spec) {
  if (spec.bits == 4) return spec.symmetric ? "q4_0" : "q4_1";
  if (spec.bits == 5) return spec.symmetric ? "q5_0" : "q5_1";
  if (spec.bits == 6) return "q6_k";
  if (spec.bits == 8) return "q8_0";
  fail(ErrorKind::usage, fmt::format("gguf: no type of {} bits is written; 4, 5, 6 or 8", spec.bits));
}

// The block type of "gguf" or "gguf:TYPE", and the grid that comes with it.
void choose_blocks(const Recipe& r, FullRecipe& f) {
  if (r.chooses_precision())
    fail(ErrorKind::usage, "auto chooses among grids that GGUF's blocks do not have; name a type and a method");
  const size_t colon = r.format.find(':');
  f.blocks = &gguf::block_type(colon == std::string::npos ? usual_type(f.spec)
                                                          : std::string_view(r.format).substr(colon + 1));
  if (f.blocks->plain)
    fail(ErrorKind::usage, fmt::format("gguf:{} is no quantization; `convert to gguf:{}` writes it",
                                       f.blocks->name, f.blocks->name));
  const QuantSpec& grid = *f.blocks->grid;
  if (r.bits.value_or(grid.bits) != grid.bits || r.group.value_or(grid.group) != grid.group ||
      r.symmetric.value_or(grid.symmetric) != grid.symmetric || f.spec.scale_dtype != DType::f16 ||
      f.spec.activations != ActQuant::none)
    fail(ErrorKind::usage,
         fmt::format("gguf:{} is {} with scales of its own; leave those words out, or name another type",
                     f.blocks->name, grid.str()));
  f.spec = grid;
}

DType scale_from(std::string_view v) {
  if (v == "f16") return DType::f16;
  if (v == "bf16") return DType::bf16;
  if (v == "f32") return DType::f32;
  fail(ErrorKind::usage, fmt::format("unknown scale type \"{}\"; known: f16 bf16 f32", v));
}

float damp_from(std::string_view v) {
  float d = 0;
  const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), d);
  if (error != std::errc{} || end != v.data() + v.size() || !(d > 0 && d < 1))
    fail(ErrorKind::usage, fmt::format("damping \"{}\" is not a number between 0 and 1", v));
  return d;
}

float percentile_from(std::string_view v) {
  float p = 0;
  const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), p);
  if (error != std::errc{} || end != v.data() + v.size() || !(p > 0 && p <= 100))
    fail(ErrorKind::usage, fmt::format("percentile \"{}\" is not a number above 0 and up to 100", v));
  return p;
}

bool fp8_kv_cache_from(std::string_view v) {
  if (v == "fp8") return true;
  if (v == "bf16") return false;
  if (v == "int8")
    fail(ErrorKind::usage, "kv=int8: an int8 cache takes its scales from each token and needs nothing in the "
                           "checkpoint; give --kv-cache int8 to runner and evaluate");
  fail(ErrorKind::usage, fmt::format("unknown cache \"{}\"; known: fp8 bf16", v));
}

Migration migration_from(std::string_view v) {
  if (v == "search") return {};
  float alpha = 0;
  const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), alpha);
  if (error != std::errc{} || end != v.data() + v.size() || !(alpha >= 0 && alpha <= 1))
    fail(ErrorKind::usage, fmt::format("alpha \"{}\" is neither \"search\" nor a number from 0 to 1", v));
  return {alpha};
}

double target_bits_from(std::string_view v) {
  double bits = 0;
  const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), bits);
  if (error != std::errc{} || end != v.data() + v.size() || !(bits >= 2 && bits <= 9))
    fail(ErrorKind::usage, fmt::format("target-bits \"{}\" is not a number of bits per weight between 2 and 9", v));
  return bits;
}

void apply_setting(Recipe& r, std::string_view key, std::string_view value) {
  if (key == "act")
    r.act_order = act_order_from(value);
  else if (key == "acts")
    r.activations = activations_from(value);
  else if (key == "percentile")
    r.percentile = percentile_from(value);
  else if (key == "scale")
    r.scale = scale_from(value);
  else if (key == "damp")
    r.damp = damp_from(value);
  else if (key == "alpha")
    r.migration = migration_from(value);
  else if (key == "effort")
    r.effort = effort_from(value);
  else if (key == "kv")
    r.fp8_kv_cache = fp8_kv_cache_from(value);
  else if (key == "format")
    r.format = std::string(value);
  else if (key == "target-bits")
    r.target_bits = target_bits_from(value);
  else
    fail(ErrorKind::usage,
         fmt::format("unknown setting \"{}=\" in a recipe; known: act= acts= percentile= alpha= scale= damp= effort= "
                     "kv= format= target-bits=",
                     key));
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

void apply_word(Recipe& r, const std::string& word) {
  if (const size_t eq = word.find('='); eq != std::string::npos)
    return apply_setting(r, std::string_view(word).substr(0, eq), std::string_view(word).substr(eq + 1));
  if (word == "keep")
    r.keep = true;
  else if (word == "sym")
    r.symmetric = true;
  else if (word == "asym")
    r.symmetric = false;
  else if (word == "gch" || word == "channel")
    set_blocks(r, 1, -1);
  else if (word == "tensor")
    set_blocks(r, kAllOutputs, -1);
  else if (word == "block128")
    set_blocks(r, 128, 128);
  else if (word == "fp8" && !r.chain.empty())
    r.grid = Grid::f8_e4m3;
  else if (word == "nvfp4")
    set_fp4(r, kNvfp4);
  else if (word == "mxfp4")
    set_fp4(r, kMxfp4);
  else if (word == "w8a8")
    set_w8a8(r);
  else if (const auto bits = number_after(word, "int")) {
    if (*bits < 2 || *bits > 8)
      fail(ErrorKind::usage,
           fmt::format("\"{}\": bits must be 2, 3, 4 or 8 (5, 6, 7 where a format takes them)", word));
    r.grid = Grid::integer;
    r.bits = static_cast<int>(*bits);
  } else if (const auto group = number_after(word, "g")) {
    if (*group == 0 || *group < -1)
      fail(ErrorKind::usage,
           fmt::format("\"{}\": the group size must be positive, or gch for one group a row", word));
    r.group = *group;
  } else if (is_chain_word(word)) {
    if (!r.chain.empty())
      fail(ErrorKind::usage,
           fmt::format("a recipe has one chain of methods; found \"{}\" after \"{}\"", word, r.chain_str()));
    r.chain = split(word, '+');
  } else {
    fail(
        ErrorKind::usage,
        fmt::format("unknown word \"{}\" in a recipe; example: \"gptq int4 g128 sym act=off effort=default\" "
                    "(`quantize list` shows the methods)",
                    word));
  }
}

bool in_bytes(const QuantSpec& s) { return s.activations != ActQuant::none || s.grid == Grid::f8_e4m3; }

// There it is a scale or so per output, and f32 costs nothing; Marlin has f16 alone.
DType default_scale(const QuantSpec& s, std::string_view format) {
  return in_bytes(s) && format != "marlin" ? DType::f32 : DType::f16;
}

// 4-bit floats say their whole grid.
void resolve_fp4(const Recipe& r, FullRecipe& f) {
  QuantSpec& s = f.spec;
  s.bits = r.bits.value_or(4);
  s.group = r.group.value_or(128);
  s.out_group = r.out_group.value_or(1);
  s.symmetric = r.symmetric.value_or(true);
  s.activations = r.activations.value_or(ActQuant::none);
  s.scale_dtype = r.scale.value_or(DType::f16);
  if (!(s == kNvfp4) && !(s == kMxfp4))
    fail(ErrorKind::usage,
         "nvfp4 and mxfp4 say their bits, groups and scales, and inputs stay as they are; none of these words stands "
         "beside them");
  if (!f.method->grids.has(s.grid) || !f.transforms.empty())
    fail(ErrorKind::usage,
         fmt::format("{} does not round to 4-bit floats; `rtn {}` does", r.chain_str(), s.str()));
}

// The grid, what shares its scales and how inputs are rounded: as the recipe says, else as the transforms want it, else
// as is usual for the grid.
void resolve_grid(const Recipe& r, FullRecipe& f) {
  QuantSpec& s = f.spec;
  s.grid = r.grid.value_or(f.method->grids.first());
  const bool f8 = s.grid == Grid::f8_e4m3;
  if (s.grid == Grid::f4_e2m1) return resolve_fp4(r, f);
  if (!f.method->grids.has(s.grid))
    fail(ErrorKind::usage, fmt::format("{} does not round to {}; for FP8 take fp8 or \"gptq fp8\", for integers rtn or gptq",
                                       f.method->name, f8 ? "FP8" : "integers"));
  s.bits = f8 ? 8 : 4;
  s.group = f8 ? -1 : 128;
  s.symmetric = true;
  s.activations = f8 && r.format != "marlin" ? ActQuant::token : ActQuant::none;
  for (const Transform* t : f.transforms) t->fill_in(*f.method, s);
  s.bits = r.bits.value_or(s.bits);
  s.group = r.group.value_or(s.group);
  s.out_group = r.out_group.value_or(1);
  s.symmetric = f8 || r.symmetric.value_or(s.symmetric);
  s.activations = r.activations.value_or(s.activations);
  if (!f8 && s.out_group != 1)
    fail(ErrorKind::usage, "the words tensor and block128 are for FP8; integers have scales per output (gch) or group");
  if (f8 && (r.act_order.value_or(ActOrder::off) == ActOrder::gar || r.act_order == ActOrder::full))
    fail(ErrorKind::usage, "the grids of FP8 are fixed before the columns are visited: act=off or act=static");
}

std::string default_format(const FullRecipe& f) {
  return in_bytes(f.spec) || f.spec.grid == Grid::f4_e2m1 || f.fp8_kv_cache ? "compressed-tensors" : "marlin";
}

}  // namespace

std::string_view name_of(Effort e) { return to_name(kEfforts, e); }
std::string_view name_of(ActOrder a) { return to_name(kActOrders, a); }
Effort effort_from(std::string_view s) { return from_name(kEfforts, "effort", s); }
ActOrder act_order_from(std::string_view s) { return from_name(kActOrders, "act-order", s); }
std::string_view name_of(ActQuant a) { return to_name(kActivations, a); }
ActQuant activations_from(std::string_view s) { return from_name(kActivations, "quantization of activations", s); }

std::string Recipe::chain_str() const { return join(chain, "+"); }

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

}  // namespace

Recipe overlay(Recipe base, const Recipe& over) {
  base.keep = over.keep;
  if (!over.chain.empty())
    base.chain = base.chain.empty() ? over.chain : overlaid_chain(base.chain, over.chain);
  if (over.bits) base.bits = over.bits;
  if (over.grid) base = with_grid_of(std::move(base), over);
  if (over.group) base.group = over.group;
  if (over.out_group) base.out_group = over.out_group;
  if (over.symmetric) base.symmetric = over.symmetric;
  if (over.activations) base.activations = over.activations;
  if (over.percentile) base.percentile = over.percentile;
  if (over.act_order) base.act_order = over.act_order;
  if (over.effort) base.effort = over.effort;
  if (over.scale) base.scale = over.scale;
  if (over.damp) base.damp = over.damp;
  if (over.fp8_kv_cache) base.fp8_kv_cache = over.fp8_kv_cache;
  if (over.migration) base.migration = over.migration;
  if (over.target_bits) base.target_bits = over.target_bits;
  if (!over.format.empty()) base.format = over.format;
  return base;
}

FullRecipe resolve(const Recipe& r) {
  if (r.chain.empty()) fail(ErrorKind::usage, "the recipe names no method; `quantize list` shows them");
  FullRecipe f;
  resolve_chain(r, f);
  if (r.target_bits && !r.chooses_precision())
    fail(ErrorKind::usage, fmt::format("target-bits belongs to auto; {} takes int4, g128 …", r.chain_str()));
  resolve_grid(r, f);
  f.fp8_kv_cache = r.fp8_kv_cache.value_or(false);
  f.format = r.format.empty() ? default_format(f) : r.format.substr(0, r.format.find(':'));
  if (f.spec.grid != Grid::f4_e2m1) f.spec.scale_dtype = r.scale.value_or(default_scale(f.spec, f.format));
  f.act_order = r.act_order.value_or(ActOrder::off);
  f.effort = r.effort.value_or(Effort::standard);
  f.damp = r.damp.value_or(0.01f);
  f.percentile = r.percentile.value_or(100.f);
  if (f.percentile < 100 && f.spec.activations != ActQuant::tensor)
    fail(ErrorKind::usage, "percentile= is for static scales of the inputs: acts=tensor");
  f.migration = r.migration.value_or(Migration{});
  if (r.migration &&
      std::none_of(f.transforms.begin(), f.transforms.end(), [](const Transform* t) { return t->takes_alpha; }))
    fail(ErrorKind::usage, fmt::format("alpha= has no meaning for {}; it belongs to smoothquant", r.chain_str()));
  if (checkpoint_format(f.format).gguf)
    choose_blocks(r, f);
  else if (f.format != r.format && !r.format.empty())
    fail(ErrorKind::usage, fmt::format("format \"{}\": only gguf takes a type behind a colon", r.format));
  if (f.act_order != ActOrder::off && f.method->needs == Needs::nothing)
    fail(ErrorKind::usage, fmt::format("act={} has no meaning for {}, which visits no column before another",
                                       name_of(f.act_order), f.method->name));
  return f;
}

Needs FullRecipe::needs() const {
  Needs all = method->needs;
  for (const Transform* t : transforms) all = all | t->needs;
  if (effort == Effort::reference) all = without(all, Needs::cross);  // shifted targets are ours
  return spec.activations == ActQuant::tensor ? all | Needs::range : all;
}

bool FullRecipe::learns_rounding() const {
  return effort == Effort::best && spec.grid == Grid::integer && spec.bits <= 3 &&
         spec.activations == ActQuant::none && has(needs(), Needs::cross) && act_order != ActOrder::full;
}

std::string FullRecipe::str() const {
  std::string s;
  for (const Transform* t : transforms) s += fmt::format("{}+", t->name);
  const std::string grid = spec.str();  // "fp8 gch": the method of that name is its own grid
  s += starts_with(grid, std::string(method->name) + " ") ? grid : fmt::format("{} {}", method->name, grid);
  if (act_order != ActOrder::off) s += fmt::format(" act={}", name_of(act_order));
  if (spec.grid == Grid::f8_e4m3 && spec.activations == ActQuant::none) s += " acts=off";
  if (spec.grid != Grid::f4_e2m1 && spec.scale_dtype != default_scale(spec, format))
    s += fmt::format(" scale={}", name_of(spec.scale_dtype));
  if (percentile < 100) s += fmt::format(" percentile={}", percentile);
  if (migration.alpha) s += fmt::format(" alpha={}", *migration.alpha);
  if (damp != 0.01f) s += fmt::format(" damp={}", damp);
  if (effort != Effort::standard) s += fmt::format(" effort={}", name_of(effort));
  if (blocks) s += fmt::format(" format={}:{}", format, blocks->name);
  return s;
}

}  // namespace fewbit

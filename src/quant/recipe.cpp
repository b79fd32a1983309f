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
  if (!f.method) f.method = &method_rtn;
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
  else if (key == "scale")
    r.scale = scale_from(value);
  else if (key == "damp")
    r.damp = damp_from(value);
  else if (key == "effort")
    r.effort = effort_from(value);
  else if (key == "format")
    r.format = std::string(value);
  else if (key == "target-bits")
    r.target_bits = target_bits_from(value);
  else
    fail(ErrorKind::usage,
         fmt::format("unknown setting \"{}=\" in a recipe; known: act= acts= scale= damp= effort= format= "
                     "target-bits=",
                     key));
}

// int8 weights per output, inputs quantized per token.
void set_w8a8(Recipe& r) {
  r.grid = Grid::integer;
  r.bits = 8;
  r.group = -1;
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
  else if (word == "gch")
    r.group = -1;
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
    r.bits = static_cast<int>(*bits);
    r.grid = Grid::integer;
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

// With 8-bit inputs there is a scale or so per output: f32 costs nothing.
DType default_scale(const QuantSpec& spec) {
  return spec.activations == ActQuant::none ? DType::f16 : DType::f32;
}

std::string default_format(const QuantSpec& spec) {
  return spec.grid == Grid::integer && spec.activations == ActQuant::none ? "marlin" : "compressed-tensors";
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
  if (over.symmetric) base.symmetric = over.symmetric;
  if (over.activations) base.activations = over.activations;
  if (over.act_order) base.act_order = over.act_order;
  if (over.effort) base.effort = over.effort;
  if (over.scale) base.scale = over.scale;
  if (over.damp) base.damp = over.damp;
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
  f.spec.grid = r.grid.value_or(Grid::integer);
  f.spec.bits = r.bits.value_or(4);
  f.spec.group = r.group.value_or(128);
  bool symmetric = true;
  for (const Transform* t : f.transforms) symmetric = t->symmetric_by_default(*f.method);
  f.spec.symmetric = r.symmetric.value_or(symmetric);
  f.spec.activations = r.activations.value_or(ActQuant::none);
  f.spec.scale_dtype = r.scale.value_or(default_scale(f.spec));
  f.act_order = r.act_order.value_or(ActOrder::off);
  f.effort = r.effort.value_or(Effort::standard);
  f.damp = r.damp.value_or(0.01f);
  const bool fp4 = f.spec.grid == Grid::f4_e2m1;
  if (fp4 && !(f.spec == kNvfp4) && !(f.spec == kMxfp4))
    fail(ErrorKind::usage,
         "nvfp4 and mxfp4 say their bits, groups and scales, and inputs stay as they are; none of these words "
         "stands beside them");
  if (fp4 && (!f.method->rounds_fp4 || !f.transforms.empty()))
    fail(ErrorKind::usage,
         fmt::format("{} does not round to 4-bit floats; `rtn {}` does", r.chain_str(), f.spec.str()));
  f.format = r.format.empty() ? default_format(f.spec) : r.format.substr(0, r.format.find(':'));
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
  Needs all = effort == Effort::reference && has(method->needs, Needs::gram) ? Needs::gram : method->needs;
  for (const Transform* t : transforms) all = all | t->needs;
  return spec.activations == ActQuant::tensor ? all | Needs::range : all;
}

std::string FullRecipe::str() const {
  std::string s;
  for (const Transform* t : transforms) s += fmt::format("{}+", t->name);
  s += fmt::format("{} {}", method->name, spec.str());
  if (act_order != ActOrder::off) s += fmt::format(" act={}", name_of(act_order));
  if (spec.scale_dtype != default_scale(spec) && spec.grid != Grid::f4_e2m1)
    s += fmt::format(" scale={}", name_of(spec.scale_dtype));
  if (damp != 0.01f) s += fmt::format(" damp={}", damp);
  if (effort != Effort::standard) s += fmt::format(" effort={}", name_of(effort));
  if (blocks) s += fmt::format(" format={}:{}", format, blocks->name);
  return s;
}

}  // namespace fewbit

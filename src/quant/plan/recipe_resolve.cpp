// From what a recipe says to all that a linear needs to know: defaults, and words that exclude each other.
#include <fmt/format.h>

#include <algorithm>

#include "formats/checkpoint_format.h"
#include "src/core/strings.h"
#include "src/model/gguf/mixes.h"
#include "src/quant/plan/recipe.h"
#include "src/quant/search/schemes.h"

namespace fewbit {
namespace {

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
           fmt::format("RECIPE: \"{}\": expected transforms and then one method (awq+gptq), found \"{}\" behind {}; "
                       "write it in front, or leave one of them out",
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

// The block type of "gguf" or "gguf:TYPE", and the grid that comes with it.
void choose_blocks(const Recipe& r, FullRecipe& f) {
  if (r.chooses_precision())
    fail(ErrorKind::usage, "auto chooses among grids that GGUF's blocks do not have; name a type and a method");
  const size_t colon = r.format.find(':');
  if (colon == std::string::npos) {
    f.blocks = &gguf::usual_type(f.spec);
  } else {
    const std::string_view type = std::string_view(r.format).substr(colon + 1);
    f.blocks = &gguf_type_named(type);  // of a mix that of most linears; the plan puts each one's own in its place
  }
  if (f.blocks->plain)
    fail(ErrorKind::usage,
         fmt::format("gguf:{} is no quantization; `convert to gguf:{}` writes it", f.blocks->name, f.blocks->name));
  const QuantSpec& grid = *f.blocks->grid;
  if (r.bits.value_or(grid.bits) != grid.bits || r.group.value_or(grid.group) != grid.group ||
      r.symmetric.value_or(grid.symmetric) != grid.symmetric ||
      (f.spec.scale_dtype != DType::f16 && !(f.spec == grid)) || f.spec.activations != ActQuant::none)
    fail(ErrorKind::usage,
         fmt::format("gguf:{} is {} with scales of its own; leave those words out, or name another type",
                     f.blocks->name, grid.str()));
  if (r.act_order.value_or(ActOrder::off) != ActOrder::off && f.blocks->open)
    fail(ErrorKind::usage, fmt::format("gguf:{} has the columns in their own order: act=off", f.blocks->name));
  f.spec = grid;
}

bool in_bytes(const QuantSpec& s) {
  return (s.activations != ActQuant::none && s.bits == 8) || s.grid == Grid::f8_e4m3;
}

// Bytes have a scale or so per output, where f32 costs nothing.
DType default_scale(const QuantSpec& s, const CheckpointFormat& format) {
  return in_bytes(s) && !format.f16_scales ? DType::f32 : DType::f16;
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
  QuantSpec weights(s);
  weights.activations = ActQuant::none;
  if (!(weights == kNvfp4) && !(weights == kMxfp4))
    fail(ErrorKind::usage, "nvfp4 and mxfp4 say their bits, groups and scales; none of these words stands beside them");
  if (r.act_bits == 4)
    fail(ErrorKind::usage,
         fmt::format("acts=token4 is for integers; inputs of {} are 4-bit floats too", weights.str()));
  const ActQuant rounded = s.two_level() ? ActQuant::tensor : ActQuant::token;
  if (s.activations != ActQuant::none && s.activations != rounded)
    fail(ErrorKind::usage,
         fmt::format("inputs of {} are rounded to 4-bit floats by {}: acts={}, or acts=off", weights.str(),
                     s.two_level() ? "a calibrated scale above those of their groups" : "powers of two of their groups",
                     name_of(rounded)));
  if (r.act_order.value_or(ActOrder::off) != ActOrder::off)
    fail(ErrorKind::usage, "the columns of nvfp4 and mxfp4 are visited in their own order: act=off");
  if (!f.method->grids.has(s.grid) || !f.transforms.empty())
    fail(ErrorKind::usage,
         fmt::format("{} does not round to 4-bit floats; `rtn {}` and `gptq {}` do", r.chain_str(), s.str(), s.str()));
}

// The grid, what shares its scales and how inputs are rounded: as the recipe says, else as the transforms want it, else
// as is usual for the grid.
void resolve_grid(const Recipe& r, FullRecipe& f) {
  QuantSpec& s = f.spec;
  s.grid = r.grid.value_or(f.method->grids.first());
  const bool f8 = s.grid == Grid::f8_e4m3;
  if (s.grid == Grid::f4_e2m1) return resolve_fp4(r, f);
  if (!f.method->grids.has(s.grid))
    fail(ErrorKind::usage,
         fmt::format("{} does not round to {}; for FP8 take fp8 or \"gptq fp8\", for integers rtn or gptq",
                     f.method->name, f8 ? "FP8" : "integers"));
  s.bits = f8 ? 8 : 4;
  s.group = f8 ? -1 : 128;
  s.symmetric = true;
  const CheckpointFormat* stated = find_checkpoint_format(r.format);  // a wrong name is refused later
  s.activations = f8 && !(stated && stated->weight_only) ? ActQuant::token : ActQuant::none;
  for (const Transform* t : f.transforms) t->fill_in(*f.method, s);
  s.bits = r.bits.value_or(s.bits);
  s.group = r.group.value_or(s.group);
  s.out_group = r.out_group.value_or(1);
  s.symmetric = f8 || r.symmetric.value_or(s.symmetric);
  s.activations = r.activations.value_or(s.activations);
  s.act_bits = r.act_bits.value_or(s.act_bits);
  if (s.act_bits == 4 && f8) fail(ErrorKind::usage, "acts=token4 is for integers; FP8 rounds its inputs to FP8");
  if (!f8 && s.out_group != 1)
    fail(ErrorKind::usage, "the words tensor and block128 are for FP8; integers have scales per output (gch) or group");
  if (f8 && (r.act_order.value_or(ActOrder::off) == ActOrder::gar || r.act_order == ActOrder::full))
    fail(ErrorKind::usage, "the grids of FP8 are fixed before the columns are visited: act=off or act=static");
}

bool balances(const FullRecipe& f) {
  return std::find(f.transforms.begin(), f.transforms.end(), &transform_balance) != f.transforms.end();
}

bool turns_by_itself(const FullRecipe& f) { return (f.rotation || balances(f)) && f.spec.int4_inputs(); }

void resolve_clip(const Recipe& r, FullRecipe& f) {
  if (r.act_clip && !f.spec.int4_inputs())
    fail(ErrorKind::usage, "clip= is for inputs in int4, of so few levels: give acts=token4 too or leave clip= out");
  f.says_clip = r.act_clip.has_value();
  f.spec.act_clip = r.act_clip.value_or(100);
}

// Inputs in int4 are what the matrices in front of a product are for; 8 bits do without.
void resolve_rotation(const Recipe& r, FullRecipe& f) {
  if (r.rotates) f.rotation = r.rotation_seed.value_or(0);
  if (r.rotation_seed && !r.rotates)
    fail(ErrorKind::usage, fmt::format("rotation= is the seed of rotate: \"rotate+{}\"", r.chain_str()));
  const bool rounds = f.spec.activations == ActQuant::token && f.spec.grid == Grid::integer;
  f.turns_inputs = r.turns_inputs.value_or(turns_by_itself(f));
  if (f.turns_inputs && !rounds)
    fail(ErrorKind::usage, "online=on turns inputs before they are rounded to integers: acts=token4 or acts=token");
  if (balances(f) && !f.turns_inputs)
    fail(ErrorKind::usage,
         "balance is for inputs that are turned before they are rounded to integers: acts=token4, without online=off");
}

void refuse_words_of_auto(const Recipe& r) {
  const char* word = r.target_bits        ? "target-bits"
                     : r.budget           ? "budget="
                     : !r.schemes.empty() ? "schemes="
                     : r.chooses_ends     ? "ends="
                                          : nullptr;
  if (word && !r.chooses_precision())
    fail(ErrorKind::usage, fmt::format("{} belongs to auto; {} takes int4, g128 …", word, r.chain_str()));
  if (r.target_bits && r.budget && r.budget->of != Budget::Of::all && r.budget->of != Budget::Of::active)
    fail(ErrorKind::usage, "target-bits and a budget= of bytes or time are two budgets; leave one out");
}

// Why the recipe cannot be one of 2:4 sparsity; "" = it can.
std::string refuses_sparsity(const Recipe& r, const FullRecipe& f) {
  const QuantSpec& s = f.spec;
  if (r.chooses_precision()) return "gptq or rtn, found auto, whose grids it does not fit";
  if (!f.transforms.empty()) return fmt::format("gptq or rtn without a transform in front, found {}", r.chain_str());
  if (f.method != &method_gptq && f.method != &method_rtn) return fmt::format("gptq or rtn, found {}", f.method->name);
  if (s.grid != Grid::integer || s.bits != 4 || !s.symmetric) return "symmetric int4, found " + s.str();
  if (s.activations != ActQuant::none) return fmt::format("acts=off, found {}", s.str());
  if (s.group != -1 && s.group % 4 != 0) return fmt::format("groups of whole fours, found {}", s.str());
  if (f.act_order != ActOrder::off)
    return fmt::format("act=off, for columns in their own order, found act={}", name_of(f.act_order));
  if (f.blocks)
    return fmt::format("a format of codes, found gguf:{}; `convert to gguf:q4_0` is for what has g32", f.blocks->name);
  return "";
}

void resolve_sparsity(const Recipe& r, FullRecipe& f) {
  f.two_of_four = r.two_of_four.value_or(false);
  if (!f.two_of_four) return;
  if (const std::string why = refuses_sparsity(r, f); !why.empty())
    fail(ErrorKind::usage, "sparse=2:4 (--sparse): expected " + why);
}

// The one that is named, or the usual one; `auto` over floats too has that of floats, whichever a linear gets.
const CheckpointFormat& format_of(const Recipe& r, const FullRecipe& f) {
  if (!r.format.empty()) return checkpoint_format(r.format.substr(0, r.format.find(':')));
  if (r.two_of_four.value_or(false)) return format_marlin_24;  // where what is pruned takes no room
  return default_checkpoint_format(has_floats(r.schemes) ? kNvfp4 : f.spec, f.fp8_kv_cache);
}

}  // namespace

FullRecipe resolve(const Recipe& r) {
  if (r.chain.empty()) fail(ErrorKind::usage, "the recipe names no method; `quantize list` shows them");
  FullRecipe f;
  resolve_chain(r, f);
  refuse_words_of_auto(r);
  resolve_grid(r, f);
  resolve_rotation(r, f);
  resolve_clip(r, f);
  f.fp8_kv_cache = r.fp8_kv_cache.value_or(false);
  const CheckpointFormat& format = format_of(r, f);
  f.format = format.name;
  if (f.spec.grid != Grid::f4_e2m1) f.spec.scale_dtype = r.scale.value_or(default_scale(f.spec, format));
  f.act_order = r.act_order.value_or(ActOrder::off);
  f.effort = r.effort.value_or(Effort::standard);
  f.damp = r.damp.value_or(0.01f);
  f.targets = r.targets.value_or(usual_targets(f.effort));
  if (r.targets.value_or(Targets::off) != Targets::off && !has(f.needs(), Needs::cross))
    fail(ErrorKind::usage,
         fmt::format("targets={} has no meaning for {}, which knows no unquantized stream", name_of(*r.targets),
                     f.effort == Effort::reference ? "effort=reference" : r.chain_str()));
  f.percentile = r.percentile.value_or(100.f);
  if (f.percentile < 100 && f.spec.activations != ActQuant::tensor)
    fail(ErrorKind::usage,
         fmt::format("percentile=: expected acts=tensor beside it, whose scales of the inputs it clips, found acts={}; "
                     "give acts=tensor too or leave percentile= out",
                     f.spec.activations == ActQuant::token ? "token" : "off"));
  f.migration = r.migration.value_or(Migration{});
  if (r.migration &&
      std::none_of(f.transforms.begin(), f.transforms.end(), [](const Transform* t) { return t->takes_alpha; }))
    fail(ErrorKind::usage, fmt::format("alpha= has no meaning for {}; it belongs to smoothquant", r.chain_str()));
  if (format.gguf)
    choose_blocks(r, f);
  else if (f.format != r.format && !r.format.empty())
    fail(ErrorKind::usage, fmt::format("format \"{}\": only gguf takes a type behind a colon", r.format));
  f.weighs_where_it_can = f.weighs_by_itself() && !r.weighs_outputs;
  f.weighs_outputs = r.weighs_outputs.value_or(f.weighs_where_it_can);
  if (f.weighs_outputs && !f.can_weigh_outputs())
    fail(
        ErrorKind::usage,
        fmt::format("curvature=on: expected gptq on integers, beside the unquantized stream and not in a type of GGUF, "
                    "found {}; leave it out",
                    f.str()));
  resolve_sparsity(r, f);
  if (f.act_order != ActOrder::off && f.method->needs == Needs::nothing)
    fail(ErrorKind::usage,
         fmt::format("act={} has no meaning for {}, which visits no column before another; leave it out, "
                     "or take gptq",
                     name_of(f.act_order), f.method->name));
  return f;
}

namespace {

Needs needs_of_all(const FullRecipe& f) {
  Needs all = f.method->needs;
  for (const Transform* t : f.transforms) all = all | t->needs;
  return all;
}

}  // namespace

Needs FullRecipe::needs() const {
  Needs all = needs_of_all(*this);
  if (effort == Effort::reference || targets == Targets::off) all = without(all, Needs::cross);
  if (has(all, Needs::cross) && targets == Targets::residual) all = all | Needs::residual;
  return spec.activations == ActQuant::tensor ? all | Needs::range : all;
}

bool FullRecipe::learns_rounding() const {
  return effort == Effort::best && spec.grid == Grid::integer && spec.bits <= 3 && spec.activations == ActQuant::none &&
         has(needs(), Needs::cross) && act_order != ActOrder::full;
}

bool FullRecipe::weighs_by_itself() const { return effort == Effort::best && can_weigh_outputs(); }

bool FullRecipe::can_weigh_outputs() const {
  return method == &method_gptq && spec.grid == Grid::integer && !blocks && has(needs(), Needs::cross);
}

std::string FullRecipe::str() const {
  std::string s = rotation ? "rotate+" : "";
  for (const Transform* t : transforms) s += fmt::format("{}+", t->name);
  const std::string grid = spec.str();  // "fp8 gch": the method of that name is its own grid
  s += starts_with(grid, std::string(method->name) + " ") ? grid : fmt::format("{} {}", method->name, grid);
  if (act_order != ActOrder::off) s += fmt::format(" act={}", name_of(act_order));
  if (spec.grid == Grid::f8_e4m3 && spec.activations == ActQuant::none) s += " acts=off";
  if (spec.grid != Grid::f4_e2m1 && spec.scale_dtype != default_scale(spec, checkpoint_format(format)))
    s += fmt::format(" scale={}", name_of(spec.scale_dtype));
  if (rotation.value_or(0) != 0) s += fmt::format(" rotation={}", *rotation);
  if (turns_inputs != turns_by_itself(*this)) s += turns_inputs ? " online=on" : " online=off";
  if (says_clip && spec.act_clip == 100) s += " clip=1";
  if (percentile < 100) s += fmt::format(" percentile={}", percentile);
  if (migration.alpha) s += fmt::format(" alpha={}", *migration.alpha);
  if (damp != 0.01f) s += fmt::format(" damp={}", damp);
  if (targets != usual_targets(effort) && effort != Effort::reference && has(needs_of_all(*this), Needs::cross))
    s += fmt::format(" targets={}", name_of(targets));
  if (effort != Effort::standard) s += fmt::format(" effort={}", name_of(effort));
  if (weighs_outputs != weighs_by_itself()) s += weighs_outputs ? " curvature=on" : " curvature=off";
  if (two_of_four) s += " sparse=2:4";
  if (blocks) s += fmt::format(" format={}:{}", format, blocks->name);
  return s;
}

}  // namespace fewbit

#include "src/quant/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "formats/gguf/block_codes.h"
#include "formats/gguf/file.h"
#include "src/core/strings.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/gguf/mixes.h"
#include "src/model/gguf/names.h"
#include "src/model/gguf/writer.h"
#include "src/model/op_slots.h"
#include "src/quant/plan/engines.h"
#include "src/quant/plan/gguf_refusals.h"
#include "src/quant/plan/plan_ends.h"
#include "src/quant/plan/plan_kept.h"
#include "src/quant/plan/source_grid.h"
#include "src/quant/plan/way_back.h"
#include "src/quant/rule_match.h"
#include "src/run/moe.h"

namespace fewbit {
namespace {

constexpr int64_t kWidestTurn = 1024;  // what the kernel that turns rows has room for
constexpr std::string_view kModel = "model.";
constexpr int64_t kNarrowestTurn = 16;  // below that a matrix spreads little
constexpr uint8_t kSpreadClip = 80;     // QuantSpec::act_clip of what a matrix has spread

using GgufTypes = std::map<std::string, const gguf::BlockType*>;

Recipe recipe_for(const Checkpoint& c, const NamedLinear& l, const PlanOptions& o) {
  const ModelSpec& spec = c.spec;
  const auto chosen = o.chosen.find(l.name);
  Recipe r = chosen == o.chosen.end() ? o.base : overlay(o.base, chosen->second);
  bool ruled = false;
  for (const Rule& rule : o.rules)
    if (means(rule, spec, l) && (c.packed(l.name) || !rule.recipe.source_grid)) {
      r = overlay(o.base, rule.recipe);
      ruled = true;
    }
  if (!ruled && !kept_by_family(spec, l).empty()) r.keep = true;
  if (r.migration != o.base.migration)
    fail(ErrorKind::usage, fmt::format("linear {}: alpha= belongs to the recipe of the whole model", l.name));
  return r;
}

// What each linear gets where the recipe is a mix; nothing for an architecture without a place in a file, which is
// refused by that name.
GgufTypes types_of(const Checkpoint& c, const Recipe& base) {
  const GgufMix* mix = mix_of_format(base.format);
  if (!mix) return {};
  try {
    return types_of_mix(*mix, c.spec);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::unsupported) throw;
    return {};
  }
}

// Blocks of the type that the recipe names, or of the one that the width of the linear admits in its place; the encoder
// of the format or the method fills them, unless the type has a packing for the method's codes.
void choose_blocks(const ModelSpec& spec, PlannedLinear& p) {
  const gguf::BlockType& wanted = *p.recipe.blocks;
  const gguf::BlockType& type = gguf_type_for(wanted, is_end(p.linear) ? p.linear.in : gguf_run(spec, p.linear));
  if (&type != &wanted)
    p.note = fmt::format("{} wants K % {} = 0: {} instead", wanted.name, wanted.elements,
                         type.plain ? "stays as it is" : type.name);
  if (type.plain) {
    p.keep = true;
    return;
  }
  p.recipe.blocks = &type;
  p.recipe.spec = *type.grid;
  const Method& method = *p.recipe.method;
  if (!method.rounds_alone && !(method.encode && type.open)) return;
  p.blocks = &type;
  p.out_bytes = gguf::tensor_bytes(type, {p.linear.out, p.linear.in});
}

// The packing for the codes of a method; the reason where there is none.
std::string choose_packing_of(const CheckpointFormat& format, PlannedLinear& p) {
  const QuantSpec& spec = p.recipe.spec;
  if (p.recipe.blocks && !gguf::has_codes(*p.recipe.blocks) && p.recipe.blocks != &gguf::type_mxfp4)
    return fmt::format("{} has scales that the codes of {} do not fit; take rtn, gptq or awq, or one of {}",
                       p.recipe.blocks->name, p.recipe.method->name, join(gguf::types_with_codes(), ", "));
  const bool act_order = p.recipe.act_order == ActOrder::full;
  std::string why;
  if (p.recipe.two_of_four && p.linear.in % 4 != 0)
    return fmt::format("sparse=2:4 wants inputs in whole fours, here {}; --keep '{}' leaves it as it is", p.linear.in,
                       p.linear.name);
  p.packing = choose_packing(format, spec, p.linear.out, p.linear.in, act_order, &why);
  if (p.packing && p.packing->two_of_four && !p.recipe.two_of_four) {
    p.packing = nullptr;
    why = fmt::format("{} holds two weights of every four inputs, which sparse=2:4 (--sparse 2:4) makes", format.name);
  } else if (!p.packing && p.recipe.two_of_four && format.two_of_four) {
    why += "; --format compressed-tensors, gptq or marlin hold the same codes, zeros and all";
  }
  if (!p.packing) return why;
  p.out_bytes = packed_bytes(*p.packing, spec, p.linear.out, p.linear.in, act_order);
  if (p.note.empty() && p.packing->note) p.note = p.packing->note(spec, p.linear.out, p.linear.in);
  return "";
}

// A transform without an absorber would do nothing under its name; one sees nothing but the states that enter a block.
void refuse_idle_transforms(const Checkpoint& c, QuantPlan& plan) {
  const bool some =
      std::any_of(c.spec.kinds.begin(), c.spec.kinds.end(), [](const auto& ops) { return !absorbers_of(ops).empty(); });
  if (keeps_slots(c.spec) || reads_tokens(c.spec))
    for (const Transform* t : plan.transforms)
      plan.refusals.push_back(
          {c.spec.arch, fmt::format("{} looks at a block by itself, and the blocks of this model read "
                                    "keys and values of others, or the ids of the tokens",
                                    t->name)});
  if (some) return;
  for (const Transform* t : plan.transforms)
    plan.refusals.push_back(
        {c.spec.arch, fmt::format("{} finds nothing in its blocks that could take a scale", t->name)});
}

void plan_kv_cache(const Checkpoint& c, const PlanOptions& o, const FullRecipe& base, QuantPlan& plan) {
  for (const Rule& r : o.rules)
    if (r.recipe.fp8_kv_cache)
      fail(ErrorKind::usage, fmt::format("--set {}: kv= belongs to the whole run, not to some linears", r.glob));
  plan.fp8_kv_cache = base.fp8_kv_cache;
  for (const std::vector<BlockOp>& block : c.spec.kinds)
    if (plan.fp8_kv_cache && (latent_attention_of(block) || shared_key_attention_of(block))) {
      plan.refusals.push_back(
          {c.spec.arch, "kv=fp8: its attention keeps latents or shared keys, not keys and values; leave kv= out"});
      break;
    }
  if (plan.fp8_kv_cache && !plan.format->fp8_kv_cache)
    plan.refusals.push_back(
        {c.spec.arch, fmt::format("format {} has no place for the scales of kv=fp8; --format {} has", plan.format->name,
                                  formats_with(&CheckpointFormat::fp8_kv_cache))});
}

// Bytes of everything that is not a quantized linear's weight, as it will be copied.
int64_t copied_bytes(const Checkpoint& c, const std::set<std::string>& replaced) {
  int64_t bytes = 0;
  for (const auto& [name, info] : c.store.index().tensors)
    if (!holds_weights(c, name) || !replaced.count(name.substr(0, name.rfind('.')))) bytes += info.bytes;
  return bytes;
}

// What a rotation offline cannot reach, or reaches of a head alone, is what attention and activation functions make: a
// matrix turns it when the model runs, and the weights along it.
void turn_input(const ModelSpec& spec, PlannedLinear& p) {
  if (is_end(p.linear) || reads_a_norm(spec, p.linear)) return;
  const int64_t run = std::min(kWidestTurn, p.linear.in & -p.linear.in);
  if (run < kNarrowestTurn) {
    p.note = fmt::format("its input is not turned: {} is divided by no power of two above {}", p.linear.in, run);
    return;
  }
  p.recipe.spec.turn = run;
  p.note = fmt::format("its input is turned by Hadamard matrices of {} when it runs, before it is rounded", run);
}

// The levels of int4 inputs that a matrix has spread, whose rows have no outliers left. The step of least error is 0.33
// of a normal row's deviation for 16 levels; the largest of some hundred to some thousand such values is 3 to 3.5 of
// it.
void clip_input(const ModelSpec& spec, PlannedLinear& p) {
  QuantSpec& s = p.recipe.spec;
  const bool spread = s.turn > 0 || (p.recipe.rotation && !is_end(p.linear) && reads_a_norm(spec, p.linear));
  if (s.int4_inputs() && spread && !p.recipe.says_clip && p.recipe.effort != Effort::reference)
    s.act_clip = kSpreadClip;
}

// One linear under its recipe; what it cannot do becomes a refusal of the plan.
PlannedLinear plan_linear(const Checkpoint& c, const NamedLinear& l, const Recipe& recipe, const FullRecipe& base,
                          const GgufTypes& types, QuantPlan& plan) {
  PlannedLinear p;
  p.linear = l;
  p.keep = recipe.keep;
  p.source_bytes = stored_weight_bytes(c, l);
  p.out_bytes = p.source_bytes;
  const auto refuse = [&](std::string why) { plan.refusals.push_back({l.name, std::move(why)}); };
  const bool packed = c.packed(l.name);
  if (packed) {
    std::string why = refuses_source(c, l);
    const bool stays = recipe.keep || recipe.source_grid;
    p.keep = false;
    if (!why.empty() || (stays && !pass_as_it_came(c, *plan.format, p, &why))) {
      p.recipe = base;  // of which the estimates that follow make what they can
      refuse(why);
    }
    if (!why.empty() || stays) return p;
  }
  if (p.keep) {
    p.note = kept_by_family(c.spec, l);
    return p;
  }
  if (plan.format->gguf && !is_end(l) && gguf_run(c.spec, l) == 1) {
    p.keep = true;
    p.note = "the file has it in two parts, one of them turned over: stays as it is";
    return p;
  }
  p.recipe = resolve(recipe);
  if (const auto own = types.find(l.name); mix_of_format(recipe.format) && own != types.end())
    p.recipe.blocks = own->second;
  if (p.recipe.spec.out_group == kAllOutputs) p.recipe.spec.out_group = l.out;
  if (p.recipe.turns_inputs) turn_input(c.spec, p);
  clip_input(c.spec, p);
  if (p.recipe.format != base.format)
    refuse(fmt::format("one checkpoint has one format: {} here, {} elsewhere", p.recipe.format, base.format));
  if (is_mtp(c.spec, l)) {
    if (std::string why = refuses_mtp(c, *plan.format, p); !why.empty()) {
      refuse(std::move(why));
      return p;
    }
  } else if (is_end(l)) {
    adapt_to_end(c, *plan.format, p);
    if (!plan.format->packed_ends) {
      refuse(fmt::format("format {} has no word for a packed head or embedding; {} have", plan.format->name,
                         formats_with(&CheckpointFormat::packed_ends)));
      return p;
    }
  }
  if (packed && plan.transforms.empty() && !p.recipe.two_of_four && pass_on_grid(c, *plan.format, p)) return p;
  std::string why;
  if (p.recipe.blocks) choose_blocks(c.spec, p);
  if (!p.keep && !p.blocks) why = choose_packing_of(*plan.format, p);
  if (p.layout().empty() && !p.keep) refuse(why);
  if (!p.layout().empty()) ask_for_the_way_back(c.spec, p, refuse);
  return p;
}

// A GPU waits for the CPU there, which a plan must say.
void say_what_the_cpu_does(const PlanOptions& o, QuantPlan& plan) {
  if (!o.on_gpu) return;
  for (PlannedLinear& p : plan.linears)
    if (!p.keep && !p.lossless && p.recipe.method && p.recipe.method->encode &&
        (p.blocks || p.recipe.spec.grid == Grid::f4_e2m1))
      add_note(p.note, fmt::format("{} on this grid works on the CPU", p.recipe.method->name));
}

// What calibration must see for a linear that will be packed. A rounded embedding asks for nothing.
Needs needs_of(const ModelSpec& spec, const PlannedLinear& p) {
  if (p.lossless) return p.calibrates_input ? Needs::range : Needs::nothing;
  if (p.linear.name + ".weight" == spec.embed) return Needs::nothing;
  Needs needs = p.recipe.needs();
  if (p.blocks && p.recipe.effort == Effort::best) needs = needs | Needs::gram;
  return needs;
}

// Whether half of the chunks will do for the unquantized stream: no target asks for all of them, nor does what looks at
// that stream besides. An expert sees a few of the tokens, and needs those.
bool halves_streams(const ModelSpec& spec, const QuantPlan& plan) {
  if (!has(plan.needs, Needs::cross) || has_moe(spec)) return false;
  const auto by_half = [](const PlannedLinear& p) {
    const FullRecipe& r = p.recipe;
    const bool compares = !p.layout().empty() && has(r.needs(), Needs::cross);
    return !compares || (r.targets == Targets::half && !r.learns_rounding() && !r.weighs_outputs);
  };
  return std::all_of(plan.linears.begin(), plan.linears.end(), by_half);
}

// True where the sums of the input are more than weights of its features and a measure of the outputs.
bool solves_by_sums(const PlannedLinear& p) {
  if (p.lossless) return false;
  return has(p.recipe.needs(), Needs::cross) || (p.recipe.method && has(p.recipe.method->needs, Needs::gram)) ||
         (p.blocks && p.recipe.effort == Effort::best);
}

void ask_engine(const Checkpoint& c, const PlanOptions& o, QuantPlan& plan) {
  if (o.engine.empty()) return;
  EngineVerdict verdict = check_engine(c.spec, plan, engine_rules(o.engine), o.tp);
  plan.engine = o.engine;
  plan.tp = o.tp;
  plan.engine_note = verdict.note;
  for (Refusal& r : verdict.refusals) plan.refusals.push_back(std::move(r));
  for (PlannedLinear& p : plan.linears)
    if (const auto note = verdict.notes.find(p.linear.name); note != verdict.notes.end())
      add_note(p.note, note->second);
}

}  // namespace

std::string PlannedLinear::recipe_str() const {
  if (keep) return "keep";
  if (lossless) return "lossless " + recipe.spec.str();
  return recipe.method ? recipe.str() : "-";
}

LinearJob job_of(const PlannedLinear& p, ConstTensorView weight, const InputStats* stats) {
  return {.name = p.linear.name,
          .weight = weight,
          .stats = stats,
          .spec = p.recipe.spec,
          .effort = p.recipe.effort,
          .act_order = p.recipe.act_order,
          .two_of_four = p.recipe.two_of_four,
          .damp = p.recipe.damp,
          .shifts_targets = p.recipe.targets != Targets::off};
}

double QuantPlan::full_streams(const Chunks& chunks) const {
  if (!has(needs, Needs::cross)) return 0;
  if (!by_half || chunks.windows == 0) return 1;
  return static_cast<double>(chunks.half_tokens()) / static_cast<double>(chunks.tokens());
}

void QuantPlan::add(PlannedLinear p) {
  places_.emplace(p.linear.name, linears.size());
  linears.push_back(std::move(p));
}

const PlannedLinear* QuantPlan::find(const std::string& linear) const {
  const auto it = places_.find(linear);
  return it == places_.end() || linears[it->second].keep ? nullptr : &linears[it->second];
}

const PlannedLinear& QuantPlan::of(const std::string& linear) const {
  const auto it = places_.find(linear);
  FEWBIT_ASSERT(it != places_.end());
  return linears[it->second];
}

QuantizationSummary summary_of(const Checkpoint& c, const QuantPlan& plan) {
  QuantizationSummary summary;
  summary.dense = always_dense(c);
  summary.fp8_kv_cache = plan.fp8_kv_cache || (c.quantization.fp8_kv_cache && plan.format->fp8_kv_cache);
  for (const NamedLinear& l : carried(c, plan)) summary.linears[l.name] = c.quantization.linears.at(l.name);
  for (const PlannedLinear& p : plan.linears) {
    if (p.packing) {
      summary.linears[p.linear.name] = {p.packing, p.recipe.spec, p.recipe.act_order == ActOrder::full};
    } else {
      summary.dense.push_back(p.linear.name);
    }
  }
  std::erase_if(summary.dense, [&](const std::string& name) {
    const std::string as_inner = starts_with(name, kModel) ? name.substr(kModel.size()) : "";  // see always_dense()
    return summary.linears.count(name) > 0 || summary.linears.count(as_inner) > 0;
  });
  return summary;
}

QuantPlan make_plan(const Checkpoint& c, const PlanOptions& o) {
  QuantPlan plan;
  require_sources(c, o.rules);
  require_matches(c, o.rules);
  const FullRecipe base = resolve(o.base);
  if (base.rotation.has_value() != !c.rotation.empty() || base.rotation.value_or(0) != c.rotation_seed)
    fail(ErrorKind::usage, fmt::format("\"{}\": this command takes models as they are; `quantize` and `evaluate sweep` "
                                       "turn them first",
                                       o.base.chain_str()));
  plan.format = &checkpoint_format(base.format);
  plan.transforms = base.transforms;
  const GgufTypes types = types_of(c, o.base);
  plan_kv_cache(c, o, base, plan);
  plan.migration = base.migration;
  plan.source_bytes = c.store.total_bytes();
  std::set<std::string> replaced;
  double bits = 0, weights = 0;
  std::vector<std::pair<NamedLinear, Recipe>> wanted;
  for (const NamedLinear& l : linears_of(c.spec)) wanted.emplace_back(l, recipe_for(c, l, o));
  for (const NamedLinear& l : ends_of(c.spec))
    if (const std::optional<Recipe> r = recipe_for_end(l, o)) wanted.emplace_back(l, *r);
  for (auto& further : wanted_of_mtp(c, o)) wanted.push_back(std::move(further));
  refuse_tied_head(c.spec, o, plan);
  for (const auto& [linear, recipe] : wanted) plan.add(plan_linear(c, linear, recipe, base, types, plan));
  pass_powers_of_two(c, plan);
  plan_others(c, plan);
  refuse_unstacked(c, plan);
  say_what_the_cpu_does(o, plan);
  for (const PlannedLinear& p : plan.linears) {
    if (p.layout().empty()) continue;
    plan.needs = plan.needs | needs_of(c.spec, p);
    plan.solves = plan.solves || solves_by_sums(p);
    replaced.insert(p.linear.name);
    bits += 8.0 * static_cast<double>(p.out_bytes);
    weights += static_cast<double>(p.linear.out * p.linear.in);
  }
  plan.by_half = halves_streams(c.spec, plan);
  plan.kept = kept_of(c, plan);
  plan.out_bytes = copied_bytes(c, replaced);
  if (plan.fp8_kv_cache) plan.out_bytes += c.spec.layers * 2 * bytes_of(DType::f32);
  for (const PlannedLinear& p : plan.linears)
    if (!p.layout().empty()) plan.out_bytes += p.out_bytes;
  plan.bits_per_weight = weights > 0 ? bits / weights : 0;
  refuse_idle_transforms(c, plan);
  if (plan.format->cannot_describe)
    if (std::string why = plan.format->cannot_describe(summary_of(c, plan)); !why.empty())
      plan.refusals.push_back({std::string("format ") += plan.format->name, std::move(why)});
  if (plan.format->gguf)
    for (Refusal& r : gguf_refusals(c, plan)) plan.refusals.push_back(std::move(r));
  ask_engine(c, o, plan);
  bound_learning(c.spec, o, plan);
  plan.memory = plan_memory(c, plan, o);
  return plan;
}

}  // namespace fewbit

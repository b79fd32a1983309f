#include "src/quant/plan/plan_ends.h"

#include <fmt/format.h>

#include "src/model/gguf/mixes.h"
#include "src/model/gguf/writer.h"
#include "src/model/mtp.h"
#include "src/quant/rule_match.h"

namespace fewbit {

std::optional<Recipe> recipe_for_end(const NamedLinear& l, const PlanOptions& o) {
  std::optional<Recipe> r;
  if (mix_of_format(o.base.format)) r = o.base;
  if (const auto chosen = o.chosen.find(l.name); chosen != o.chosen.end()) r = overlay(o.base, chosen->second);
  for (const Rule& rule : o.rules)
    if (rule.glob == l.name) r = overlay(o.base, rule.recipe);
  if (r && (r->keep || r->source_grid)) return std::nullopt;
  return r;
}

void refuse_tied_head(const ModelSpec& spec, const PlanOptions& o, QuantPlan& plan) {
  const std::string matrix = spec.embed.substr(0, spec.embed.rfind('.'));
  for (const Rule& rule : o.rules)
    if (spec.tied() && rule.glob == "lm_head" && !rule.recipe.keep)
      plan.refusals.push_back(
          {"lm_head", fmt::format("is tied to {}: one matrix serves both; --set '{}={}' quantizes it", matrix, matrix,
                                  "int8 g128")});
}

void adapt_to_end(const Checkpoint& c, const CheckpointFormat& format, PlannedLinear& p) {
  const bool embedding = p.linear.name + ".weight" == c.spec.embed;
  p.recipe.transforms.clear();
  // A reader of GGUF decodes an end when it opens the file, so that there are no codes to compare.
  const bool codes =
      format.gguf && !(p.recipe.blocks && p.recipe.method->encode && gguf_type_for(*p.recipe.blocks, p.linear.in).open);
  const bool f8 = p.recipe.spec.grid == Grid::f8_e4m3;
  if (embedding || (codes && !f8)) p.recipe.method = f8 ? &method_fp8 : &method_rtn;
  if (!embedding) return;
  p.recipe.spec.activations = ActQuant::none;
  p.note = c.spec.tied() ? "the embedding is the head too, which runs on the same rounded values"
                         : "embeddings are rounded to the nearest, row by row";
}

std::vector<std::pair<NamedLinear, Recipe>> wanted_of_mtp(const Checkpoint& c, const PlanOptions& o) {
  std::vector<std::pair<NamedLinear, Recipe>> wanted;
  if (o.rules.empty()) return wanted;
  for (const std::vector<NamedLinear>& group : mtp_linears(c.spec, c.store))
    for (const NamedLinear& l : group) {
      std::optional<Recipe> r;
      for (const Rule& rule : o.rules)
        if (means_mtp(rule, c.spec, l)) r = overlay(o.base, rule.recipe);
      if (r && !r->keep && !r->source_grid) wanted.emplace_back(l, *r);
    }
  return wanted;
}

std::string refuses_mtp(const Checkpoint& c, const CheckpointFormat& format, PlannedLinear& p) {
  p.recipe.transforms.clear();
  p.note = "of the layer that predicts further tokens: without calibration";
  if (format.gguf) return "a .gguf of the language model has no place for it; --keep it";
  if (!c.rotation.empty()) return "rotate turns the states that it reads, and this layer is not turned; --keep it";
  if (!has_linear(c.store, p.linear.name))
    return "lies in a stack of experts, which travels as it is; name the other linears of the layer";
  if (p.recipe.needs() != Needs::nothing)
    return fmt::format(
        "calibration does not run the layer that predicts further tokens, and {} looks at inputs; \"rtn {}\" or "
        "\"fp8\" look at none",
        p.recipe.spec.activations == ActQuant::tensor ? "acts=tensor" : p.recipe.method->name,
        p.recipe.spec.grid == Grid::integer ? p.recipe.spec.str() : "int8 g128");
  return "";
}

}  // namespace fewbit

#include "src/quant/plan/plan_ends.h"

#include <fmt/format.h>

#include "src/model/gguf/mixes.h"
#include "src/model/gguf/writer.h"

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

}  // namespace fewbit

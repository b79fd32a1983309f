#include "src/quant/advice/served_recipe.h"

#include <algorithm>

#include "formats/gguf/block_codes.h"
#include "src/core/strings.h"
#include "src/quant/plan/plan.h"
#include "src/quant/plan/refusals.h"

namespace fewbit {
namespace {

// What a reader of the file finds in a linear of the plan: codes, or nothing where it decodes blocks into values.
std::optional<LinearFormat> found_in(const PlannedLinear& p) {
  if (p.packing) return LinearFormat{p.packing, p.recipe.spec, p.recipe.act_order == ActOrder::full};
  if (!p.blocks) return std::nullopt;
  if (p.blocks == &gguf::type_mxfp4) return LinearFormat{&packing_gguf_mxfp4, *p.blocks->grid};
  if (!gguf::has_codes(*p.blocks)) return std::nullopt;
  return LinearFormat{&packing("gguf_" + std::string(p.blocks->name)), *p.blocks->grid};
}

}  // namespace

ServedModel served_as(Checkpoint& c, std::string_view recipe) {
  const Recipe base = parse_recipe(recipe);
  if (base.chooses_precision())
    fail(ErrorKind::usage,
         "--recipe: expected a recipe that states its bits, such as \"gptq int4 g128\", found auto, which chooses "
         "them by measuring");
  if (checkpoint_format(resolve(base).format).gguf && c.store.index().files.empty())
    fail(ErrorKind::usage, "--recipe '" + std::string(recipe) +
                               "': a GGUF file holds the tokenizer too, which a preset " +
                               "does not have; give the folder of a model");
  const int64_t length = std::min<int64_t>(2048, c.spec.max_positions);
  const QuantPlan plan =
      make_plan(c, {.base = base, .tokens = 128 * length, .seq_len = length, .dtype = DType::bf16, .on_gpu = true});
  if (!plan.refusals.empty())
    fail(ErrorKind::unsupported,
         c.dir.string() + ": --recipe '" + std::string(recipe) + "': " + join(grouped_refusals(plan.refusals), "\n"));
  ServedModel m = served(c);
  QuantizationSummary quantization = summary_of(c, plan);
  for (const PlannedLinear& p : plan.linears) {
    ServedLinear& l = m.linears.at(p.linear.name);
    if (!p.keep) l.stored = p.out_bytes;
    const std::optional<LinearFormat> format = found_in(p);
    if (!format) continue;
    l.codes = format->spec, l.act_order = format->act_order;
    quantization.linears[p.linear.name] = *format;
  }
  m.stored = plan.out_bytes;
  c.quantization = std::move(quantization);
  return m;
}

}  // namespace fewbit

#include "src/quant/output/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "src/quant/output/companions.h"

namespace fewbit {
namespace {

// "gptq int4 g128 sym (28 linears), gptq int8 g128 sym (4 linears)"
std::string recipes_of(const QuantPlan& plan) {
  std::map<std::string, int> counts;
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep) ++counts[p.recipe_str()];
  std::string s;
  for (const auto& [recipe, n] : counts) s += fmt::format("{}`{}` ({} linears)", s.empty() ? "" : ", ", recipe, n);
  return s;
}

std::string worst_error(const QuantReport& r) {
  const auto it = std::max_element(r.linears.begin(), r.linears.end(),
                                   [](const auto& a, const auto& b) { return a.rel_error < b.rel_error; });
  return it == r.linears.end() ? "-" : fmt::format("{:.4f} (`{}`)", it->rel_error, it->name);
}

std::string calibration_of(const QuantReport& r) {
  if (r.samples == 0) return "none";
  return fmt::format("{}: {} windows of {} tokens, seed {}", r.calibration, r.samples, r.seq_len, r.seed);
}

std::string perplexity_of(const QuantReport& r) {
  if (!r.perplexity) return "not measured; `evaluate perplexity` prints it with its standard error";
  const MeasuredPerplexity& p = *r.perplexity;
  return fmt::format("{}, before {} ({}, {} windows of {} tokens, protocol {}, {})",
                     with_error(p.perplexity, p.stderr_, 4), with_error(p.base, p.base_stderr, 4), p.data, p.windows,
                     p.context, p.protocol, p.dtype);
}

std::string ours(const QuantPlan& plan, const QuantJob& job, const QuantReport& r) {
  std::string s = fmt::format("# {}, quantized\n\n| | |\n|---|---|\n",
                              std::filesystem::path(r.model).lexically_normal().filename().string());
  const auto row = [&](const char* key, const std::string& value) { s += fmt::format("| {} | {} |\n", key, value); };
  row("recipe", recipes_of(plan));
  row("format", std::string(plan.format->name));
  row("bits per weight", fmt::format("{:.3f}, of the quantized linears, with scales", r.bits_per_weight));
  row("tensors", fmt::format("{}, before {}", human_bytes(r.out_bytes), human_bytes(r.source_bytes)));
  row("calibration", calibration_of(r));
  if (!r.kept.empty()) row("linears left as they are", std::to_string(r.kept.size()));
  if (const auto n = std::count_if(r.linears.begin(), r.linears.end(), [](const auto& l) { return l.lossless; }))
    row("linears with the codes of the model, lossless", std::to_string(n));
  if (!r.dropped.empty()) row("tensors left out on purpose", std::to_string(r.dropped.size()));
  row("largest relative error", worst_error(r));
  row("perplexity", perplexity_of(r));
  s += fmt::format("\nMade by fewbit; `quant_report.json` has the figures of every linear:\n\n```\n{}\n```\n",
                   job.command.empty() ? fmt::format("quantize \"{}\" MODEL OUT", r.recipe) : job.command);
  return s;
}

}  // namespace

std::string model_card(const QuantPlan& plan, const QuantJob& job, const QuantReport& report,
                       const std::string& source_card) {
  return above_model_card(ours(plan, job, report), source_card);
}

}  // namespace fewbit

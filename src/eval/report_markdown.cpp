// The report for a model card.
#include <fmt/format.h>

#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "src/eval/report_charts.h"

namespace fewbit {
namespace {

std::string row(const ReportModel& m, bool base) {
  std::string s =
      fmt::format("| {} | {} | {:.3f} | {} | {} |", m.name, m.recipe.empty() ? (base ? "baseline" : "–") : m.recipe,
                  m.bits, human_bytes(m.bytes), with_error(m.perplexity, m.stderr_, 4));
  if (base) return s + " – | – | – | – |\n";
  return s + fmt::format(" {} | {} | {} % | {:.2f} % |\n", shown_ratio(m), with_error(m.kl_mean, m.kl_stderr, 5),
                         with_error(100 * m.top1, 100 * m.top1_stderr, 2), 100 * m.top5);
}

std::string latency_row(const ReportModel& m) {
  if (!m.latency) return "";
  return fmt::format("| {} | {:.3f} | {:.3f} | {:.1f} | {:.1f} | {} |\n", m.name, m.latency->ms_per_token,
                     m.latency->p99, m.latency->tokens_per_s, m.latency->ttft_ms, m.latency->device);
}

std::string cells(const std::vector<std::string>& row) { return fmt::format("| {} |\n", join(row, " | ")); }

std::string load_table(const Traffic& t) {
  std::string s = fmt::format("\nUnder load on {}: prompts of {} tokens, {} tokens each, {}.\n\n", t.device,
                              t.prompt_tokens, t.tokens, t.arrivals);
  s += cells(load_head()) + cells(std::vector<std::string>(load_head().size(), "---"));
  for (const auto& row : load_rows(t)) s += cells(row);
  return s;
}

}  // namespace

std::string to_markdown(const Report& r) {
  std::string s = fmt::format("# {}\n\n", r.title);
  s += "| checkpoint | recipe | bits | size | perplexity | against the baseline | KL | same top-1 | top-5 "
       "overlap |\n"
       "|---|---|---|---|---|---|---|---|---|\n";
  s += row(r.base, true);
  for (const ReportModel& m : r.models) s += row(m, false);
  std::string latency = latency_row(r.base);
  for (const ReportModel& m : r.models) latency += latency_row(m);
  if (!latency.empty())
    s += "\n| checkpoint | ms per token | p99 | tokens/s | first token, ms | device "
         "|\n|---|---|---|---|---|---|\n" +
         latency;
  for (const Traffic& t : traffics(r)) s += load_table(t);
  s += fmt::format(
      "\n{} ({} windows of {} tokens, {} scored, hash `{}`), protocol {}, {} on {}, fewbit {}. Errors "
      "against the "
      "baseline are paired.\n\n",
      r.data, r.windows, r.context, r.tokens, r.data_hash, r.protocol, r.dtype, r.device, r.version);
  s += "```\n" + r.command + "\n";
  for (const ReportModel& m : r.models)
    if (!m.command.empty()) s += fmt::format("{}  # hash {}\n", m.command, m.hash);
  s += "```\n";
  for (const ReportModel& m : r.models)
    if (!m.made_from.empty()) s += fmt::format("\n{} was made by {}.\n", m.name, m.made_from);
  return s;
}

}  // namespace fewbit

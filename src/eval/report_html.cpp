// The page: one style sheet, tables, its charts, and where the figures come from.
#include <fmt/format.h>

#include <cmath>

#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "src/eval/report_charts.h"

namespace fewbit {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --paper: #fbfaf7; --card: #ffffff; --ink: #1d2329; --soft: #5d6873; --rule: #dfe2e4;
  --accent: #1f6f8b; --span: #9cc3d1; --heat: #b3402a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --card: #1c2228; --ink: #e7eaec; --soft: #9aa6b1;
  --rule: #333c44; --accent: #6cc3df; --span: #31596a; --heat: #f08a6b; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 1.2rem; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 0 0 .5rem; }
h3 { font-size: .9rem; font-weight: 600; margin: .6rem 0 .2rem; overflow-wrap: anywhere; }
p { margin: .2rem 0 .6rem; color: var(--soft); font-size: .9rem; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 1rem;
  margin-top: 1rem; }
.charts { display: grid; gap: 0 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.charts .tall { grid-row: span 2; }
.maps { display: grid; gap: .4rem 1.6rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
tr:last-child td { border-bottom: 0; }
code { font: .82rem/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
code span { display: inline-block; max-width: 100%; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: 0; font-size: .88rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 30rem) { body { padding: .6rem; } section { padding: .7rem; } dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .4rem; } }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--rule); } .base { stroke: var(--soft); stroke-dasharray: 4 3; }
.whisker { stroke: var(--accent); stroke-width: 2; }
.span { stroke: var(--span); stroke-width: 6; stroke-linecap: round; }
.dot { fill: var(--accent); } .heat { fill: var(--heat); }
.reach { fill: var(--accent); fill-opacity: .06; }
.roof { fill: none; stroke: var(--ink); stroke-width: 1.6; stroke-linejoin: round; }
.c0 { --c: #5d6873; } .c1 { --c: #1f6f8b; } .c2 { --c: #b3402a; } .c3 { --c: #5b7a1f; }
.c4 { --c: #7a4fa3; } .c5 { --c: #a86e12; }
@media (prefers-color-scheme: dark) {
  .c0 { --c: #9aa6b1; } .c1 { --c: #6cc3df; } .c2 { --c: #f08a6b; } .c3 { --c: #a7c957; }
  .c4 { --c: #c39be6; } .c5 { --c: #e9b44c; } }
circle[class^=c], path[class^=c] { fill: var(--c); stroke: var(--card); }
.drop { stroke: var(--c); stroke-opacity: .5; stroke-dasharray: 2 3; }
.curve { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; } .tail { stroke-dasharray: 5 4; }
.roofline svg { min-width: 30rem; max-width: 40rem; margin: 0 auto; }
.maps svg { max-width: 26rem; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; justify-content: center; padding: 0; margin: .2rem 0 .8rem;
  list-style: none; font-size: .85rem; }
.legend span { display: inline-block; width: .7rem; height: .7rem; border-radius: 3px; background: var(--c);
  margin-right: .4rem; }
.ramp { display: inline-block; width: 6rem; height: .7rem; vertical-align: middle; border-radius: 3px;
  background: linear-gradient(to right, transparent, var(--heat)); border: 1px solid var(--rule); }
)";

std::string row(const std::vector<std::string>& cells, const char* tag) {
  std::string s = "<tr>";
  for (const std::string& c : cells) s += fmt::format("<{0}>{1}</{0}>", tag, escaped(c));
  return s + "</tr>\n";
}

std::string table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
  std::string s = "<div class=\"scroll\"><table>\n<thead>" + row(head, "th") + "</thead>\n<tbody>\n";
  for (const auto& r : rows) s += row(r, "td");
  return s + "</tbody></table></div>\n";
}

std::string section(const std::string& title, const std::string& note, const std::string& body, const char* kind = "") {
  return fmt::format("<section class=\"{}\">\n<h2>{}</h2>\n{}{}</section>\n", kind, escaped(title),
                     note.empty() ? "" : "<p>" + escaped(note) + "</p>\n", body);
}

std::vector<std::string> summary_row(const ReportModel& m, bool base) {
  return {m.name,
          base && m.recipe.empty() ? "baseline" : m.recipe,
          fmt::format("{:.3f}", m.bits),
          human_bytes(m.bytes),
          with_error(m.perplexity, m.stderr_, 4),
          base ? "–" : shown_ratio(m),
          base ? "–" : with_error(m.kl_mean, m.kl_stderr, 5),
          base ? "–" : with_error(100 * m.top1, 100 * m.top1_stderr, 2) + " %",
          base ? "–" : fmt::format("{:.2f} %", 100 * m.top5)};
}

std::string summary(const Report& r) {
  std::vector<std::vector<std::string>> rows = {summary_row(r.base, true)};
  for (const ReportModel& m : r.models) rows.push_back(summary_row(m, false));
  return table({"checkpoint", "recipe", "bits", "size", "perplexity", "against the baseline", "KL", "same top-1",
                "top-5 overlap"},
               rows);
}

std::string heat_maps(const Report& r) {
  const double largest = largest_error(r);
  std::string maps;
  for (const ReportModel& m : r.models)
    if (!m.linears.empty()) maps += fmt::format("<div><h3>{}</h3>\n{}</div>\n", escaped(m.name), heat_map(m, largest));
  if (maps.empty()) return "";
  return section(
      "Error of every linear",
      "Relative error of the outputs on the calibration text (of the weights where a method needs "
      "none); a row per layer.",
      fmt::format("<p>0 <span class=\"ramp\"></span> {:.3f}</p>\n<div class=\"maps\">\n{}</div>\n", largest, maps));
}

std::string latency(const Report& r) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const ReportModel& m) {
    if (const auto& l = m.latency)
      rows.push_back({m.name, fmt::format("{:.3f}", l->ms_per_token), fmt::format("{:.3f}", l->p99),
                      fmt::format("{:.1f}", l->tokens_per_s), fmt::format("{:.1f}", l->ttft_ms),
                      fmt::format("{:.0f}", l->prefill_tokens_per_s), l->device});
  };
  add(r.base);
  for (const ReportModel& m : r.models) add(m);
  if (rows.empty()) return "";
  return section(
      "Latency", "",
      table({"checkpoint", "ms per token", "p99", "tokens/s", "first token, ms", "prefill, tokens/s", "device"}, rows));
}

// What the marks of a chart mean, and whose each colour is: of passes or curves, those of a checkpoint side by side.
template <class Marked>
std::string legend(const char* marks, const std::vector<Marked>& marked) {
  std::string s = fmt::format("<ul class=\"legend\">{}", marks);
  const ReportModel* last = nullptr;
  for (const Marked& m : marked) {
    if (m.model != last) s += fmt::format("<li><span class=\"c{}\"></span>{}</li>", m.colour, escaped(m.model->name));
    last = m.model;
  }
  return s + "</ul>\n";
}

std::string roofline(const Roofline& r) {
  std::vector<std::vector<std::string>> rows;
  rows.reserve(r.passes.size());
  for (const auto& [model, colour, p] : r.passes)
    rows.push_back({model->name, fmt::format("{} {}", p.decode ? "step after" : "prompt of", p.prompt_tokens),
                    fmt::format("{}", p.batch), fmt::format("{:.4g}", p.flop_per_byte()),
                    fmt::format("{:.4g}", p.gb_per_s()), fmt::format("{:.1f} %", 100 * p.gb_per_s() / r.read_gb_per_s),
                    fmt::format("{:.4g}", p.tflop_per_s),
                    fmt::format("{:.1f} %", 100 * p.tflop_per_s / r.product_tflop_per_s)});
  return section(
      "Roofline of " + r.device,
      "What a pass reached of what its weights and cache, read once, would allow. The slope is the read rate and "
      "the level the rate of a large product in the type of the activations, both measured in the same run; "
      "products of 8 bits may pass the level.",
      "<div class=\"scroll\">" + roofline_chart(r) + "</div>\n" +
          legend("<li>● decode step</li><li>◆ prompt</li>", r.passes) +
          table({"checkpoint", "pass", "batch", "operations per byte", "GB/s", "of reads", "TFLOP/s", "of products"},
                rows),
      "roofline");
}

std::string under_load(const Traffic& t) {
  std::string charts;
  for (const auto& [title, figure] : {std::pair{"Time to first token", LoadFigure::ttft},
                                      {"Time between tokens", LoadFigure::itl},
                                      {"Throughput", LoadFigure::throughput}})
    if (const std::string chart = load_chart(t, figure); !chart.empty())
      charts += fmt::format("<div><h3>{}</h3>\n{}</div>\n", title, chart);
  return section(
      "Under load on " + t.device,
      fmt::format("Requests that come and go: prompts of {} tokens, {} tokens each, {}. TTFT is the time to the "
                  "first token, ITL that between two tokens.",
                  t.prompt_tokens, t.tokens, t.arrivals),
      "<div class=\"maps\">\n" + charts + "</div>\n" + legend("<li>— p50</li><li>- - p99</li>", t.curves) +
          table(load_head(), load_rows(t)));
}

// Lines end between words: a browser would end them behind a hyphen too, and "--seed" would be two.
std::string command_line(const std::string& command) {
  std::string s;
  for (const std::string& word : split(command, ' '))
    if (!word.empty()) s += fmt::format("{}<span>{}</span>", s.empty() ? "" : " ", escaped(word));
  return "<code>" + s + "</code>";
}

std::string origin(const Report& r) {
  std::string s = "<dl>\n";
  const auto item = [&](const std::string& key, const std::string& value, bool code) {
    if (!value.empty())
      s += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(key), code ? command_line(value) : escaped(value));
  };
  item("text",
       fmt::format("{}, {} windows of {} tokens, {} scored, hash {}", r.data, r.windows, r.context, r.tokens,
                   r.data_hash),
       false);
  item("protocol", fmt::format("{}, {} on {}, fewbit {}", r.protocol, r.dtype, r.device, r.version), false);
  item("this page", r.command, true);
  const auto model = [&](const ReportModel& m) {
    item(m.name, m.command.empty() ? "hash " + m.hash : m.command + "  # hash " + m.hash, true);
    item(m.name + ", made by", m.made_from, false);
  };
  model(r.base);
  for (const ReportModel& m : r.models) model(m);
  return section("Where the figures come from", "", s + "</dl>\n");
}

}  // namespace

std::string shown_ratio(const ReportModel& m) {
  const double change = 100 * std::expm1(m.ln_ratio);
  const double error = 100 * std::exp(m.ln_ratio) * m.ln_ratio_stderr;
  return fmt::format("{}{} %", change < 0 ? "" : "+", with_error(change, error, 2));
}

std::string to_html(const Report& r) {
  std::string s = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>{0}</title>\n<style>{1}</style>\n</head>\n"
      "<body>\n<main>\n<h1>{0}</h1>\n<p>{2} tokens of {3}, protocol {4}. Errors against the baseline are "
      "paired: same tokens, same "
      "windows.</p>\n",
      escaped(r.title), kStyle, r.tokens, escaped(r.data), escaped(r.protocol));
  s += section("Summary", "", summary(r));
  if (!r.models.empty()) {
    s += "<div class=\"charts\">\n";
    s += section("Perplexity", "Bars are the standard error of the ratio to the baseline (dashed).",
                 perplexity_chart(r));
    s += section("Bits against quality", "Further down is closer to the baseline.", bits_chart(r), "tall");
    s += section("Distance of the distributions", "How far the next-token distributions are from the baseline's.",
                 divergence_chart(r));
    s += "</div>\n";
  }
  s += heat_maps(r) + latency(r);
  for (const Roofline& device : rooflines(r)) s += roofline(device);
  for (const Traffic& t : traffics(r)) s += under_load(t);
  return s + origin(r) + "</main>\n</body>\n</html>\n";
}

}  // namespace fewbit

// A certificate as JSON, as a section of a model card and as a page.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/text/with_error.h"
#include "src/eval/certify.h"
#include "src/eval/svg.h"

namespace fewbit {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Interval& i) { return {{"value", i.value}, {"low", i.low}, {"high", i.high}}; }

Json json_of(const std::vector<CertifiedDomain>& list) {
  Json out = Json::array();
  for (const CertifiedDomain& d : list) {
    Json j = {{"name", d.name},      {"context", d.context},    {"windows", d.windows},  {"tokens", d.tokens},
              {"kl", json_of(d.kl)}, {"top1", json_of(d.top1)}, {"worst", Json::array()}};
    for (const WorstPlace& w : d.worst)
      j["worst"].push_back({{"before", w.before},
                            {"token", w.token},
                            {"base_top", w.base_top},
                            {"top", w.top},
                            {"kl", w.kl},
                            {"base_p", w.base_p},
                            {"p", w.p}});
    out.push_back(std::move(j));
  }
  return out;
}

using Row = std::vector<std::string>;

// The rows that card and page share: what, windows, KL with its interval, same top-1 with its interval.
std::vector<Row> rows_of(const Certificate& c) {
  std::vector<Row> rows;
  const auto interval = [](const Interval& i, double unit, int digits) {
    return fmt::format("{:.{}f} ({:.{}f} … {:.{}f})", unit * i.value, digits, unit * i.low, digits, unit * i.high,
                       digits);
  };
  rows.push_back({"all domains", "", interval(c.kl, 1, 5), interval(c.top1, 100, 2) + " %"});
  for (const auto* list : {&c.domains, &c.steps, &c.caches})
    for (const CertifiedDomain& d : *list)
      rows.push_back({d.name, fmt::format("{} × {}", d.windows, d.context), interval(d.kl, 1, 5),
                      interval(d.top1, 100, 2) + " %"});
  return rows;
}

std::string verdict_of(const Certificate& c) {
  if (c.limits.mean <= 0 && c.limits.domain <= 0) return "measured; no limit was given";
  std::string limits;
  if (c.limits.mean > 0) limits = fmt::format("mean KL of all domains at most {:g}", c.limits.mean);
  if (c.limits.domain > 0)
    limits += fmt::format("{}KL of each at most {:g}", limits.empty() ? "" : ", ", c.limits.domain);
  return fmt::format("{}: {}", c.passed() ? "passed" : "FAILED", limits);
}

std::string tasks_of(const Certificate& c) {
  return fmt::format(
      "{} multiple-choice items: {} answers changed, {} right to wrong, {} wrong to right; accuracy changed by {} "
      "points",
      c.items, c.flips.changed, c.flips.lost, c.flips.won,
      with_error(100 * c.flips.difference, 100 * c.flips.stderr_, 2));
}

// Text that may hold anything, on one line.
std::string quoted(const std::string& text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string place_of(const WorstPlace& w) {
  return fmt::format("KL {:.3f} at {} behind {}: {:.1f} % -> {:.1f} %, likeliest {} -> {}", w.kl, quoted(w.token),
                     quoted(w.before), 100 * w.base_p, 100 * w.p, quoted(w.base_top), quoted(w.top));
}

}  // namespace

std::string to_json(const Certificate& c) {
  const Json j = {{"passed", c.passed()},
                  {"base", c.base},
                  {"model", c.model},
                  {"device", c.device},
                  {"dtype", c.dtype},
                  {"version", c.version},
                  {"max_kl", c.limits.mean > 0 ? Json(c.limits.mean) : Json()},
                  {"max_kl_domain", c.limits.domain > 0 ? Json(c.limits.domain) : Json()},
                  {"failures", c.failures},
                  {"kl", json_of(c.kl)},
                  {"top1", json_of(c.top1)},
                  {"domains", json_of(c.domains)},
                  {"long_context", json_of(c.steps)},
                  {"caches", json_of(c.caches)},
                  {"caches_refused", c.refused},
                  {"tasks",
                   {{"items", c.items},
                    {"changed", c.flips.changed},
                    {"lost", c.flips.lost},
                    {"won", c.flips.won},
                    {"difference", c.flips.difference},
                    {"stderr", c.flips.stderr_}}}};
  return j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_markdown(const Certificate& c) {
  std::string s = fmt::format("## Certificate\n\n**{}.**\n\n", verdict_of(c));
  for (const std::string& f : c.failures) s += "- " + f + "\n";
  s += "\n| text | windows | KL to the baseline, nats | same likeliest token |\n|---|---|---|---|\n";
  for (const Row& r : rows_of(c)) s += fmt::format("| {} | {} | {} | {} |\n", r[0], r[1], r[2], r[3]);
  s += fmt::format("\n{}.\n", tasks_of(c));
  for (const std::string& r : c.refused) s += "\nNot measured: " + r + "\n";
  s += "\nWhere the distributions differ most:\n\n";
  for (const CertifiedDomain& d : c.domains)
    if (!d.worst.empty()) s += fmt::format("- {}: `{}`\n", d.name, place_of(d.worst[0]));
  return s + fmt::format("\nIntervals are 1.96 standard errors over windows to either side; {} on {}, fewbit {}.\n",
                         c.dtype, c.device, c.version);
}

std::string to_html(const Certificate& c) {
  std::string s = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>Certificate of {0}</title>\n<style>\n"
      ":root {{ color-scheme: light dark; }}\nbody {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; "
      "margin: 1rem auto; padding: 0 1rem; }}\n.scroll {{ overflow-x: auto; }}\ntable {{ border-collapse: collapse; "
      "}}\n"
      "td, th {{ padding: .3rem .6rem; text-align: left; border-bottom: 1px solid #8886; white-space: nowrap; }}\n"
      "ul {{ padding-left: 1.2rem; }}\nh1 {{ font-size: 1.6rem; overflow-wrap: anywhere; }}\n"
      "code {{ overflow-wrap: anywhere; font-size: .85rem; }}\n</style>\n</head>\n<body>\n<h1>Certificate of {0}</h1>\n"
      "<p><strong>{1}.</strong></p>\n",
      escaped(c.model), escaped(verdict_of(c)));
  const auto list = [&](const std::vector<std::string>& lines, const char* tag) {
    if (lines.empty()) return;
    s += "<ul>\n";
    for (const std::string& l : lines)
      s += fmt::format("<li>{1}{0}{2}</li>\n", escaped(l), tag[0] ? "<code>" : "", tag[0] ? "</code>" : "");
    s += "</ul>\n";
  };
  list(c.failures, "");
  s += "<div class=\"scroll\"><table>\n<tr><th>text</th><th>windows</th><th>KL to the baseline, nats</th>"
       "<th>same likeliest token</th></tr>\n";
  for (const Row& r : rows_of(c)) {
    s += "<tr>";
    for (const std::string& cell : r) s += "<td>" + escaped(cell) + "</td>";
    s += "</tr>\n";
  }
  s += fmt::format("</table></div>\n<p>{}.</p>\n", escaped(tasks_of(c)));
  list(c.refused, "");
  s += "<h2>Where the distributions differ most</h2>\n";
  for (const CertifiedDomain& d : c.domains) {
    s += "<h3>" + escaped(d.name) + "</h3>\n";
    std::vector<std::string> places;
    places.reserve(d.worst.size());
    for (const WorstPlace& w : d.worst) places.push_back(place_of(w));
    list(places, "code");
  }
  return s + fmt::format(
                 "<p>Intervals are 1.96 standard errors over windows to either side; {} on {}, fewbit {}.</p>\n"
                 "</body>\n</html>\n",
                 escaped(c.dtype), escaped(c.device), escaped(c.version));
}

}  // namespace fewbit

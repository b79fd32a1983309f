// Latency and throughput against load, from the rows of `runner bench --concurrency`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/eval/report_charts.h"

namespace fewbit {
namespace {

constexpr double kWidth = 360, kHeight = 240, kLeft = 46, kRight = 12, kTop = 20;
constexpr double kLabel = 26;  // the width that a number on the bottom axis needs

// What a chart shows at a point, under the name it has in the chart; the second is dashed.
struct Shown {
  const char* name;
  double ReportLoad::*value;
  const char* unit;
};
std::vector<Shown> shown_in(LoadFigure f) {
  if (f == LoadFigure::ttft) return {{"p50", &ReportLoad::ttft_p50, "ms"}, {"p99", &ReportLoad::ttft_p99, "ms"}};
  if (f == LoadFigure::itl) return {{"p50", &ReportLoad::itl_p50, "ms"}, {"p99", &ReportLoad::itl_p99, "ms"}};
  return {{"throughput", &ReportLoad::tokens_per_s, "tokens/s"}};
}

bool alike(const Traffic& t, const ReportLoad& l) {
  return t.device == l.device && t.prompt_tokens == l.prompt_tokens && t.tokens == l.tokens && t.arrivals == l.arrivals;
}

void add_point(Traffic& t, const ReportModel& m, int colour, const ReportLoad& l) {
  const double level = t.by_rate ? static_cast<double>(l.concurrency) : l.rate;
  const auto same = [&](const Traffic::Curve& c) { return c.model == &m && c.level == level; };
  auto it = std::find_if(t.curves.begin(), t.curves.end(), same);
  if (it == t.curves.end()) it = t.curves.insert(it, {&m, colour, level, {}});
  const auto before = [&](const ReportLoad& a, const ReportLoad& b) { return t.load(a) < t.load(b); };
  it->points.insert(std::upper_bound(it->points.begin(), it->points.end(), l, before), l);
}

// The loads that were measured, without those whose number would lie on the one before.
std::vector<double> load_ticks(const std::set<double>& loads, const Axis& x) {
  std::vector<double> ticks;
  for (const double l : loads)
    if (ticks.empty() || x.at(l) - x.at(ticks.back()) >= kLabel) ticks.push_back(l);
  return ticks;
}

std::string curve(const Traffic& t, const Traffic::Curve& c, const Shown& what, bool dashed, const Axis& x,
                  const Axis& y) {
  std::string points, marks;
  for (const ReportLoad& l : c.points) {
    const double v = l.*what.value;
    if (!(v > 0)) continue;
    points += fmt::format("{:.1f},{:.1f} ", x.at(t.load(l)), y.at(v));
    marks += fmt::format(
        "<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}</title></circle>\n", c.colour,
        x.at(t.load(l)), y.at(v), dashed ? 3 : 4,
        escaped(fmt::format("{}, {} {:g}: {} {:.4g} {}", c.model->name, t.by_rate ? "requests a second" : "at once",
                            t.load(l), what.name, v, what.unit)));
  }
  return fmt::format("<polyline class=\"curve{} c{}\" points=\"{}\"/>\n{}", dashed ? " tail" : "", c.colour, points,
                     marks);
}

}  // namespace

double Traffic::load(const ReportLoad& l) const { return by_rate ? l.rate : static_cast<double>(l.concurrency); }

std::vector<Traffic> traffics(const Report& r) {
  std::vector<Traffic> all;
  const auto each = [&](const auto& f) {
    each_coloured(r, [&](const ReportModel& m, int colour) {
      for (const ReportLoad& l : m.loads) f(m, colour, l);
    });
  };
  const auto find = [&](const ReportLoad& l) {
    return std::find_if(all.begin(), all.end(), [&](const Traffic& t) { return alike(t, l); });
  };
  // First what there is, for the axis depends on all of it: rates where several were measured, else concurrency.
  std::vector<std::set<double>> rates;
  each([&](const ReportModel&, int, const ReportLoad& l) {
    const auto at = static_cast<size_t>(find(l) - all.begin());
    if (at == all.size()) {
      all.push_back({l.device, l.prompt_tokens, l.tokens, l.arrivals});
      rates.emplace_back();
    }
    rates[at].insert(l.rate);
  });
  for (size_t i = 0; i < all.size(); ++i) all[i].by_rate = rates[i].size() > 1;
  each([&](const ReportModel& m, int colour, const ReportLoad& l) { add_point(*find(l), m, colour, l); });
  return all;
}

std::vector<std::string> load_head() {
  return {"checkpoint",  "at once",    "requests/s asked", "TTFT ms p50",
          "TTFT ms p99", "ITL ms p50", "ITL ms p99",       "tokens/s"};
}

std::vector<std::vector<std::string>> load_rows(const Traffic& t) {
  // "–" where nothing was measured.
  const auto ms = [](double v) { return std::isnan(v) ? "–" : fmt::format("{:.2f}", v); };
  std::vector<std::vector<std::string>> rows;
  for (const Traffic::Curve& c : t.curves)
    for (const ReportLoad& l : c.points)
      rows.push_back({c.model->name, fmt::format("{}", l.concurrency), l.rate > 0 ? fmt::format("{:g}", l.rate) : "–",
                      ms(l.ttft_p50), ms(l.ttft_p99), ms(l.itl_p50), ms(l.itl_p99),
                      fmt::format("{:.1f}", l.tokens_per_s)});
  return rows;
}

std::string load_chart(const Traffic& t, LoadFigure figure) {
  std::set<double> loads;
  double low = INFINITY, high = 0;
  const std::vector<Shown> shown = shown_in(figure);
  for (const Traffic::Curve& c : t.curves)
    for (const ReportLoad& l : c.points) {
      loads.insert(t.load(l));
      for (const Shown& s : shown)
        if (const double v = l.*s.value; v > 0) low = std::min(low, v), high = std::max(high, v);
    }
  if (high == 0) return "";  // no time between tokens where every request asked for one
  const bool rising = figure == LoadFigure::throughput;
  const Axis x{*loads.begin() / 1.25, *loads.rbegin() * 1.25, kLeft, kWidth - kRight, true};
  const Axis y = rising
                     ? Axis{0, 1.1 * high, kHeight - kAxis, kTop}
                     : Axis{rounded_out(low / 1.1, false), rounded_out(high * 1.1, true), kHeight - kAxis, kTop, true};
  std::string s =
      bottom_axis(x, load_ticks(loads, x), kHeight, t.by_rate ? "requests a second" : "requests at once", kTop);
  s += left_axis(y, rising ? linear_ticks(y.from, y.to, 4) : log_ticks(y), kLeft, kWidth - kRight);
  s += text(kLeft, 11, shown[0].unit, "start", " class=\"tick\"");
  for (const Traffic::Curve& c : t.curves)
    for (size_t i = 0; i < shown.size(); ++i) s += curve(t, c, shown[i], i > 0, x, y);
  const char* label = figure == LoadFigure::ttft  ? "Time to first token against load"
                      : figure == LoadFigure::itl ? "Time between tokens against load"
                                                  : "Throughput against load";
  return svg(kWidth, kHeight, label, s);
}

}  // namespace fewbit

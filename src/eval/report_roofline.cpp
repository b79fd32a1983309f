// Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009. With the bytes that a pass must read at least, not those
// it did read: the distance to the roof is all that is left to gain.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/eval/report_charts.h"

namespace fewbit {
namespace {

constexpr double kWidth = 460, kHeight = 310, kLeft = 50, kRight = 14, kTop = 22;

std::string mark(double x, double y, const Roofline::Pass& p, const std::string& title) {
  const std::string shape =
      p.pass.decode ? fmt::format("circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"", p.colour, x, y)
                    : fmt::format("path class=\"c{}\" d=\"M{:.1f} {:.1f}l6 6l-6 6l-6 -6z\"", p.colour, x, y - 6);
  return fmt::format("<{}><title>{}</title></{}>\n", shape, escaped(title), p.pass.decode ? "circle" : "path");
}

void add_passes(Roofline& r, const ReportModel& m, int colour) {
  r.read_gb_per_s = std::max(r.read_gb_per_s, m.latency->read_gb_per_s);
  r.product_tflop_per_s = std::max(r.product_tflop_per_s, m.latency->product_tflop_per_s);
  for (const ReportPass& p : m.latency->passes) r.passes.push_back({&m, colour, p});
}

}  // namespace

double Roofline::roof(double flop_per_byte) const {
  return std::min(product_tflop_per_s, read_gb_per_s * flop_per_byte / 1e3);
}

std::vector<Roofline> rooflines(const Report& r) {
  std::vector<Roofline> all;
  each_coloured(r, [&](const ReportModel& m, int colour) {
    if (!m.latency || m.latency->passes.empty()) return;
    auto it = std::find_if(all.begin(), all.end(), [&](const Roofline& l) { return l.device == m.latency->device; });
    if (it == all.end()) it = all.insert(it, {.device = m.latency->device});
    add_passes(*it, m, colour);
  });
  return all;
}

std::string roofline_chart(const Roofline& r) {
  const double ridge = 1e3 * r.product_tflop_per_s / r.read_gb_per_s;
  double left = ridge, right = ridge, low = r.product_tflop_per_s, high = r.product_tflop_per_s;
  for (const auto& [model, colour, p] : r.passes) {
    left = std::min(left, p.flop_per_byte()), right = std::max(right, p.flop_per_byte());
    low = std::min(low, p.tflop_per_s), high = std::max(high, p.tflop_per_s);
  }
  const Axis x{rounded_out(left / 1.5, false), rounded_out(right * 1.5, true), kLeft, kWidth - kRight, true};
  const Axis y{rounded_out(low / 1.5, false), rounded_out(high * 1.2, true), kHeight - kAxis, kTop, true};
  const double floor = std::max(x.from, 1e3 * y.from / r.read_gb_per_s);  // where the slope enters the chart
  const std::string roof = fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}", x.at(floor), y.at(r.roof(floor)),
                                       x.at(ridge), y.at(r.product_tflop_per_s), x.end, y.at(r.product_tflop_per_s));
  std::string s = fmt::format("<polygon class=\"reach\" points=\"{:.1f},{:.1f} {} {:.1f},{:.1f}\"/>\n", x.at(floor),
                              y.begin, roof, x.end, y.begin);
  s += bottom_axis(x, log_ticks(x), kHeight, "operations per byte of weights and cache", kTop);
  s += left_axis(y, log_ticks(y), kLeft, kWidth - kRight) + text(kLeft, 11, "TFLOP/s", "start", " class=\"tick\"");
  for (const auto& [model, colour, p] : r.passes) {
    const double at = x.at(p.flop_per_byte());
    s += line(at, y.at(p.tflop_per_s), at, y.at(std::max(p.tflop_per_s, r.roof(p.flop_per_byte()))),
              fmt::format("drop c{}", colour).c_str());
  }
  s += fmt::format("<polyline class=\"roof\" points=\"{}\"/>\n", roof);
  // Along the slope, above it.
  const double dx = x.at(ridge) - x.at(floor), dy = y.at(r.product_tflop_per_s) - y.at(r.roof(floor));
  const double angle = std::atan2(dy, dx), mx = x.at(ridge) - 0.5 * dx, my = y.at(r.product_tflop_per_s) - 0.5 * dy;
  s += text(0, -7, fmt::format("reads: {:.0f} GB/s", r.read_gb_per_s), "middle",
            fmt::format(" class=\"tick\" transform=\"translate({:.1f} {:.1f}) rotate({:.1f})\"", mx, my,
                        angle * 180 / std::acos(-1))
                .c_str());
  const bool beside = x.end - x.at(ridge) > 130;  // else the text would leave the chart
  s +=
      text(beside ? x.at(ridge) : x.end, y.at(r.product_tflop_per_s) - 6,
           fmt::format("products: {:.3g} TFLOP/s", r.product_tflop_per_s), beside ? "start" : "end", " class=\"tick\"");
  for (const Roofline::Pass& p : r.passes)
    s += mark(
        x.at(p.pass.flop_per_byte()), y.at(p.pass.tflop_per_s), p,
        fmt::format("{}, {} {}, batch {}: {:.4g} TFLOP/s, {:.4g} GB/s, {:.0f} % of the roof", p.model->name,
                    p.pass.decode ? "step after" : "prompt of", p.pass.prompt_tokens, p.pass.batch, p.pass.tflop_per_s,
                    p.pass.gb_per_s(), 100 * p.pass.tflop_per_s / r.roof(p.pass.flop_per_byte())));
  return svg(kWidth, kHeight, "Roofline of " + r.device, s);
}

}  // namespace fewbit

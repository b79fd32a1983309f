// The report as one picture, for a README or a page that takes no HTML.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/core/strings.h"
#include "src/core/text/with_error.h"
#include "src/eval/report_charts.h"

namespace fewbit {
namespace {

constexpr double kWidth = 860, kTop = 62, kRow = 30, kNames = 190, kMiddle = 520, kRight = 16, kGap = 26;

// Colours stand here once more than in the page's style sheet, because converters know no variables.
constexpr const char* kPictureStyle = R"(<style>
text { fill: #1d2329; font: 13px sans-serif; } .tick { fill: #5d6873; font-size: 11px; }
.head { font-size: 15px; font-weight: 600; } .grid { stroke: #dfe2e4; }
.base { stroke: #5d6873; stroke-dasharray: 4 3; } .whisker { stroke: #1f6f8b; stroke-width: 2; } .dot { fill: #1f6f8b; }
</style>
<rect width="100%" height="100%" fill="#ffffff"/>
)";

double or_zero(double error) { return std::isnan(error) ? 0 : error; }

// A dot and its bar of one standard error to either side.
std::string marked(const Axis& x, double value, double error, double y, const std::string& title) {
  const double low = x.logarithmic ? std::max(value - error, x.from) : value - error;
  return line(x.at(low), y, x.at(value + error), y, "whisker") + dot(x.at(value), y, title);
}

}  // namespace

std::string to_svg(const Report& r) {
  double worst = 1, least = 1, most = 1e-6;  // percent; nats
  double best = 0;
  for (const ReportModel& m : r.models) {
    const double change = 100 * std::expm1(m.ln_ratio), error = 100 * or_zero(m.ln_ratio_stderr);
    worst = std::max(worst, change + 2 * error), best = std::min(best, change - 2 * error);
    least = std::min(least, std::max(m.kl_mean / 1.5, 1e-7)), most = std::max(most, m.kl_mean * 1.2);
  }
  const double bottom = kTop + kRow * static_cast<double>(r.models.size()), height = bottom + kAxis + 4;
  const Axis ratio{best, worst, kNames, kMiddle - kGap}, kl = log_axis(least, most, kMiddle + kGap, kWidth - kRight);
  std::string s = kPictureStyle;
  s += text(12, 22, r.title, "start", " class=\"head\"");
  s += text(12, 42,
            fmt::format("{} windows of {} tokens of {}; bars: one standard error, paired by windows", r.windows,
                        r.context, r.data),
            "start", " class=\"tick\"");
  s += bottom_axis(ratio, linear_ticks(best, worst, 5), height, "perplexity over the baseline's, %", kTop - 10);
  s += bottom_axis(kl, powers_of_ten(kl.from, kl.to), height, "KL to the baseline, nats a token", kTop - 10);
  s += line(ratio.at(0), kTop - 10, ratio.at(0), bottom, "base");
  for (size_t i = 0; i < r.models.size(); ++i) {
    const ReportModel& m = r.models[i];
    const double y = kTop + kRow * (static_cast<double>(i) + 0.5);
    s += text(12, y + 4, m.name) + text(kNames - 10, y + 4, human_bytes(m.bytes), "end", " class=\"tick\"");
    s += marked(ratio, 100 * std::expm1(m.ln_ratio), 100 * or_zero(m.ln_ratio_stderr), y, shown_ratio(m));
    s += marked(kl, m.kl_mean, or_zero(m.kl_stderr), y, with_error(m.kl_mean, m.kl_stderr, 5));
  }
  std::string picture = svg(kWidth, height, r.title, s);
  return picture.replace(
      0, 4,
      fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\"", kWidth, height));
}

}  // namespace fewbit

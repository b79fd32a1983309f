#include "src/eval/report_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/eval/svg.h"

namespace fewbit {
namespace {

constexpr double kWidth = 420, kMapWidth = 300, kLabels = 120, kRight = 16, kRow = 30;

std::string shortened(const std::string& name, size_t most = 16) {
  return name.size() <= most ? name : name.substr(0, most - 1) + "…";
}

std::string row_label(size_t i, const std::string& name) {
  return text(kLabels - 8, kRow * (static_cast<double>(i) + 0.5) + 8, shortened(name), "end");
}
double row_y(size_t i) { return kRow * (static_cast<double>(i) + 0.5) + 4; }
// Of one window there is no error, and no bar.
double error_of(const ReportModel& m) { return std::isnan(m.ln_ratio_stderr) ? 0 : m.ln_ratio_stderr; }

}  // namespace

std::string perplexity_chart(const Report& r) {
  double low = r.base.perplexity, high = r.base.perplexity;
  for (const ReportModel& m : r.models) {
    low = std::min(low, m.perplexity * (1 - error_of(m)));
    high = std::max(high, m.perplexity * (1 + error_of(m)));
  }
  const double margin = std::max((high - low) * 0.08, high * 1e-3);
  const Axis x{low - margin, high + margin, kLabels, kWidth - kRight};
  const double height = kRow * static_cast<double>(r.models.size()) + kAxis + 4;
  std::string s = bottom_axis(x, linear_ticks(x.from, x.to, 4), height, "perplexity");
  s += line(x.at(r.base.perplexity), 0, x.at(r.base.perplexity), height - kAxis, "base");
  for (size_t i = 0; i < r.models.size(); ++i) {
    const ReportModel& m = r.models[i];
    const double error = m.perplexity * error_of(m), y = row_y(i);
    s += row_label(i, m.name) + line(x.at(m.perplexity - error), y, x.at(m.perplexity + error), y, "whisker");
    s += dot(x.at(m.perplexity), y, fmt::format("{}: {:.4f} ({})", m.name, m.perplexity, shown_ratio(m)));
  }
  return svg(kWidth, height, "Perplexity of every checkpoint", s);
}

std::string divergence_chart(const Report& r) {
  double low = 1, high = 1e-6;
  for (const ReportModel& m : r.models) {
    low = std::min(low, std::max(m.kl_p50, 1e-7));
    high = std::max({high, m.kl_p99, m.kl_mean});
  }
  const Axis x = log_axis(low, high, kLabels, kWidth - kRight);
  const double height = kRow * static_cast<double>(r.models.size()) + kAxis + 4;
  std::string s =
      bottom_axis(x, powers_of_ten(x.from, x.to), height, "KL per token, nats: mean, median to 99th percentile");
  for (size_t i = 0; i < r.models.size(); ++i) {
    const ReportModel& m = r.models[i];
    const double y = row_y(i), p50 = std::max(m.kl_p50, x.from), p99 = std::max(m.kl_p99, x.from);
    s += row_label(i, m.name) + line(x.at(p50), y, x.at(p99), y, "span");
    s += dot(x.at(std::max(m.kl_mean, x.from)), y,
             fmt::format("{}: mean {:.5f}, median {:.5f}, p99 {:.5f}", m.name, m.kl_mean, m.kl_p50, m.kl_p99));
  }
  return svg(kWidth, height, "KL divergence from the baseline", s);
}

std::string bits_chart(const Report& r) {
  constexpr double kLeft = 62, kTop = 14, kBetweenCards = 115;
  // As high as the two charts beside it on a wide page, with what lies between them.
  const double height = std::max(280., 2 * (kRow * static_cast<double>(r.models.size()) + kAxis + 4) + kBetweenCards);
  double low = 1, high = 1e-6, least = 16, most = 0;
  for (const ReportModel& m : r.models) {
    low = std::min(low, std::max(m.kl_mean, 1e-7));
    high = std::max(high, m.kl_mean);
    least = std::min(least, m.bits);
    most = std::max(most, m.bits);
  }
  const Axis x{std::floor(least - 0.5), std::ceil(most + 0.5), kLeft, kWidth - kRight};
  const Axis y = log_axis(low, high, height - kAxis, kTop);
  std::string s = bottom_axis(x, linear_ticks(x.from, x.to, 6), height, "bits per weight, scales included");
  s += left_axis(y, powers_of_ten(y.from, y.to), kLeft, kWidth - kRight);
  s += text(kLeft, kTop - 4, "mean KL, nats", "start", " class=\"tick\"");
  // Labels of near dots stand one below the other.
  std::vector<const ReportModel*> order;
  for (const ReportModel& m : r.models) order.push_back(&m);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->kl_mean > b->kl_mean; });
  std::map<int, double> lowest;  // by side of the label: the last label's height
  for (const ReportModel* m : order) {
    const double px = x.at(m->bits), py = y.at(std::max(m->kl_mean, y.from));
    const bool left = px > kWidth * 0.6;
    double& last = lowest.try_emplace(left, -100.0).first->second;
    const double label = std::max(py + 4, last + 13);
    last = label;
    s += dot(px, py, fmt::format("{}: {:.3f} bits, KL {:.5f}", m->name, m->bits, m->kl_mean));
    s += text(left ? px - 9 : px + 9, label, shortened(m->name, 22), left ? "end" : "start");
  }
  return svg(kWidth, height, "Bits per weight against KL divergence", s);
}

double largest_error(const Report& r) {
  double most = 0;
  for (const ReportModel& m : r.models)
    for (const ReportLinear& l : m.linears) most = std::max(most, l.rel_error);
  return most;
}

std::string heat_map(const ReportModel& m, double largest) {
  std::vector<std::string> parts;
  std::map<int64_t, std::map<std::string, double>> cells;  // the mean over experts where a layer has many of a kind
  std::map<std::pair<int64_t, std::string>, int> counts;
  for (const ReportLinear& l : m.linears) {
    if (std::find(parts.begin(), parts.end(), l.part) == parts.end()) parts.push_back(l.part);
    double& mean = cells[l.layer][l.part];
    mean += (l.rel_error - mean) / ++counts[{l.layer, l.part}];
  }
  constexpr double kLeft = 28, kTop = 16;
  const double cell_w = (kMapWidth - kLeft) / static_cast<double>(std::max<size_t>(1, parts.size()));
  const double cell_h = cells.size() > 40 ? 6 : cells.size() > 16 ? 10 : 18;
  std::string s;
  for (size_t p = 0; p < parts.size(); ++p) {
    const std::string& name = parts[p];
    s += text(kLeft + cell_w * (static_cast<double>(p) + 0.5), 11, name.substr(0, name.find("_proj")), "middle",
              " class=\"tick\"");
  }
  double y = kTop;
  for (const auto& [layer, row] : cells) {
    if (cell_h >= 10 || layer % 4 == 0)
      s += text(kLeft - 6, y + cell_h / 2 + 4, std::to_string(layer), "end", " class=\"tick\"");
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto it = row.find(parts[p]);
      if (it == row.end()) continue;
      s += fmt::format(
          "<rect class=\"heat\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
          "fill-opacity=\"{:.3f}\">"
          "<title>layer {} {}: {:.4f}</title></rect>\n",
          kLeft + cell_w * static_cast<double>(p) + 1, y + 1, cell_w - 2, cell_h - 2,
          0.06 + 0.94 * (largest > 0 ? it->second / largest : 0), layer, escaped(parts[p]), it->second);
    }
    y += cell_h;
  }
  return svg(kMapWidth, y + 2, "Relative error of every linear of " + m.name, s);
}

}  // namespace fewbit

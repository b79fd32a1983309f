#include "src/eval/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fewbit {

std::string escaped(const std::string& s) {
  std::string out;
  for (const char c : s) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

double Axis::at(double v) const {
  const auto f = [&](double x) { return logarithmic ? std::log10(x) : x; };
  return begin + (f(v) - f(from)) / (f(to) - f(from)) * (end - begin);
}

Axis log_axis(double least, double most, double begin, double end) {
  const double from = std::pow(10, std::floor(std::log10(std::max(least, 1e-9))));
  const double to = std::pow(10, std::ceil(std::log10(std::max(most, from * 10)) - 1e-9));
  return {from, to, begin, end, true};
}

std::vector<double> linear_ticks(double from, double to, int wanted) {
  const double raw = (to - from) / wanted, power = std::pow(10, std::floor(std::log10(raw)));
  const double step = raw / power < 1.5   ? power
                      : raw / power < 3.5 ? 2 * power
                      : raw / power < 7.5 ? 5 * power
                                          : 10 * power;
  std::vector<double> ticks;
  for (double t = std::ceil(from / step) * step; t <= to + step * 1e-6; t += step) ticks.push_back(t);
  return ticks;
}

std::vector<double> powers_of_ten(double from, double to) {
  std::vector<double> ticks;
  for (double t = std::pow(10, std::ceil(std::log10(from) - 1e-9)); t <= to * 1.0001; t *= 10) ticks.push_back(t);
  return ticks;
}

double rounded_out(double v, bool up) {
  const double power = std::pow(10, std::floor(std::log10(v)));
  const double steps[] = {1, 2, 5, 10};
  double best = power * (up ? 10 : 1);
  for (const double s : steps)
    if (up ? s * power >= v * 0.999 : s * power <= v * 1.001) {
      best = s * power;
      if (up) break;
    }
  return best;
}

std::vector<double> log_ticks(const Axis& a) {
  std::vector<double> ticks = powers_of_ten(a.from, a.to);
  if (ticks.size() > 3) return ticks;
  ticks.clear();
  for (double power = std::pow(10, std::floor(std::log10(a.from))); power <= a.to * 1.001; power *= 10)
    for (const double s : {1., 2., 5.})
      if (s * power >= a.from * 0.999 && s * power <= a.to * 1.001) ticks.push_back(s * power);
  return ticks;
}

std::string text(double x, double y, const std::string& content, const char* anchor, const char* more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escaped(content));
}

std::string line(double x1, double y1, double x2, double y2, const char* kind) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kind, x1, y1, x2,
                     y2);
}

std::string dot(double x, double y, const std::string& title) {
  return fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"><title>{}</title></circle>\n", x, y,
                     escaped(title));
}

std::string bottom_axis(const Axis& axis, const std::vector<double>& ticks, double height, const std::string& name,
                        double top) {
  std::string s;
  for (const double t : ticks) {
    s += line(axis.at(t), top, axis.at(t), height - kAxis, "grid");
    s += text(axis.at(t), height - kAxis + 14, fmt::format("{:.6g}", t + 0.0), "middle", " class=\"tick\"");
  }
  return s + text((axis.begin + axis.end) / 2, height - 5, name, "middle", " class=\"tick\"");
}

std::string left_axis(const Axis& axis, const std::vector<double>& ticks, double left, double right) {
  std::string s;
  for (const double t : ticks)
    s += line(left, axis.at(t), right, axis.at(t), "grid") +
         text(left - 6, axis.at(t) + 4, fmt::format("{:.6g}", t), "end", " class=\"tick\"");
  return s;
}

std::string svg(double width, double height, const std::string& label, const std::string& body) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n", width, height,
                     escaped(label), body);
}

}  // namespace fewbit

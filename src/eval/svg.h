#pragma once
// The pieces that the report's charts are made of, as SVG text. Lengths are units of the view box; `kind` is a class of
// the page's style sheet.
#include <string>
#include <vector>

namespace fewbit {

std::string escaped(const std::string& text);  // for HTML and SVG

// Data to a length on one axis.
struct Axis {
  double from = 0, to = 1, begin = 0, end = 1;
  bool logarithmic = false;
  double at(double v) const;
};
// The range of positive values, widened to whole powers of ten.
Axis log_axis(double least, double most, double begin, double end);

// Round steps: 1, 2 or 5 times a power of ten, about `wanted` of them.
std::vector<double> linear_ticks(double from, double to, int wanted);
std::vector<double> powers_of_ten(double from, double to);
// An end of a logarithmic axis: the next 1, 2 or 5 times a power of ten, upwards or downwards.
double rounded_out(double v, bool up);
// Powers of ten, and 2 and 5 times them where there would be few.
std::vector<double> log_ticks(const Axis&);

inline constexpr double kAxis = 34;  // height of a bottom axis: numbers and its name
std::string text(double x, double y, const std::string& content, const char* anchor = "start", const char* more = "");
std::string line(double x1, double y1, double x2, double y2, const char* kind);
std::string dot(double x, double y, const std::string& title);
// Vertical grid lines from `top` on, numbers below them.
std::string bottom_axis(const Axis&, const std::vector<double>& ticks, double height, const std::string& name,
                        double top = 4);
// Horizontal grid lines from `left` to `right`, numbers before them.
std::string left_axis(const Axis&, const std::vector<double>& ticks, double left, double right);
// The element; `label` is what a screen reader says.
std::string svg(double width, double height, const std::string& label, const std::string& body);

}  // namespace fewbit

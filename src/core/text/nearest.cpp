#include "src/core/text/nearest.h"

#include <algorithm>
#include <cctype>

namespace fewbit {
namespace {

bool same(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  const size_t longer = std::max(a.size(), b.size()), apart = longer - std::min(a.size(), b.size());
  if (3 * apart > longer) return apart;
  const size_t width = b.size() + 1;
  std::vector<size_t> d((a.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> size_t& { return d[i * width + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t least =
          std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        least = std::min(least, at(i - 2, j - 2) + 1);
      at(i, j) = least;
    }
  return at(a.size(), b.size());
}

std::string_view nearest(std::string_view name, std::span<const std::string_view> known) {
  std::string_view best;
  size_t least = 0;
  for (const std::string_view k : known) {
    const size_t distance = edit_distance(name, k);
    if (3 * distance > std::max(name.size(), k.size()) || (!best.empty() && distance >= least)) continue;
    best = k;
    least = distance;
  }
  return best;
}

std::string unknown_name(std::string_view what, std::string_view name, std::span<const std::string_view> known) {
  std::string s = "unknown " + std::string(what) + " \"" + std::string(name) + "\";";
  if (const std::string_view near = nearest(name, known); !near.empty())
    s += " did you mean \"" + std::string(near) + "\"?";
  s += " known:";
  for (const std::string_view k : known) (s += ' ') += k;
  return s;
}

std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known) {
  const std::vector<std::string_view> views(known.begin(), known.end());
  return unknown_name(what, name, std::span(views));
}

}  // namespace fewbit

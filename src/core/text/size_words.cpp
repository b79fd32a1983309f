#include "src/core/text/size_words.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

namespace fewbit {

double bytes_in_words(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return 0;
  std::string unit;
  for (const char c : std::string_view(rest, static_cast<size_t>(end - rest)))
    if (c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  double scale = unit.empty() || unit == "b" ? 1 : 0;
  constexpr std::string_view kPrefixes = "kmgt";
  if (const size_t at = unit.empty() ? std::string::npos : kPrefixes.find(unit[0]); at != std::string::npos)
    for (const auto& [suffix, base] : {std::pair{"b", 1000.0}, {"ib", 1024.0}})
      if (unit.substr(1) == suffix) scale = std::pow(base, static_cast<double>(at + 1));
  return number * scale;
}

}  // namespace fewbit

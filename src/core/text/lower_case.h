#pragma once
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace fewbit {

// ASCII letters in lower case, all else as it is.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

}  // namespace fewbit

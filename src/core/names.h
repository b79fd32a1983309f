#pragma once
// Enum values and the words that users know them by, as a table of both.
#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/error.h"

namespace fewbit {

// Error{usage} that lists the table's names and says `what` was looked for.
template <class E, size_t N>
E from_name(const std::array<std::pair<E, std::string_view>, N>& table, std::string_view what, std::string_view name) {
  std::string known;
  for (const auto& [value, text] : table) {
    if (text == name) return value;
    known += fmt::format(" {}", text);
  }
  fail(ErrorKind::usage, fmt::format("unknown {} \"{}\"; known:{}", what, name, known));
}

template <class E, size_t N>
std::string_view to_name(const std::array<std::pair<E, std::string_view>, N>& table, E value) {
  for (const auto& [v, text] : table)
    if (v == value) return text;
  bug("an enum value without a name");
}

}  // namespace fewbit

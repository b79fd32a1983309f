#pragma once
// Enum values and the words that users know them by, as a table of both.
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/error.h"
#include "src/core/text/nearest.h"

namespace fewbit {

// Error{usage} with the table's nearest name and all of them; `what` was looked for.
template <class E, size_t N>
E from_name(const std::array<std::pair<E, std::string_view>, N>& table, std::string_view what, std::string_view name) {
  std::array<std::string_view, N> known;
  for (size_t i = 0; i < N; ++i) {
    if (table[i].second == name) return table[i].first;
    known[i] = table[i].second;
  }
  fail(ErrorKind::usage, unknown_name(what, name, known));
}

template <class E, size_t N>
std::string_view to_name(const std::array<std::pair<E, std::string_view>, N>& table, E value) {
  for (const auto& [v, text] : table)
    if (v == value) return text;
  bug("an enum value without a name");
}

}  // namespace fewbit

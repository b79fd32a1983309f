#pragma once
// Looking up entries of a registry, a list of pointers to constants with a `name`, for the name that a user wrote.
#include <string>
#include <string_view>
#include <vector>

#include "src/core/error.h"
#include "src/core/text/nearest.h"

namespace fewbit {

// The entry with this name, or null. `Entries`: a registry, or a list of some of its entries.
template <class Entries>
typename Entries::value_type find_named(const Entries& entries, std::string_view name) {
  for (const auto* e : entries)
    if (e->name == name) return e;
  return nullptr;
}

// The names, for an error that lists them.
template <class Entries>
std::vector<std::string_view> names_of(const Entries& entries) {
  std::vector<std::string_view> names;
  names.reserve(std::size(entries));
  for (const auto* e : entries) names.push_back(e->name);
  return names;
}

// The entry with this name, or Error{usage} with the nearest and the known ones. `what`: "packing".
template <class Entry>
const Entry& expect_named(const std::vector<const Entry*>& entries, std::string_view name, const char* what) {
  if (const Entry* e = find_named(entries, name)) return *e;
  fail(ErrorKind::usage, unknown_name(what, name, std::span<const std::string_view>(names_of(entries))));
}

}  // namespace fewbit

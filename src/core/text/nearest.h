#pragma once
// What a user probably meant by a name that does not exist.
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fewbit {

// Insertions, deletions, replacements and exchanges of neighbours that turn `a` into `b`, no place edited twice (the
// optimal string alignment of Damerau and Levenshtein). Upper and lower case are one. Where the lengths differ by more
// than a third of the longer, the answer is that difference, which is the least it can be: a name may be a megabyte.
size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `known`, the first of equals; "" where none is within a third of the longer one's length.
std::string_view nearest(std::string_view name, std::span<const std::string_view> known);

// `unknown WHAT "NAME"; did you mean "NEAREST"? known: a b c`, without the question where nothing is near.
std::string unknown_name(std::string_view what, std::string_view name, std::span<const std::string_view> known);
std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known);

}  // namespace fewbit

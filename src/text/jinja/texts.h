#pragma once
// Texts by code points: places, slices, searching, cutting.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/jinja/workspace.h"

namespace fewbit::jinja {

// The byte at which code point `index` (0 … length) begins.
size_t byte_of(const Text&, int64_t index);
// The code points in front of the byte.
int64_t index_of(const Text&, size_t byte);

// What a slice [start:stop:step] of `length` items takes: Python's rules for bounds that are absent, negative or
// outside.
struct Slice {
  int64_t first = 0, step = 1, count = 0;
};
Slice slice_of(Workspace&, int64_t length, const Value& start, const Value& stop, const Value& step);
Value sliced(Workspace&, const Value& text, const Slice&);

// As std::string::find and rfind, in linear time, and counted as work.
size_t found_in(Workspace&, std::string_view s, std::string_view what, size_t from = 0);
size_t found_last(Workspace&, std::string_view s, std::string_view what);

std::string replaced(Workspace&, const std::string& s, const std::string& from, const std::string& to, int64_t most);
// Cut at a separator, or at whitespace where it is absent, `most` times at most (-1: everywhere), from the left or the
// right.
std::vector<std::string> cut(Workspace&, const Value& text, std::optional<std::string> separator, int64_t most,
                             bool right);
std::vector<std::string> lines_of(std::string_view, bool keep_ends);
// Padded with `fill` to `width` code points: '<' left, '>' right, '^' as str.center does.
std::string padded(Workspace&, const Text&, int64_t width, const std::string& fill, char align);

}  // namespace fewbit::jinja

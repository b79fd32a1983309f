#pragma once
// Operators between values, as in Python; whole numbers have 64 bits, and what does not fit is refused.
#include <optional>
#include <string_view>

#include "src/text/jinja/syntax.h"
#include "src/text/jinja/workspace.h"

namespace fewbit::jinja {

Value arithmetic(Workspace&, Op, const Value& a, const Value& b);
Value negative(Workspace&, const Value&);
Value positive(Workspace&, const Value&);
bool compared(Workspace&, Op, const Value& a, const Value& b);
bool contains(Workspace&, const Value& in, const Value& what);

// Python's // and % of whole numbers: towards minus infinity, the rest has the divisor's sign. b is not 0.
int64_t floor_quotient(Workspace&, int64_t a, int64_t b);
int64_t floor_rest(int64_t a, int64_t b);

// `text % values` (format.cpp).
Value percent(Workspace&, const Value& text, const Value& values);

// What Python's int() and float() read; nullopt where they refuse. A whole number of more than 64 bits is refused.
std::optional<int64_t> whole_from(Workspace&, std::string_view, int base);
std::optional<double> real_from(std::string_view);
// A real without its fraction; refuses what has no 64 bits.
int64_t truncated(Workspace&, double);

}  // namespace fewbit::jinja

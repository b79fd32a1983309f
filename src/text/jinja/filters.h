#pragma once
// Filters and tests by name.
#include <functional>
#include <string>

#include "src/text/jinja/interpreter.h"

namespace fewbit::jinja {

bool has_filter(const std::string& name);
bool is_jinja_filter(const std::string& name);  // Jinja has it, here or not
bool has_test(const std::string& name);

// One use of a filter: what it is applied to and its arguments.
struct Use {
  Interpreter& in;
  const std::string& name;
  const Value& of;
  const Args& args;
  Workspace& w() const { return in.w; }
  Bound bound(std::initializer_list<const char*> parameters) const { return {in.w, name, args, parameters}; }
};
using Filter = Value (*)(const Use&);
Filter text_filter(const std::string& name);  // null where there is none
Filter list_filter(const std::string& name);

// How sort, map and others find what they compare: the value itself, or "a.b.0" of it; absent: the value.
using Getter = std::function<Value(const Value&)>;
Getter getter_of(const Use&, const Value* attribute, bool fold_case, const Value* otherwise = nullptr);

}  // namespace fewbit::jinja

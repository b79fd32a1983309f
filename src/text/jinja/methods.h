#pragma once
// Methods of texts, mappings and lists.
#include <string>

#include "src/text/jinja/interpreter.h"

namespace fewbit::jinja {

enum class Access : uint8_t {
  absent,   // no attribute of Python's type
  safe,     // a method; whether it is implemented shows when it is called
  unsafe,   // the sandbox hides it: it would change the value
  unknown,  // no method, and not implemented
};
Access has_method(Type, const std::string& name);

// Error{unsupported} for a method that is not implemented.
Value call_method(Workspace&, const Value& self, const std::string& name, const Args&);
Value text_method(Workspace&, const Value& self, const std::string& name, const Args&);

}  // namespace fewbit::jinja

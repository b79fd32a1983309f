#pragma once
// Values as texts: str(), repr() and json.dumps() of Python.
#include <optional>
#include <string>
#include <string_view>

#include "src/text/jinja/workspace.h"

namespace fewbit::jinja {

std::string str_of(Workspace&, const Value&);   // an undefined value is ""
std::string repr_of(Workspace&, const Value&);  // refuses what Python prints with an address
std::string repr_of(double);                    // shortest digits that read back
std::string repr_of(std::string_view text);

struct JsonStyle {
  bool ascii = false, sorted = false;
  std::optional<std::string> indent{};  // of one level; absent: all on one line
  std::string comma = ", ", colon = ": ";
};
// Refuses what json.dumps refuses.
std::string json_of(Workspace&, const Value&, const JsonStyle&);

std::string escaped(std::string_view);  // & < > " ' as HTML's entities

}  // namespace fewbit::jinja

#pragma once
// Where in a template something stands: the name and the line that messages begin with.
#include <string>

namespace fewbit::jinja {

struct Site {
  explicit Site(std::string name) : where(std::move(name)) {}
  std::string where;
  int line = 1;
  [[noreturn]] void refuse(const std::string& what) const;       // Error{checkpoint}
  [[noreturn]] void unsupported(const std::string& what) const;  // Error{unsupported}: `what` is not implemented
};

}  // namespace fewbit::jinja

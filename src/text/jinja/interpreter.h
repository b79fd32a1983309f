#pragma once
// Runs a syntax tree. What filters, tests and methods need of it is public.
#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/jinja/loop.h"
#include "src/text/jinja/workspace.h"

namespace fewbit::jinja {

struct Args {
  std::vector<Value> positional{};
  std::vector<std::pair<const Text*, Value>> named{};
};

// Arguments under the names of parameters: absent ones have no value.
class Bound {
 public:
  // Error{checkpoint} naming `what` for too many arguments and unknown names.
  Bound(Workspace&, const std::string& what, const Args&, std::initializer_list<const char*> parameters);
  bool has(size_t i) const { return present_[i]; }
  const Value& at(size_t i) const { return values_[i]; }
  const Value& required(size_t i) const;
  // The argument, or the default where it is absent. Refuses values of another kind.
  std::string text(size_t i, const std::string& otherwise) const;
  int64_t integer(size_t i, int64_t otherwise) const;
  bool truth(size_t i, bool otherwise) const { return present_[i] ? truthy(values_[i]) : otherwise; }
  Value value(size_t i, Value otherwise) const { return present_[i] ? values_[i] : otherwise; }

 private:
  Workspace& w_;
  std::string what_;
  std::vector<std::string> names_;
  std::vector<Value> values_;
  std::vector<bool> present_;
};

class Interpreter {
 public:
  Interpreter(const Syntax&, Workspace&);
  void give(const std::string& name, Value value);  // a variable of the template
  std::string run();

  Workspace& w;
  Value attribute(const Value& of, const Text* name);  // of.name
  Value item(const Value& of, const Value& key);       // of[key]
  Value call(const Value& f, const Args&);
  Value filter(const std::string& name, const Value& of, const Args&);
  bool test(const std::string& name, const Value& of, const Args&);

 private:
  enum class Flow : uint8_t { on, leave, skip };
  class Capture;

  Flow run(const std::vector<Node>&);
  Flow run(const Node&);
  Flow conditional(const Node&);
  Flow loop(const Node&);
  bool run_loop(const Node&, Loop&);
  bool fetch(Loop&);
  void with(const Node&);
  void macro(const Node&);
  void print(const std::string& text);
  void assign(const Expr& target, const Value&);
  std::string captured(const std::vector<Node>&, const std::vector<Symbol>& hidden);
  Scope* open(Scope* around, const std::vector<Symbol>& hidden);

  Value eval(const Expr&);
  Value variable(const Expr&);
  Value logic(const Expr&);
  Value chain(const Expr&);
  Value compare(const Expr&);
  Value concat(const Expr&);
  Value display(const Expr&);
  Value slice(const Expr&, const Value& of);
  Value lookup(const Expr&);
  Value filter(const Expr&);
  Value test(const Expr&);
  Value call(const Expr&, const Value* caller = nullptr);
  Args arguments(const Expr&);
  Value call_macro(const Macro&, const Args&);
  Value call_loop(Loop&, const Args&);
  Value loop_attribute(Loop&, const std::string& name);
  Value loop_method(Loop&, const std::string& name, const Args&);
  Value builtin(int64_t which, const Args&);

  const Syntax& syntax_;
  std::deque<Scope> scopes_{};
  std::deque<Loop> loops_{};
  std::deque<Macro> macros_{};
  Scope* scope_ = nullptr;
  std::string out_{};
  Value captured_{};
};

// Functions that every template has, by number.
inline constexpr const char* kFunctions[] = {"range",        "dict",   "namespace", "raise_exception",
                                             "strftime_now", "lipsum", "cycler",    "joiner"};

}  // namespace fewbit::jinja

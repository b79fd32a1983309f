#pragma once
// What runs: scopes of variables, a loop that is under way, a macro.
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/text/jinja/syntax.h"
#include "src/text/jinja/workspace.h"

namespace fewbit::jinja {

// Names that are compared, or scopes that are entered, for the price of one step.
inline constexpr size_t kLooksInAStep = 16;

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<Symbol, Value>> variables{};
  bool kept = false;  // a macro refers to it

  Value* find(Symbol symbol) {
    for (auto& [s, v] : variables)
      if (s == symbol) return &v;
    return nullptr;
  }
  void set(Symbol symbol, Value value) {
    if (Value* v = find(symbol))
      *v = value;
    else
      variables.emplace_back(symbol, value);
  }
};

struct Loop {
  const Node* node = nullptr;
  Scope* around = nullptr;
  int depth = 0;
  const std::vector<Value>* items = nullptr;
  size_t next = 0;  // in items: the first that was not looked at
  // Where the loop has a filter: items that passed it, as far as anybody asked: the filter may see what the body
  // changed.
  std::vector<Value> passed{};
  size_t index = 0;  // of the current item in ready()
  Value changed{};
  bool has_changed = false;

  const std::vector<Value>& ready() const { return node->condition ? passed : *items; }
};

struct Macro {
  const Node* node = nullptr;
  Scope* around = nullptr;
};

std::string loop_text(const Loop&);
std::string macro_text(const Macro&);

}  // namespace fewbit::jinja

#pragma once
// The syntax tree of a template.
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "src/text/jinja/site.h"
#include "src/text/jinja/value.h"

namespace fewbit::jinja {

using Symbol = int32_t;  // a variable's name: its place in Syntax::names

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
enum class Op : uint8_t { add, sub, mul, div, floor_div, mod, pow, eq, ne, lt, le, gt, ge, in, not_in };

struct Expr {
  enum class Kind : uint8_t {
    literal,      // value
    name,         // symbol, text
    list,         // args
    tuple,        // args
    dict,         // args: key, value, key, value …
    attribute,    // args[0].text
    index,        // args[0][args[1]]
    slice,        // args[0][args[1]:args[2]:args[3]], bounds may be null
    call,         // args[0](args[1] …)
    filter,       // args[0] | text(args[1] …)
    test,         // args[0] is text(args[1] …)
    negative,     // -args[0]
    positive,     // +args[0]
    inverse,      // not args[0]
    both,         // args[0] and args[1] and …
    either,       // args[0] or args[1] or …
    chain,        // args[0] ops[0] args[1] ops[1] …, from the left
    compare,      // the same, each pair compared
    concat,       // args[0] ~ args[1] ~ …
    conditional,  // args[0] if args[1] else args[2], which may be null
    captured,     // what the block around rendered: the subject of its filters
  };
  Kind kind = Kind::literal;
  int line = 1;
  Value value{};
  Symbol symbol = -1;
  const Text* text = nullptr;
  std::vector<ExprPtr> args{};
  std::vector<Op> ops{};
  std::vector<const Text*> keywords{};  // of the last keywords.size() of args
  ExprPtr more{}, more_named{};         // *args and **kwargs of a call
};

struct Node;
struct Branch {
  ExprPtr condition{};     // null: else
  std::vector<Node> body;  // without {}, which would need the whole of Node here
};
struct Node {
  enum class Kind : uint8_t {
    text,         // value
    output,       // expr
    set,          // target = expr
    set_block,    // target = body, through expr where there are filters
    conditional,  // branches
    loop,         // target in expr if condition: body, else: otherwise
    macro,        // symbol(parameters): body
    call,         // expr, a call, with body as its caller(parameters)
    filter,       // body through expr
    with,         // targets = values: body
    scope,        // body: a generation block
    leave,        // break
    skip,         // continue
  };
  Kind kind = Kind::text;
  int line = 1;
  Value value{};
  ExprPtr expr{}, condition{};
  std::vector<ExprPtr> targets{};  // names, tuples of them, attributes of namespaces
  std::vector<ExprPtr> values{};   // of with; the defaults of the last parameters
  std::vector<Branch> branches{};
  std::vector<Node> body{}, otherwise{};
  const Text* text = nullptr;  // a macro's name
  Symbol symbol = -1;
  std::vector<Symbol> parameters{};
  bool recursive = false, uses_caller = false, uses_kwargs = false, uses_varargs = false;
  // Names that the body sets before it reads them and that nothing around it has: undefined until they are set,
  // whatever the variables given say.
  std::vector<Symbol> hidden{};
};

struct Syntax {
  std::string where{};
  std::vector<Node> nodes{};
  std::vector<Symbol> hidden{};
  std::vector<std::string> names{};
  std::deque<Text> texts{};
};

// Fills Node::hidden and Syntax::hidden.
void find_hidden(Syntax&);

}  // namespace fewbit::jinja

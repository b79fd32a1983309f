#pragma once
// The subset of Jinja that chat templates are written in: syntax tree, parser, interpreter.
// docs/chat-templates.md lists what is understood; everything else is refused by name.
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fewbit::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
using Literal = std::variant<std::monostate, bool, int64_t, std::string>;  // monostate = none

struct Expr {
  enum class Kind : uint8_t {
    literal,      // literal
    name,         // text
    list,         // args
    attribute,    // args[0].text
    index,        // args[0][args[1]]
    slice,        // args[0][args[1]:args[2]:args[3]], bounds may be null
    call,         // text(args), keywords for namespace()
    method,       // args[0].text(args[1] …)
    filter,       // args[0] | text(args[1] …)
    test,         // args[0] is text
    unary,        // text args[0]
    binary,       // args[0] text args[1]
    conditional,  // args[0] if args[1] else args[2] (may be null)
  };
  Kind kind = Kind::literal;
  Literal literal{};
  std::string text{};
  std::vector<ExprPtr> args{};
  std::vector<std::string> keywords{};  // of the last keywords.size() arguments of a call
};

struct Node;
struct Branch {
  ExprPtr condition{};  // null: else
  std::vector<Node> body{};
};
struct Node {
  enum class Kind : uint8_t { text, output, set, conditional, loop };
  Kind kind = Kind::text;
  std::string text{};                  // text; the name that set assigns
  std::string attribute{};             // set NAME.attribute
  std::vector<std::string> targets{};  // of a loop
  ExprPtr value{};                     // output, set; what a loop runs over
  ExprPtr filter{};                    // for … in … if filter
  std::vector<Branch> branches{};      // conditional
  std::vector<Node> body{};            // loop
};

// Whitespace as Hugging Face renders: trim_blocks and lstrip_blocks are on. Error{unsupported} names a
// construct outside of the subset and its line, Error{checkpoint} what is no valid template; both begin with
// `where`.
std::vector<Node> parse(std::string_view source, const std::string& where);

// `variables` is a JSON object. Error{checkpoint} for what the template refuses itself (raise_exception) and
// for operations on values of the wrong kind; Error{unsupported} for functions that do not exist here.
std::string render(const std::vector<Node>&, const std::string& variables_json, const std::string& where);

}  // namespace fewbit::jinja

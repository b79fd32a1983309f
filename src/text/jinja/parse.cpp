// Tags become nodes.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/text/jinja/jinja.h"
#include "src/text/jinja/parse_expression.h"

namespace fewbit::jinja {
namespace {

using Kind = Token::Kind;

constexpr int64_t kLongestSource = int64_t{1} << 20;  // templates have some ten thousand bytes

// Tags of Jinja that are not here.
constexpr std::array kOtherTags =
    std::to_array<std::string_view>({"block", "extends", "include", "import", "from", "autoescape"});

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  std::vector<Node> run() { return until({}); }

 private:
  using Ends = std::initializer_list<std::string_view>;

  Node make_node(Node::Kind kind) const {
    Node n;
    n.kind = kind;
    n.line = site_.line;
    return n;
  }

  // The nodes up to a tag whose first word is one of `ends`, which is read; to the end of the text where there are
  // none.
  std::vector<Node> until(Ends ends) {
    if (++depth_ > kParseDepth)
      site_.refuse(fmt::format("tags and brackets are nested more than {} deep", kParseDepth));
    std::vector<Node> nodes;
    while (!is(Kind::end)) {
      if (is(Kind::data)) {
        nodes.push_back(make_node(Node::Kind::text));
        nodes.back().value = Value::of(text(next().text));
      } else if (is(Kind::output_begin)) {
        next();
        nodes.push_back(make_node(Node::Kind::output));
        nodes.back().expr = tuple();
        expect(Kind::output_end);
      } else {
        expect(Kind::block_begin);
        if (is(Kind::name) && std::find(ends.begin(), ends.end(), peek().text) != ends.end()) {
          --depth_;
          ended_by_ = next().text;
          return nodes;
        }
        nodes.push_back(block());
      }
    }
    if (ends.size() > 0) site_.refuse(fmt::format("{{% {} %}} is missing", *(ends.end() - 1)));
    --depth_;
    return nodes;
  }
  std::vector<Node> body(Ends ends) {
    expect(Kind::block_end);
    return until(ends);
  }
  // A body that becomes a text: `break` cannot leave it.
  std::vector<Node> captured_body(Ends ends) {
    const int loops = std::exchange(loops_, 0);
    std::vector<Node> nodes = body(ends);
    loops_ = loops;
    return nodes;
  }

  Node block() {
    const std::string word = name();
    Node n = tag(word);
    expect(Kind::block_end);
    return n;
  }
  Node tag(const std::string& word) {
    if (word == "if") return conditional();
    if (word == "for") return loop();
    if (word == "set") return assignment();
    if (word == "macro") return macro();
    if (word == "call") return call();
    if (word == "filter") return filter();
    if (word == "with") return with();
    if (word == "generation") {
      Node n = make_node(Node::Kind::scope);
      n.body = captured_body({"endgeneration"});
      return n;
    }
    if (word == "break" || word == "continue") {
      if (!loops_) site_.refuse(fmt::format("\"{}\" outside of a loop", word));
      return make_node(word == "break" ? Node::Kind::leave : Node::Kind::skip);
    }
    if (std::find(kOtherTags.begin(), kOtherTags.end(), word) != kOtherTags.end())
      site_.unsupported(fmt::format("the tag \"{}\"", word));
    site_.refuse(fmt::format("there is no tag \"{}\" here", word));
  }

  Node conditional() {
    Node n = make_node(Node::Kind::conditional);
    for (;;) {
      ExprPtr condition = tuple(false);
      n.branches.push_back({std::move(condition), body({"elif", "else", "endif"})});
      if (ended_by_ == "elif") continue;
      if (ended_by_ == "else") n.branches.push_back({nullptr, body({"endif"})});
      return n;
    }
  }

  Node loop() {
    Node n = make_node(Node::Kind::loop);
    n.targets.push_back(target("in", false));
    check_targets(*n.targets[0]);
    if (!accept_name("in")) unexpected("\"in\"");
    n.expr = tuple(false, "recursive");
    if (accept_name("if")) n.condition = expression();
    n.recursive = accept_name("recursive");
    n.symbol = symbol("loop");
    ++loops_;
    n.body = body({"else", "endfor"});
    --loops_;
    if (ended_by_ == "else") n.otherwise = body({"endfor"});
    return n;
  }
  void check_targets(const Expr& e) {
    if (e.kind == Expr::Kind::name && e.text->bytes == "loop")
      site_.refuse("\"loop\" cannot be the variable of a loop");
    for (const ExprPtr& part : e.args) check_targets(*part);
  }

  Node assignment() {
    Node n = make_node(Node::Kind::set);
    n.targets.push_back(target("", true));
    if (loops_) check_targets(*n.targets[0]);
    if (accept("=")) {
      n.expr = tuple();
      return n;
    }
    n.kind = Node::Kind::set_block;
    n.expr = filters(make(Expr::Kind::captured));
    n.body = captured_body({"endset"});
    return n;
  }

  void signature(Node& n) {
    expect("(");
    while (!is_symbol(")")) {
      if (!n.parameters.empty()) expect(",");
      const std::string parameter = name();
      if (parameter == "caller") site_.unsupported("a parameter named \"caller\"");
      n.parameters.push_back(symbol(parameter));
      if (accept("="))
        n.values.push_back(expression());
      else if (!n.values.empty())
        site_.refuse("a parameter without a default stands behind one with a default");
    }
    expect(")");
  }
  // The body of a macro or of a call: what it may be called with depends on the names in it.
  void callable_body(Node& n, std::string_view end) {
    macros_.emplace_back();
    n.body = captured_body({end});
    n.uses_caller = macros_.back().caller;
    n.uses_kwargs = macros_.back().kwargs && !has_parameter(n, "kwargs");
    n.uses_varargs = macros_.back().varargs && !has_parameter(n, "varargs");
    macros_.pop_back();
    for (const char* word : {"caller", "kwargs", "varargs"}) symbol(word);
  }
  bool has_parameter(const Node& n, const std::string& word) {
    return std::find(n.parameters.begin(), n.parameters.end(), symbol(word)) != n.parameters.end();
  }

  Node macro() {
    Node n = make_node(Node::Kind::macro);
    const std::string word = name();
    n.text = text(word);
    n.symbol = symbol(word);
    signature(n);
    callable_body(n, "endmacro");
    return n;
  }
  Node call() {
    Node n = make_node(Node::Kind::call);
    if (is_symbol("(")) signature(n);
    n.expr = expression();
    if (n.expr->kind != Expr::Kind::call) site_.refuse("\"call\" needs a call, such as {% call f() %}");
    n.text = text("caller");
    callable_body(n, "endcall");
    return n;
  }
  Node filter() {
    Node n = make_node(Node::Kind::filter);
    n.expr = filters(make(Expr::Kind::captured), true);
    n.body = captured_body({"endfilter"});
    return n;
  }
  Node with() {
    Node n = make_node(Node::Kind::with);
    while (!is(Kind::block_end)) {
      if (!n.targets.empty()) expect(",");
      n.targets.push_back(target_part_of_with());
      expect("=");
      n.values.push_back(expression());
    }
    n.body = body({"endwith"});
    return n;
  }
  ExprPtr target_part_of_with() {
    ExprPtr e = make(Expr::Kind::name);
    const std::string word = name();
    e->symbol = symbol(word);
    e->text = text(word);
    return e;
  }

  std::string ended_by_{};
  int loops_ = 0;  // that break and continue can reach
};

}  // namespace

Template Template::parse(std::string_view source, const std::string& where) {
  auto syntax = std::make_unique<Syntax>();
  syntax->where = where;
  Site site(where);
  if (static_cast<int64_t>(source.size()) > kLongestSource)
    site.refuse(fmt::format("the template has {} bytes; {} are allowed", source.size(), kLongestSource));
  std::vector<Token> tokens = lex(source, site);
  site.line = tokens[0].line;
  Parser parser(std::move(tokens), *syntax, site);
  syntax->nodes = parser.run();
  find_hidden(*syntax);
  return Template(std::move(syntax));
}

}  // namespace fewbit::jinja

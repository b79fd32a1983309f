// The parser: pieces become nodes, and what is inside of a tag a tree, by recursive descent with Jinja's
// precedence.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/core/error.h"
#include "src/text/jinja.h"
#include "src/text/jinja_lex.h"

namespace fewbit::jinja {
namespace {

constexpr std::array kFilters = std::to_array<std::string_view>(
    {"trim", "length", "count", "tojson", "upper", "lower", "join", "first", "last", "default", "string", "safe"});
constexpr std::array kTests =
    std::to_array<std::string_view>({"defined", "undefined", "none", "string", "mapping", "iterable", "sequence",
                                     "boolean", "number", "true", "false"});
constexpr std::array kMethods = std::to_array<std::string_view>(
    {"strip", "lstrip", "rstrip", "startswith", "endswith", "split", "upper", "lower", "replace", "items", "get"});

ExprPtr make(Expr::Kind kind, std::string text = "") {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->text = std::move(text);
  return e;
}
template <class... Args>
ExprPtr make_with(Expr::Kind kind, std::string text, Args... args) {
  ExprPtr e = make(kind, std::move(text));
  (e->args.push_back(std::move(args)), ...);
  return e;
}

// The inside of one tag.
class Phrase {
 public:
  Phrase(const Piece& piece, Refuser& refuse) : refuse_(refuse) {
    refuse.line = piece.line;
    tokens_ = tokens_of(piece.content, refuse);
  }
  const Token& peek() const { return tokens_[at_]; }
  bool done() const { return peek().kind == Token::Kind::end; }
  bool is(std::string_view text) const { return peek().kind != Token::Kind::string && peek().text == text; }
  bool accept(std::string_view text) { return is(text) && (++at_, true); }
  void expect(std::string_view text) {
    if (!accept(text)) refuse_.broken(fmt::format("expected \"{}\", found \"{}\"", text, peek().text));
  }
  void finish() {
    if (!done()) refuse_.unsupported(fmt::format("\"{}\"", peek().text));
  }
  std::string name() {
    if (peek().kind != Token::Kind::name) refuse_.broken(fmt::format("expected a name, found \"{}\"", peek().text));
    return tokens_[at_++].text;
  }

  ExprPtr expression() {
    ExprPtr value = any_of();
    if (!accept("if")) return value;
    ExprPtr condition = any_of();
    ExprPtr otherwise = accept("else") ? expression() : nullptr;
    return make_with(Expr::Kind::conditional, "", std::move(value), std::move(condition), std::move(otherwise));
  }
  ExprPtr any_of() {
    ExprPtr e = all_of();
    while (accept("or")) e = make_with(Expr::Kind::binary, "or", std::move(e), all_of());
    return e;
  }

 private:
  ExprPtr all_of() {
    ExprPtr e = negated();
    while (accept("and")) e = make_with(Expr::Kind::binary, "and", std::move(e), negated());
    return e;
  }
  ExprPtr negated() {
    if (accept("not")) return make_with(Expr::Kind::unary, "not", negated());
    return compared();
  }
  ExprPtr compared() {
    ExprPtr e = chain(0);
    for (;;) {
      if (accept("not")) {
        expect("in");
        e = make_with(Expr::Kind::unary, "not", make_with(Expr::Kind::binary, "in", std::move(e), chain(0)));
        continue;
      }
      std::string op;
      for (const char* o : {"==", "!=", "<=", ">=", "<", ">", "in"})
        if (op.empty() && accept(o)) op = o;
      if (op.empty()) return e;
      e = make_with(Expr::Kind::binary, op, std::move(e), chain(0));
    }
  }
  // Left-associative operators, loosest first.
  ExprPtr chain(size_t level) {
    static const std::vector<std::vector<const char*>> kLevels = {{"~"}, {"+", "-"}, {"*", "//", "%"}};
    if (level == kLevels.size()) return signed_value();
    ExprPtr e = chain(level + 1);
    for (;;) {
      std::string op;
      for (const char* o : kLevels[level])
        if (op.empty() && accept(o)) op = o;
      if (op.empty()) return e;
      e = make_with(Expr::Kind::binary, op, std::move(e), chain(level + 1));
    }
  }
  ExprPtr signed_value() {
    if (accept("-")) return make_with(Expr::Kind::unary, "-", signed_value());
    return filtered(primary());
  }

  ExprPtr filtered(ExprPtr e) {
    for (;;) {
      if (accept("|")) {
        const std::string filter = name();
        if (!listed(kFilters, filter)) refuse_.unsupported(fmt::format("the filter \"{}\"", filter));
        e = make_with(Expr::Kind::filter, filter, std::move(e));
        if (accept("(")) arguments(*e);
      } else if (accept("is")) {
        const bool negative = accept("not");
        const std::string test = name();
        if (!listed(kTests, test)) refuse_.unsupported(fmt::format("the test \"{}\"", test));
        e = make_with(Expr::Kind::test, test, std::move(e));
        if (negative) e = make_with(Expr::Kind::unary, "not", std::move(e));
      } else {
        return e;
      }
    }
  }

  ExprPtr primary() {
    const Token t = peek();
    if (t.kind == Token::Kind::end) refuse_.broken("an expression ends too early");
    ++at_;
    ExprPtr e;
    if (t.kind == Token::Kind::string) {
      e = make(Expr::Kind::literal);
      e->literal = t.text;
    } else if (t.kind == Token::Kind::number) {
      if (t.text.size() > 18 || !std::all_of(t.text.begin(), t.text.end(), [](char c) { return c >= '0' && c <= '9'; }))
        refuse_.unsupported(fmt::format("the number \"{}\"", t.text));
      e = make(Expr::Kind::literal);
      e->literal = int64_t{std::stoll(t.text)};
    } else if (t.kind == Token::Kind::name) {
      e = name_or_constant(t.text);
    } else if (t.text == "(") {
      e = expression();
      expect(")");
    } else if (t.text == "[") {
      e = make(Expr::Kind::list);
      while (!accept("]")) {
        e->args.push_back(expression());
        if (!is("]")) expect(",");
      }
    } else {
      refuse_.unsupported(fmt::format("\"{}\" in an expression", t.text));
    }
    return postfix(std::move(e));
  }

  ExprPtr name_or_constant(const std::string& word) {
    ExprPtr e = make(Expr::Kind::literal);
    if (word == "true" || word == "True" || word == "false" || word == "False")
      e->literal = word[0] == 't' || word[0] == 'T';
    else if (word != "none" && word != "None")
      e = make(Expr::Kind::name, word);
    return e;
  }

  ExprPtr postfix(ExprPtr e) {
    for (;;) {
      if (accept(".")) {
        const std::string attribute = name();
        if (!accept("(")) {
          e = make_with(Expr::Kind::attribute, attribute, std::move(e));
          continue;
        }
        if (!listed(kMethods, attribute)) refuse_.unsupported(fmt::format("the method \"{}\"", attribute));
        e = make_with(Expr::Kind::method, attribute, std::move(e));
        arguments(*e);
      } else if (accept("[")) {
        e = subscript(std::move(e));
      } else if (is("(")) {
        if (e->kind != Expr::Kind::name) refuse_.unsupported("calling the result of an expression");
        ++at_;
        e = make(Expr::Kind::call, e->text);
        arguments(*e);
      } else {
        return e;
      }
    }
  }

  ExprPtr subscript(ExprPtr of) {
    std::array<ExprPtr, 3> bounds{};
    size_t colons = 0;
    while (!accept("]")) {
      if (accept(":")) {
        if (++colons > 2) refuse_.broken("a slice has at most two colons");
      } else {
        bounds[colons] = expression();
      }
    }
    if (colons == 0 && !bounds[0]) refuse_.broken("an empty subscript");
    if (colons == 0) return make_with(Expr::Kind::index, "", std::move(of), std::move(bounds[0]));
    return make_with(Expr::Kind::slice, "", std::move(of), std::move(bounds[0]), std::move(bounds[1]),
                     std::move(bounds[2]));
  }

  void arguments(Expr& call) {
    while (!accept(")")) {
      if (peek().kind == Token::Kind::name && tokens_[at_ + 1].text == "=" &&
          tokens_[at_ + 1].kind == Token::Kind::symbol) {
        call.keywords.push_back(name());
        expect("=");
      }
      call.args.push_back(expression());
      if (!is(")")) expect(",");
    }
  }

  Refuser& refuse_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

class Parser {
 public:
  Parser(std::vector<Piece> pieces, Refuser& refuse) : pieces_(std::move(pieces)), refuse_(refuse) {}

  std::vector<Node> run() {
    std::vector<Node> nodes = until({});
    return nodes;
  }

 private:
  // The nodes up to a block whose first word is one of `ends` (which is left), or to the end of the text.
  std::vector<Node> until(const std::vector<std::string_view>& ends) {
    std::vector<Node> nodes;
    for (; at_ < pieces_.size(); ++at_) {
      const Piece& piece = pieces_[at_];
      if (piece.kind == Piece::Kind::text) {
        Node n;
        n.text = piece.content;
        nodes.push_back(std::move(n));
        continue;
      }
      Phrase phrase(piece, refuse_);
      if (piece.kind == Piece::Kind::output) {
        Node n;
        n.kind = Node::Kind::output;
        n.value = phrase.expression();
        phrase.finish();
        nodes.push_back(std::move(n));
        continue;
      }
      if (phrase.peek().kind == Token::Kind::name && listed(ends, std::string_view(phrase.peek().text))) return nodes;
      nodes.push_back(block(phrase));
    }
    if (!ends.empty()) refuse_.broken(fmt::format("{{% {} %}} is missing", ends.back()));
    return nodes;
  }

  Node block(Phrase& phrase) {
    const std::string word = phrase.name();
    if (word == "if") return conditional(phrase);
    if (word == "for") return loop(phrase);
    if (word == "set") return assignment(phrase);
    refuse_.unsupported(fmt::format("the tag \"{}\"", word));
  }

  Node assignment(Phrase& phrase) {
    Node n;
    n.kind = Node::Kind::set;
    n.text = phrase.name();
    if (phrase.accept(".")) n.attribute = phrase.name();
    if (!phrase.accept("=")) refuse_.unsupported("\"set\" without a value (or with several names)");
    n.value = phrase.expression();
    phrase.finish();
    return n;
  }

  Node conditional(Phrase& first) {
    Node n;
    n.kind = Node::Kind::conditional;
    Phrase phrase = std::move(first);
    for (ExprPtr condition = phrase.expression();;) {
      phrase.finish();
      ++at_;
      n.branches.push_back({std::move(condition), until({"elif", "else", "endif"})});
      Phrase next(pieces_[at_], refuse_);
      const std::string word = next.name();
      if (word == "elif") {
        condition = next.expression();
        next.finish();
        continue;
      }
      if (word == "else") {
        ++at_;
        n.branches.push_back({nullptr, until({"endif"})});
      }
      return n;
    }
  }

  Node loop(Phrase& phrase) {
    Node n;
    n.kind = Node::Kind::loop;
    do n.targets.push_back(phrase.name());
    while (phrase.accept(","));
    phrase.expect("in");
    n.value = phrase.any_of();
    if (phrase.accept("if")) n.filter = phrase.any_of();
    phrase.finish();
    ++at_;
    n.body = until({"else", "endfor"});
    if (Phrase(pieces_[at_], refuse_).is("else")) refuse_.unsupported("\"else\" of a loop");
    return n;
  }

  std::vector<Piece> pieces_;
  Refuser& refuse_;
  size_t at_ = 0;
};

}  // namespace

std::vector<Node> parse(std::string_view source, const std::string& where) {
  Refuser refuse(where);
  std::vector<Piece> pieces = cut(source, refuse);
  return Parser(std::move(pieces), refuse).run();
}

}  // namespace fewbit::jinja

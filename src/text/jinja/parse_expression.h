#pragma once
// Expressions, by recursive descent with Jinja's precedence.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/jinja/lex.h"
#include "src/text/jinja/syntax.h"

namespace fewbit::jinja {

// Levels of the descent; a bracket in a bracket takes four. The stack bears many more.
inline constexpr int kParseDepth = 400;

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, Syntax& syntax, Site& site)
      : syntax_(syntax), site_(site), tokens_(std::move(tokens)) {}

 protected:
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool is(Token::Kind kind) const { return peek().kind == kind; }
  bool is_name(std::string_view word, size_t ahead = 0) const {
    return peek(ahead).kind == Token::Kind::name && peek(ahead).text == word;
  }
  bool is_symbol(std::string_view s) const { return peek().kind == Token::Kind::symbol && peek().text == s; }
  bool accept_name(std::string_view word) { return is_name(word) && (next(), true); }
  bool accept(std::string_view symbol) { return is_symbol(symbol) && (next(), true); }
  Token next();
  void expect(std::string_view symbol);
  void expect(Token::Kind kind);
  std::string name();  // the next token, which must be one
  [[noreturn]] void unexpected(std::string_view wanted);

  ExprPtr expression();        // with `a if b else c`
  ExprPtr plain_expression();  // without
  // Commas make a tuple. `end` is a name that ends it ("" for none).
  ExprPtr tuple(bool conditional = true, std::string_view end = "", bool in_parentheses = false);
  // Names, tuples of names, and with `spaces` attributes of namespaces: what a value may be assigned to.
  ExprPtr target(std::string_view end, bool spaces);
  ExprPtr filters(ExprPtr of, bool bar_read = false);

  ExprPtr make(Expr::Kind kind);
  Symbol symbol(const std::string& name);
  const Text* text(const std::string& bytes);

  struct Uses {  // names of which a macro must know that its body has them
    bool caller = false, kwargs = false, varargs = false;
  };
  std::vector<Uses> macros_{};  // around what is being parsed
  Syntax& syntax_;
  Site& site_;
  int depth_ = 0;

 private:
  // One level deeper for as long as it lives.
  struct Level {
    explicit Level(ExpressionParser& p) : parser(p) {
      if (++p.depth_ > kParseDepth) p.too_deep();
    }
    ~Level() { --parser.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ExpressionParser& parser;
  };
  [[noreturn]] void too_deep();
  // One level deeper for what stands in front of it, as in a|b|c: until whoever reads the row sets depth_ back.
  void one_more_in_a_row(std::string_view what);
  ExprPtr any_of();
  ExprPtr all_of();
  ExprPtr negated();
  ExprPtr compared();
  ExprPtr sum();
  ExprPtr joined();
  ExprPtr product();
  ExprPtr power();
  ExprPtr signed_value(bool with_filters = true);
  ExprPtr primary();
  ExprPtr primary_name(const std::string& word);
  ExprPtr postfix(ExprPtr);
  ExprPtr filtered(ExprPtr);
  ExprPtr test(ExprPtr);
  ExprPtr subscript(ExprPtr);
  ExprPtr list_display();
  ExprPtr dict_display();
  ExprPtr number();
  ExprPtr target_part(bool spaces);
  void arguments(Expr& call);
  bool tuple_ends(std::string_view end) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::map<std::string, Symbol> symbols_{};
  std::map<std::string, const Text*> texts_{};
};

}  // namespace fewbit::jinja

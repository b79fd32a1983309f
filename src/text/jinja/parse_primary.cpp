// What expressions are made of: names, literals, what is assigned to, and what stands behind them.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/text/jinja/parse_expression.h"

namespace fewbit::jinja {

using Kind = Token::Kind;

ExprPtr ExpressionParser::primary() {
  const Level level(*this);
  if (is(Kind::name)) return primary_name(next().text);
  if (is(Kind::integer) || is(Kind::real)) return number();
  if (is(Kind::string)) {
    ExprPtr e = make(Expr::Kind::literal);
    std::string bytes = next().text;
    while (is(Kind::string)) bytes += next().text;
    e->value = Value::of(text(bytes));
    return e;
  }
  if (accept("(")) {
    ExprPtr e = tuple(true, "", true);
    expect(")");
    return e;
  }
  if (accept("[")) return list_display();
  if (accept("{")) return dict_display();
  unexpected("an expression");
}

ExprPtr ExpressionParser::primary_name(const std::string& word) {
  ExprPtr e = make(Expr::Kind::literal);
  if (word == "true" || word == "True" || word == "false" || word == "False") {
    e->value = Value::of(word[0] == 't' || word[0] == 'T');
  } else if (word == "none" || word == "None") {
    e->value = Value::none();
  } else {
    e->kind = Expr::Kind::name;
    e->symbol = symbol(word);
    e->text = text(word);
    for (Uses& macro : macros_) {
      macro.caller |= word == "caller";
      macro.kwargs |= word == "kwargs";
      macro.varargs |= word == "varargs";
    }
  }
  return e;
}

ExprPtr ExpressionParser::number() {
  ExprPtr e = make(Expr::Kind::literal);
  const Token t = next();
  if (t.kind == Kind::real) {
    e->value = Value::of(std::strtod(t.text.c_str(), nullptr));
    return e;
  }
  int base = 10;
  std::string_view digits = t.text;
  if (digits.size() > 2 && digits[0] == '0' && digits[1] > '9') {
    base = digits[1] == 'x' ? 16 : digits[1] == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  int64_t value = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value, base).ec != std::errc())
    site_.unsupported(fmt::format("the integer {}, which has more than 64 bits,", t.text));
  e->value = Value::of(value);
  return e;
}

ExprPtr ExpressionParser::list_display() {
  ExprPtr e = make(Expr::Kind::list);
  while (!accept("]")) {
    if (!e->args.empty()) {
      expect(",");
      if (accept("]")) break;
    }
    e->args.push_back(expression());
  }
  return e;
}
ExprPtr ExpressionParser::dict_display() {
  ExprPtr e = make(Expr::Kind::dict);
  while (!accept("}")) {
    if (!e->args.empty()) {
      expect(",");
      if (accept("}")) break;
    }
    e->args.push_back(expression());
    expect(":");
    e->args.push_back(expression());
  }
  return e;
}

bool ExpressionParser::tuple_ends(std::string_view end) const {
  return is(Kind::output_end) || is(Kind::block_end) || is_symbol(")") || (!end.empty() && is_name(end));
}
ExprPtr ExpressionParser::tuple(bool conditional, std::string_view end, bool in_parentheses) {
  ExprPtr e = make(Expr::Kind::tuple);
  bool comma = false;
  while (!tuple_ends(end)) {
    e->args.push_back(conditional ? expression() : plain_expression());
    if (!accept(",")) break;
    comma = true;
  }
  if (comma || (e->args.empty() && in_parentheses)) return e;
  if (e->args.empty()) unexpected("an expression");
  return std::move(e->args[0]);
}

ExprPtr ExpressionParser::target_part(bool spaces) {
  const Level level(*this);
  if (accept("(")) {
    ExprPtr inner = target("", spaces);
    expect(")");
    return inner;
  }
  const std::string word = name();
  static constexpr const char* kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), word) != std::end(kConstants))
    site_.refuse(fmt::format("cannot assign to {}", word));
  ExprPtr e = make(Expr::Kind::name);
  e->symbol = symbol(word);
  e->text = text(word);
  if (!spaces || !accept(".")) return e;
  ExprPtr attribute = make(Expr::Kind::attribute);
  attribute->text = text(name());
  attribute->args.push_back(std::move(e));
  return attribute;
}
ExprPtr ExpressionParser::target(std::string_view end, bool spaces) {
  ExprPtr e = make(Expr::Kind::tuple);
  bool comma = false;
  while (!tuple_ends(end) && !is_symbol("=")) {
    e->args.push_back(target_part(spaces));
    if (!accept(",")) break;
    comma = true;
  }
  if (e->args.empty()) unexpected("a name");
  return comma ? std::move(e) : std::move(e->args[0]);
}

ExprPtr ExpressionParser::postfix(ExprPtr e) {
  const int before = depth_;
  for (;;) {
    one_more_in_a_row("subscripts");
    if (accept(".")) {
      const bool number_follows = is(Kind::integer);
      ExprPtr of = make(number_follows ? Expr::Kind::index : Expr::Kind::attribute);
      of->args.push_back(std::move(e));
      if (number_follows)
        of->args.push_back(number());
      else
        of->text = text(name());
      e = std::move(of);
    } else if (accept("[")) {
      e = subscript(std::move(e));
    } else if (is_symbol("(")) {
      ExprPtr call = make(Expr::Kind::call);
      call->args.push_back(std::move(e));
      arguments(*call);
      e = std::move(call);
    } else {
      depth_ = before;
      return e;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr of) {
  ExprPtr e = make(Expr::Kind::slice);
  e->args.push_back(std::move(of));
  for (size_t colons = 0; !is_symbol("]"); ++colons) {
    const bool bound = !is_symbol(":") && !is_symbol(",");
    e->args.resize(colons + 2);
    if (bound) e->args.back() = expression();
    if (is_symbol(",")) site_.unsupported("a subscript with a comma");
    if (is_symbol("]")) {
      if (colons == 0) e->kind = Expr::Kind::index;
      break;
    }
    if (colons == 2) unexpected("\"]\"");
    expect(":");
  }
  expect("]");
  if (e->args.size() == 1) site_.unsupported("an empty subscript");
  if (e->kind == Expr::Kind::slice) e->args.resize(4);
  return e;
}

void ExpressionParser::arguments(Expr& call) {
  const Level level(*this);
  expect("(");
  for (bool first = true; !accept(")"); first = false) {
    if (!first) {
      expect(",");
      if (accept(")")) return;
    }
    const bool named = is(Kind::name) && peek(1).kind == Kind::symbol && peek(1).text == "=";
    if (accept("**")) {
      if (call.more_named) site_.refuse("a call has ** twice");
      call.more_named = expression();
    } else if (call.more_named) {
      site_.refuse("an argument stands behind **");
    } else if (accept("*")) {
      if (call.more) site_.refuse("a call has * twice");
      call.more = expression();
    } else if (named) {
      call.keywords.push_back(text(name()));
      expect("=");
      call.args.push_back(expression());
    } else {
      if (!call.keywords.empty() || call.more) site_.refuse("a positional argument stands behind a named one");
      call.args.push_back(expression());
    }
  }
}

}  // namespace fewbit::jinja

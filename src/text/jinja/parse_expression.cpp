#include "src/text/jinja/parse_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/text/jinja/filters.h"

namespace fewbit::jinja {

using Kind = Token::Kind;

struct ExpressionParser::Level {
  explicit Level(ExpressionParser& p) : parser(p) {
    if (++p.depth_ > kParseDepth)
      p.site_.refuse(fmt::format("tags and brackets are nested more than {} deep", kParseDepth));
  }
  ~Level() { --parser.depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ExpressionParser& parser;
};

namespace {

std::string described(const Token& t) {
  switch (t.kind) {
    case Kind::end:
      return "the end of the template";
    case Kind::data:
      return "text";
    case Kind::output_begin:
      return "{{";
    case Kind::output_end:
      return "}}";
    case Kind::block_begin:
      return "{%";
    case Kind::block_end:
      return "%}";
    default:
      return fmt::format("\"{}\"", t.text);
  }
}

}  // namespace

Token ExpressionParser::next() {
  const Token t = peek();
  if (at_ < tokens_.size() - 1) ++at_;
  site_.line = peek().line;
  return t;
}
void ExpressionParser::unexpected(std::string_view wanted) {
  site_.refuse(fmt::format("expected {}, found {}", wanted, described(peek())));
}
void ExpressionParser::expect(std::string_view symbol) {
  if (!accept(symbol)) unexpected(fmt::format("\"{}\"", symbol));
}
void ExpressionParser::expect(Kind kind) {
  if (!is(kind)) unexpected(described({kind}));
  next();
}
std::string ExpressionParser::name() {
  if (!is(Kind::name)) unexpected("a name");
  return next().text;
}

ExprPtr ExpressionParser::make(Expr::Kind kind) {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = site_.line;
  return e;
}
Symbol ExpressionParser::symbol(const std::string& name) {
  const auto [at, fresh] = symbols_.try_emplace(name, static_cast<Symbol>(syntax_.names.size()));
  if (fresh) syntax_.names.push_back(name);
  return at->second;
}
const Text* ExpressionParser::text(const std::string& bytes) {
  const Text*& t = texts_[bytes];
  if (!t) t = &syntax_.texts.emplace_back(text_of(bytes));
  return t;
}

ExprPtr ExpressionParser::expression() {
  const Level level(*this);
  ExprPtr e = any_of();
  while (accept_name("if")) {
    ExprPtr c = make(Expr::Kind::conditional);
    c->args.push_back(std::move(e));
    c->args.push_back(any_of());
    c->args.push_back(accept_name("else") ? expression() : nullptr);
    e = std::move(c);
  }
  return e;
}
ExprPtr ExpressionParser::plain_expression() {
  const Level level(*this);
  return any_of();
}

namespace {
// `first` with what follows; only `first` where nothing does.
template <class More, class Next>
ExprPtr row_of(ExprPtr row, ExprPtr first, const More& more, const Next& next) {
  row->args.push_back(std::move(first));
  while (more(*row)) row->args.push_back(next());
  return row->args.size() == 1 ? std::move(row->args[0]) : std::move(row);
}
}  // namespace

ExprPtr ExpressionParser::any_of() {
  return row_of(
      make(Expr::Kind::either), all_of(), [&](Expr&) { return accept_name("or"); }, [&] { return all_of(); });
}
ExprPtr ExpressionParser::all_of() {
  return row_of(
      make(Expr::Kind::both), negated(), [&](Expr&) { return accept_name("and"); }, [&] { return negated(); });
}
ExprPtr ExpressionParser::negated() {
  const Level level(*this);
  if (!accept_name("not")) return compared();
  ExprPtr e = make(Expr::Kind::inverse);
  e->args.push_back(negated());
  return e;
}
ExprPtr ExpressionParser::compared() {
  const auto more = [&](Expr& row) {
    static const std::pair<const char*, Op> kOps[] = {{"==", Op::eq}, {"!=", Op::ne}, {"<=", Op::le},
                                                      {">=", Op::ge}, {"<", Op::lt},  {">", Op::gt}};
    for (const auto& [symbol, op] : kOps)
      if (accept(symbol)) return row.ops.push_back(op), true;
    if (accept_name("in")) return row.ops.push_back(Op::in), true;
    if (!is_name("not") || !is_name("in", 1)) return false;
    next();
    next();
    return row.ops.push_back(Op::not_in), true;
  };
  return row_of(make(Expr::Kind::compare), sum(), more, [&] { return sum(); });
}
ExprPtr ExpressionParser::sum() {
  const auto more = [&](Expr& row) {
    if (accept("+")) return row.ops.push_back(Op::add), true;
    return accept("-") && (row.ops.push_back(Op::sub), true);
  };
  return row_of(make(Expr::Kind::chain), joined(), more, [&] { return joined(); });
}
ExprPtr ExpressionParser::joined() {
  return row_of(
      make(Expr::Kind::concat), product(), [&](Expr&) { return accept("~"); }, [&] { return product(); });
}
ExprPtr ExpressionParser::product() {
  const auto more = [&](Expr& row) {
    static const std::pair<const char*, Op> kOps[] = {
        {"*", Op::mul}, {"//", Op::floor_div}, {"/", Op::div}, {"%", Op::mod}};
    for (const auto& [symbol, op] : kOps)
      if (accept(symbol)) return row.ops.push_back(op), true;
    return false;
  };
  return row_of(make(Expr::Kind::chain), power(), more, [&] { return power(); });
}
ExprPtr ExpressionParser::power() {
  const auto more = [&](Expr& row) { return accept("**") && (row.ops.push_back(Op::pow), true); };
  return row_of(make(Expr::Kind::chain), signed_value(), more, [&] { return signed_value(); });
}
ExprPtr ExpressionParser::signed_value(bool with_filters) {
  const Level level(*this);
  ExprPtr e;
  if (is_symbol("-") || is_symbol("+")) {
    e = make(is_symbol("-") ? Expr::Kind::negative : Expr::Kind::positive);
    next();
    e->args.push_back(signed_value(false));
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filters ? filtered(std::move(e)) : std::move(e);
}

ExprPtr ExpressionParser::filtered(ExprPtr e) {
  const int before = depth_;
  for (;;) {
    if (++depth_ > kParseDepth) site_.refuse(fmt::format("more than {} filters in a row", kParseDepth));
    if (is_symbol("|")) {
      e = filters(std::move(e));
    } else if (is_name("is")) {
      e = test(std::move(e));
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

ExprPtr ExpressionParser::filters(ExprPtr e, bool bar_read) {
  const int before = depth_;
  while (bar_read || accept("|")) {
    if (++depth_ > kParseDepth) site_.refuse(fmt::format("more than {} filters in a row", kParseDepth));
    bar_read = false;
    ExprPtr filter = make(Expr::Kind::filter);
    const std::string word = name();
    if (!has_filter(word)) {
      if (is_jinja_filter(word)) site_.unsupported(fmt::format("the filter \"{}\"", word));
      site_.refuse(fmt::format("there is no filter \"{}\"", word));
    }
    filter->text = text(word);
    filter->args.push_back(std::move(e));
    if (is_symbol("(")) arguments(*filter);
    e = std::move(filter);
  }
  depth_ = before;
  return e;
}

ExprPtr ExpressionParser::test(ExprPtr of) {
  ExprPtr t = make(Expr::Kind::test);
  next();
  const bool negative = accept_name("not");
  const std::string word = name();
  if (!has_test(word)) site_.refuse(fmt::format("there is no test \"{}\"", word));
  t->text = text(word);
  t->args.push_back(std::move(of));
  if (is_symbol("(")) {
    arguments(*t);
  } else if ((is(Kind::name) && !is_name("else") && !is_name("or") && !is_name("and")) || is(Kind::string) ||
             is(Kind::integer) || is(Kind::real) || is_symbol("[") || is_symbol("{")) {
    if (is_name("is")) site_.refuse("tests cannot be chained with \"is\"");
    t->args.push_back(postfix(primary()));
  }
  if (!negative) return t;
  ExprPtr inverse = make(Expr::Kind::inverse);
  inverse->args.push_back(std::move(t));
  return inverse;
}

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
    if (++depth_ > kParseDepth) site_.refuse(fmt::format("more than {} subscripts in a row", kParseDepth));
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

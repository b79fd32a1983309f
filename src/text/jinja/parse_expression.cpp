#include "src/text/jinja/parse_expression.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/text/jinja/filters.h"

namespace fewbit::jinja {

using Kind = Token::Kind;

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

void ExpressionParser::too_deep() {
  site_.refuse(fmt::format("tags and brackets are nested more than {} deep", kParseDepth));
}
void ExpressionParser::one_more_in_a_row(std::string_view what) {
  if (++depth_ > kParseDepth) site_.refuse(fmt::format("more than {} {} in a row", kParseDepth, what));
}
Token ExpressionParser::next() {
  Token t = peek();
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
  // Real templates have some hundred. Scopes look for a name among their own.
  constexpr size_t kMostNames = 4096;
  if (syntax_.names.size() > kMostNames) site_.refuse(fmt::format("more than {} names of variables", kMostNames));
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
  const int before = depth_;
  while (accept_name("if")) {
    one_more_in_a_row("conditions");
    ExprPtr c = make(Expr::Kind::conditional);
    c->args.push_back(std::move(e));
    c->args.push_back(any_of());
    c->args.push_back(accept_name("else") ? expression() : nullptr);
    e = std::move(c);
  }
  depth_ = before;
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
    one_more_in_a_row("filters");
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
    one_more_in_a_row("filters");
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

}  // namespace fewbit::jinja

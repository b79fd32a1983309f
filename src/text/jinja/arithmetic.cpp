#include "src/text/jinja/arithmetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "src/text/jinja/characters.h"
#include "src/text/jinja/print.h"
#include "src/text/jinja/texts.h"
#include "src/text/utf8.h"

namespace fewbit::jinja {
namespace {

const char* symbol_of(Op op) {
  static constexpr const char* kSymbols[] = {
      "+", "-", "*", "/", "//", "%", "** or pow()", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<size_t>(op)];
}

[[noreturn]] void beyond(Workspace& w) { w.unsupported("a whole number of more than 64 bits"); }

int64_t power(Workspace& w, int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 ? -1 : 1;
  for (int64_t i = 0; i < exponent; ++i)  // at most 63 rounds
    if (__builtin_mul_overflow(result, base, &result)) beyond(w);
  return result;
}

Value whole(Workspace& w, Op op, int64_t a, int64_t b) {
  int64_t r = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &r)) beyond(w);
      return Value::of(r);
    case Op::sub:
      if (__builtin_sub_overflow(a, b, &r)) beyond(w);
      return Value::of(r);
    case Op::mul:
      if (__builtin_mul_overflow(a, b, &r)) beyond(w);
      return Value::of(r);
    case Op::pow:
      if (b >= 0) return Value::of(power(w, a, b));
      if (a == 0) w.refuse("0 cannot be raised to a negative power");
      return Value::of(std::pow(static_cast<double>(a), static_cast<double>(b)));
    default:
      break;
  }
  if (b == 0) w.refuse("a division by zero");
  if (op == Op::floor_div) return Value::of(floor_quotient(w, a, b));
  if (op == Op::mod) return Value::of(floor_rest(a, b));
  constexpr int64_t kExact = int64_t{1} << 53;  // up to here a double holds every whole number
  if (a < -kExact || a > kExact || b < -kExact || b > kExact)
    w.unsupported("\"/\" of whole numbers of more than 53 bits");
  return Value::of(static_cast<double>(a) / static_cast<double>(b));
}

double floor_rest(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}
double floor_quotient(double a, double b) {
  double rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double down = std::floor(quotient);
  return quotient - down > 0.5 ? down + 1 : down;
}

Value real(Workspace& w, Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return Value::of(a + b);
    case Op::sub:
      return Value::of(a - b);
    case Op::mul:
      return Value::of(a * b);
    case Op::pow: {
      if (a == 0 && b < 0) w.refuse("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(b) && b != std::floor(b)) w.unsupported("a complex number");
      const double r = std::pow(a, b);
      if (std::isinf(r) && std::isfinite(a) && std::isfinite(b)) w.refuse("the result of ** is too large");
      return Value::of(r);
    }
    default:
      break;
  }
  if (b == 0) w.refuse("a division by zero");
  if (op == Op::div) return Value::of(a / b);
  return Value::of(op == Op::mod ? floor_rest(a, b) : floor_quotient(a, b));
}

// Text or list times a whole number.
Value repeated(Workspace& w, const Value& v, int64_t times) {
  times = std::max<int64_t>(times, 0);
  int64_t size = 0;
  if (v.is(Type::string)) {
    if (__builtin_mul_overflow(static_cast<int64_t>(v.bytes().size()), times, &size)) size = INT64_MAX;
    w.claim_text(size);
    std::string out;
    out.reserve(static_cast<size_t>(size));
    if (size > 0)
      for (int64_t i = 0; i < times; ++i) out += v.bytes();
    return w.text(std::move(out), v.text->markup);
  }
  const std::vector<Value>& items = v.list->items;
  if (__builtin_mul_overflow(static_cast<int64_t>(items.size() * sizeof(Value)), times, &size)) size = INT64_MAX;
  w.claim(size);
  std::vector<Value> out;
  if (size > 0)
    for (int64_t i = 0; i < times; ++i) out.insert(out.end(), items.begin(), items.end());
  return w.list(std::move(out), v.type);
}

Value joined(Workspace& w, const Value& a, const Value& b) {
  if (a.is(Type::string)) {
    w.claim_text(static_cast<int64_t>(a.bytes().size() + b.bytes().size()));
    const bool markup = a.text->markup || b.text->markup;
    const auto part = [&](const Value& v) { return markup && !v.text->markup ? escaped(v.bytes()) : v.bytes(); };
    return w.text(part(a) + part(b), markup);
  }
  w.claim(static_cast<int64_t>((a.list->items.size() + b.list->items.size()) * sizeof(Value)));
  std::vector<Value> out = a.list->items;
  out.insert(out.end(), b.list->items.begin(), b.list->items.end());
  return w.list(std::move(out), a.type);
}

bool sequence(const Value& v) { return v.is(Type::string) || v.is(Type::list) || v.is(Type::tuple); }

// Digits with single underscores between them; "" where they are anywhere else.
std::string without_underscores(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    const auto digit = [&](size_t k) { return k < s.size() && std::isalnum(static_cast<unsigned char>(s[k])); };
    if (s[i] != '_')
      out += s[i];
    else if (i == 0 || !digit(i - 1) || !digit(i + 1))
      return "";
  }
  return out;
}

}  // namespace

int64_t floor_quotient(Workspace& w, int64_t a, int64_t b) {
  if (a == INT64_MIN && b == -1) beyond(w);
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}
int64_t floor_rest(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value arithmetic(Workspace& w, Op op, const Value& a, const Value& b) {
  if (a.whole() && b.whole()) return whole(w, op, a.integer, b.integer);
  if (a.number() && b.number()) return real(w, op, a.as_real(), b.as_real());
  if (a.is(Type::undefined)) w.refuse(why_undefined(a));
  if (op == Op::mod && a.is(Type::string)) return percent(w, a, b);
  if (b.is(Type::undefined)) w.refuse(why_undefined(b));
  if (op == Op::add && a.type == b.type && sequence(a)) return joined(w, a, b);
  if (op == Op::mul && sequence(a) && b.whole()) return repeated(w, a, b.integer);
  if (op == Op::mul && sequence(b) && a.whole()) return repeated(w, b, a.integer);
  if (op == Op::sub && a.is(Type::view)) w.unsupported("the difference of views of mappings");
  if (op == Op::add && (a.is(Type::string) || b.is(Type::string)))
    w.refuse(fmt::format("cannot concatenate {} and {}; ~ joins any values", name_of(a.type), name_of(b.type)));
  w.refuse(
      fmt::format("unsupported operand types for {}: '{}' and '{}'", symbol_of(op), name_of(a.type), name_of(b.type)));
}

Value negative(Workspace& w, const Value& v) {
  if (v.whole()) {
    if (v.integer == INT64_MIN) beyond(w);
    return Value::of(-v.integer);
  }
  if (v.is(Type::real)) return Value::of(-v.real);
  if (v.is(Type::undefined)) w.refuse(why_undefined(v));
  w.refuse(fmt::format("bad operand type for unary -: '{}'", name_of(v.type)));
}
Value positive(Workspace& w, const Value& v) {
  if (v.whole()) return Value::of(v.integer);
  if (v.is(Type::real)) return v;
  if (v.is(Type::undefined)) w.refuse(why_undefined(v));
  w.refuse(fmt::format("bad operand type for unary +: '{}'", name_of(v.type)));
}

bool contains(Workspace& w, const Value& in, const Value& what) {
  if (in.is(Type::string)) {
    if (what.is(Type::undefined)) w.refuse(why_undefined(what));
    if (!what.is(Type::string))
      w.refuse(fmt::format("'in <string>' requires string as left operand, not {}", name_of(what.type)));
    return found_in(w, in.bytes(), what.bytes()) != std::string::npos;
  }
  if (in.is(Type::dict)) return w.find(*in.dict, what) != nullptr;
  if (in.is(Type::view) && in.view->kind == View::Kind::keys) return w.find(*in.view->of, what) != nullptr;
  if (in.is(Type::space)) w.refuse("argument of type 'Namespace' is not iterable");
  const std::vector<Value>& items = w.items(in);
  return std::any_of(items.begin(), items.end(), [&](const Value& v) { return w.equal(v, what); });
}

bool compared(Workspace& w, Op op, const Value& a, const Value& b) {
  const auto number_is = [](const Value& v) { return v.is(Type::real) && std::isnan(v.real); };
  switch (op) {
    case Op::eq:
      return w.equal(a, b);
    case Op::ne:
      return !w.equal(a, b);
    case Op::lt:
      return w.less(a, b);
    case Op::gt:
      return w.less(b, a, ">");
    case Op::le:
    case Op::ge: {
      const bool wrong = op == Op::le ? w.less(b, a, "<=") : w.less(a, b, ">=");
      return !wrong && !number_is(a) && !number_is(b);
    }
    case Op::in:
      return contains(w, b, a);
    default:
      return !contains(w, b, a);
  }
}

int64_t truncated(Workspace& w, double d) {
  if (!(std::abs(d) < 9223372036854775808.0)) beyond(w);
  return static_cast<int64_t>(d);
}

std::optional<int64_t> whole_from(Workspace& w, std::string_view text, int base) {
  std::string s(stripped(text, std::nullopt, true, true));
  const bool minus = s.starts_with('-');
  if (minus || s.starts_with('+')) s.erase(0, 1);
  const auto prefix = [&](int b, const char* lower, const char* upper) {
    if ((base != b && base != 0) || (!s.starts_with(lower) && !s.starts_with(upper))) return;
    base = b;
    s.erase(0, s.size() > 2 && s[2] == '_' ? 3 : 2);
  };
  prefix(16, "0x", "0X");
  prefix(8, "0o", "0O");
  prefix(2, "0b", "0B");
  if (base == 0) {
    if (s.starts_with('0') && s.find_first_not_of("0_") != std::string::npos) return std::nullopt;
    base = 10;
  }
  if (base < 2 || base > 36) return std::nullopt;
  for (size_t i = 0; i < s.size();)
    if (const uint32_t c = next_code(s, i); c >= 0x80 && is_decimal(c))
      w.unsupported("\"int\" of digits outside of ASCII");
  s = without_underscores(s);
  const auto digit = [&](char c) {
    const int d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10 : 99;
    return d < base;
  };
  if (s.empty() || !std::all_of(s.begin(), s.end(), digit)) return std::nullopt;
  if (minus) s = fmt::format("-{}", s);
  int64_t value = 0;
  if (std::from_chars(s.data(), s.data() + s.size(), value, base).ec != std::errc()) beyond(w);
  return value;
}

std::optional<double> real_from(std::string_view text) {
  std::string s(stripped(text, std::nullopt, true, true));
  if (s.find_first_of("xXpP(") != std::string::npos) return std::nullopt;  // what strtod reads and Python does not
  s = without_underscores(s);
  if (s.empty()) return std::nullopt;
  char* end = nullptr;
  const double d = std::strtod(s.c_str(), &end);
  if (*end != '\0') return std::nullopt;
  return d;
}

}  // namespace fewbit::jinja

// Tests: `x is NAME`.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/text/jinja/arithmetic.h"
#include "src/text/jinja/characters.h"
#include "src/text/jinja/filters.h"
#include "src/text/jinja/methods.h"
#include "src/text/jinja/print.h"

namespace fewbit::jinja {
namespace {

using Test = bool (*)(const Use&);

const Value& operand(const Use& u) {
  if (!u.args.named.empty() || u.args.positional.size() != 1)
    u.w().refuse(fmt::format("the test \"{}\" takes one value", u.name));
  return u.args.positional[0];
}
template <Type kType>
bool is_type(const Use& u) {
  u.bound({});
  return u.of.is(kType);
}
template <Op kOp>
bool compares(const Use& u) {
  return compared(u.w(), kOp, u.of, operand(u));
}
template <int kRest>
bool has_parity(const Use& u) {
  u.bound({});
  return u.w().equal(arithmetic(u.w(), Op::mod, u.of, Value::of(int64_t{2})), Value::of(int64_t{kRest}));
}
template <bool kWanted>
bool is_boolean(const Use& u) {
  u.bound({});
  return u.of.is(Type::boolean) && (u.of.integer != 0) == kWanted;
}

bool defined(const Use& u) { return u.bound({}), !u.of.is(Type::undefined); }
bool number(const Use& u) { return u.bound({}), u.of.number(); }
bool iterable(const Use& u) { return u.bound({}), u.w().iterable(u.of); }
bool sequence(const Use& u) {
  u.bound({});
  const Type t = u.of.type;
  return t == Type::undefined || t == Type::string || t == Type::list || t == Type::tuple || t == Type::dict ||
         t == Type::range;
}
bool callable(const Use& u) {
  u.bound({});
  const Type t = u.of.type;
  // An undefined value can be called in Python's eyes: it then says that it is undefined.
  return t == Type::macro || t == Type::function || t == Type::method || t == Type::loop || t == Type::undefined;
}
bool divisible(const Use& u) {
  return u.w().equal(arithmetic(u.w(), Op::mod, u.of, operand(u)), Value::of(int64_t{0}));
}
bool escaped_text(const Use& u) { return u.bound({}), u.of.is(Type::string) && u.of.text->markup; }
bool in_case(const Use& u) {
  const Value text = u.of.is(Type::string) ? u.of : u.w().text(str_of(u.w(), u.of));
  return truthy(text_method(u.w(), text, u.name == "upper" ? "isupper" : "islower", u.args));
}
bool same(const Use& u) {
  const Value& other = operand(u);
  if (u.of.type != other.type) return false;
  if (u.of.is(Type::undefined) || u.of.is(Type::real) || (u.of.is(Type::string) && u.of.text != other.text))
    if (!u.of.is(Type::string) || u.w().equal(u.of, other))
      u.w().unsupported(fmt::format("\"sameas\" of two values of type {}", name_of(u.of.type)));
  if (u.of.is(Type::integer) && u.of.integer == other.integer && (u.of.integer < -5 || u.of.integer > 256))
    u.w().unsupported("\"sameas\" of two large numbers");
  return u.of.is(Type::none) || u.of.integer == other.integer;
}
bool names_filter(const Use& u) { return u.bound({}), u.of.is(Type::string) && is_jinja_filter(u.of.bytes()); }
bool names_test(const Use& u) { return u.bound({}), u.of.is(Type::string) && has_test(u.of.bytes()); }

const std::map<std::string, Test>& tests() {
  static const std::map<std::string, Test> table = {
      {"defined", defined},
      {"undefined", is_type<Type::undefined>},
      {"none", is_type<Type::none>},
      {"string", is_type<Type::string>},
      {"mapping", is_type<Type::dict>},
      {"boolean", is_type<Type::boolean>},
      {"integer", is_type<Type::integer>},
      {"float", is_type<Type::real>},
      {"number", number},
      {"true", is_boolean<true>},
      {"false", is_boolean<false>},
      {"iterable", iterable},
      {"sequence", sequence},
      {"callable", callable},
      {"even", has_parity<0>},
      {"odd", has_parity<1>},
      {"divisibleby", divisible},
      {"lower", in_case},
      {"upper", in_case},
      {"escaped", escaped_text},
      {"sameas", same},
      {"filter", names_filter},
      {"test", names_test},
      {"in", compares<Op::in>},
      {"eq", compares<Op::eq>},
      {"==", compares<Op::eq>},
      {"equalto", compares<Op::eq>},
      {"ne", compares<Op::ne>},
      {"!=", compares<Op::ne>},
      {"lt", compares<Op::lt>},
      {"<", compares<Op::lt>},
      {"lessthan", compares<Op::lt>},
      {"le", compares<Op::le>},
      {"<=", compares<Op::le>},
      {"gt", compares<Op::gt>},
      {">", compares<Op::gt>},
      {"greaterthan", compares<Op::gt>},
      {"ge", compares<Op::ge>},
      {">=", compares<Op::ge>},
  };
  return table;
}

}  // namespace

bool has_test(const std::string& name) { return tests().count(name) > 0; }

bool Interpreter::test(const std::string& name, const Value& of, const Args& args) {
  const auto at = tests().find(name);
  if (at == tests().end()) w.refuse(fmt::format("there is no test \"{}\"", name));
  return at->second({*this, name, of, args});
}

}  // namespace fewbit::jinja

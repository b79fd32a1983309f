// Expressions.
#include <fmt/format.h>

#include <algorithm>

#include "src/text/jinja/arithmetic.h"
#include "src/text/jinja/interpreter.h"
#include "src/text/jinja/methods.h"
#include "src/text/jinja/print.h"
#include "src/text/jinja/texts.h"

namespace fewbit::jinja {

using Kind = Expr::Kind;

Value Interpreter::eval(const Expr& e) {
  const Deeper deeper(w);
  w.site.line = e.line;
  switch (e.kind) {
    case Kind::literal:
      return e.value;
    case Kind::captured:
      return captured_;
    case Kind::name:
      return variable(e);
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
      return display(e);
    case Kind::attribute:
    case Kind::index:
    case Kind::slice:
      return lookup(e);
    case Kind::call:
      return call(e);
    case Kind::filter:
      return filter(e);
    case Kind::test:
      return test(e);
    case Kind::negative:
      return negative(w, eval(*e.args[0]));
    case Kind::positive:
      return positive(w, eval(*e.args[0]));
    case Kind::chain:
      return chain(e);
    case Kind::compare:
      return compare(e);
    case Kind::concat:
      return concat(e);
    case Kind::inverse:
    case Kind::both:
    case Kind::either:
    case Kind::conditional:
      return logic(e);
  }
  return {};
}

Value Interpreter::variable(const Expr& e) {
  size_t looked = 0;
  for (Scope* s = scope_; s; s = s->parent) {
    looked += 1 + s->variables.size();
    if (looked >= kLooksInAStep) w.step(static_cast<int64_t>(looked / kLooksInAStep)), looked %= kLooksInAStep;
    if (const Value* v = s->find(e.symbol)) return *v;
  }
  return Value::missing(e.text);
}

Value Interpreter::logic(const Expr& e) {
  if (e.kind == Kind::inverse) return Value::of(!truthy(eval(*e.args[0])));
  if (e.kind == Kind::conditional) {
    if (truthy(eval(*e.args[1]))) return eval(*e.args[0]);
    return e.args[2] ? eval(*e.args[2]) : Value();
  }
  Value v;
  for (const ExprPtr& part : e.args) {
    v = eval(*part);
    if (truthy(v) == (e.kind == Kind::either)) break;
  }
  return v;
}

Value Interpreter::chain(const Expr& e) {
  Value v = eval(*e.args[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    const Value b = eval(*e.args[i + 1]);
    w.site.line = e.line;
    v = arithmetic(w, e.ops[i], v, b);
  }
  return v;
}

// a < b < c: as in Python, b is evaluated once and c only where a < b.
Value Interpreter::compare(const Expr& e) {
  Value a = eval(*e.args[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    const Value b = eval(*e.args[i + 1]);
    w.site.line = e.line;
    if (!compared(w, e.ops[i], a, b)) return Value::of(false);
    a = b;
  }
  return Value::of(true);
}

Value Interpreter::concat(const Expr& e) {
  std::string out;
  for (const ExprPtr& part : e.args) {
    const Value v = eval(*part);
    w.claim_text(static_cast<int64_t>(out.size() + (v.is(Type::string) ? v.bytes().size() : 0)));
    if (v.is(Type::string))
      out += v.bytes();
    else
      out += str_of(w, v);
  }
  return w.text(std::move(out));
}

Value Interpreter::display(const Expr& e) {
  if (e.kind == Kind::dict) {
    const Value d = w.dict();
    for (size_t i = 0; i < e.args.size(); i += 2) {
      const Value key = eval(*e.args[i]);
      w.put(*d.dict, key, eval(*e.args[i + 1]));
    }
    return d;
  }
  std::vector<Value> items;
  items.reserve(e.args.size());
  for (const ExprPtr& part : e.args) items.push_back(eval(*part));
  return w.list(std::move(items), e.kind == Kind::list ? Type::list : Type::tuple);
}

Value Interpreter::lookup(const Expr& e) {
  const Value of = eval(*e.args[0]);
  if (e.kind == Kind::slice) return slice(e, of);
  const Value key = e.kind == Kind::index ? eval(*e.args[1]) : Value();
  w.site.line = e.line;
  return e.kind == Kind::index ? item(of, key) : attribute(of, e.text);
}

Value Interpreter::slice(const Expr& e, const Value& of) {
  const auto bound = [&](size_t i) { return e.args[i] ? eval(*e.args[i]) : Value::none(); };
  const Value start = bound(1), stop = bound(2), step = bound(3);
  w.site.line = e.line;
  if (of.is(Type::undefined)) w.refuse(why_undefined(of));
  if (of.is(Type::string)) return sliced(w, of, slice_of(w, of.text->length, start, stop, step));
  if (of.is(Type::list) || of.is(Type::tuple)) {
    const Slice s = slice_of(w, static_cast<int64_t>(of.list->items.size()), start, stop, step);
    w.claim(s.count * static_cast<int64_t>(sizeof(Value)));
    std::vector<Value> items;
    for (int64_t i = 0; i < s.count; ++i) items.push_back(of.list->items[static_cast<size_t>(s.first + i * s.step)]);
    return w.list(std::move(items), of.type);
  }
  if (of.is(Type::range)) {
    const Slice s = slice_of(w, of.range->length, start, stop, step);
    const int64_t first = of.range->start + s.first * of.range->step, stride = s.step * of.range->step;
    // Python prints the bounds of an empty range, which are of no use to anybody.
    if (s.count == 0) w.unsupported("an empty slice of a range");
    return w.range(first, first + s.count * stride, stride);
  }
  w.refuse(fmt::format("a {} cannot be sliced", name_of(of.type)));
}

Value Interpreter::attribute(const Value& of, const Text* name) {
  const std::string& n = name->bytes;
  if (of.is(Type::undefined)) w.refuse(why_undefined(of));
  if (n.starts_with("__") && n.ends_with("__")) w.refuse(fmt::format("access to attribute '{}' is unsafe", n));
  switch (has_method(of.type, n)) {
    case Access::safe:
      return w.method(of, name);
    case Access::unsafe:
      return Value::missing(name, of.type);
    case Access::unknown:
      w.unsupported(fmt::format("\"{}\" of a {}", n, name_of(of.type)));
    case Access::absent:
      break;
  }
  switch (of.type) {
    case Type::dict:
    case Type::space:
      if (const Value* v = w.find(*of.dict, n)) return *v;
      break;
    case Type::loop:
      if (n == "cycle" || n == "changed") return w.method(of, name);
      return loop_attribute(*of.loop, n);
    case Type::macro:
      if (n == "name" && of.macro->node->kind == Node::Kind::macro) return Value::of(of.macro->node->text);
      w.unsupported(fmt::format("\"{}\" of a macro", n));
    case Type::tuple:
      if (of.list->grouped && (n == "grouper" || n == "list")) return of.list->items[n == "list"];
      break;
    case Type::range:
      if (n == "start") return Value::of(of.range->start);
      if (n == "stop") return Value::of(of.range->stop);
      if (n == "step") return Value::of(of.range->step);
      break;
    default:
      break;
  }
  return Value::missing(name, of.type);
}

Value Interpreter::item(const Value& of, const Value& key) {
  if (of.is(Type::undefined)) w.refuse(why_undefined(of));
  if (of.is(Type::dict)) {
    const bool hashable = !key.is(Type::list) && !key.is(Type::dict);
    if (const Value* v = hashable ? w.find(*of.dict, key) : nullptr) return *v;
  } else if (key.whole()) {
    const bool listed = of.is(Type::list) || of.is(Type::tuple);
    const int64_t length = listed                ? static_cast<int64_t>(of.list->items.size())
                           : of.is(Type::string) ? of.text->length
                           : of.is(Type::range)  ? of.range->length
                                                 : 0;
    const int64_t i = key.integer < 0 ? key.integer + length : key.integer;
    if (i < 0 || i >= length) return Value::missing(w.text(repr_of(w, key)).text, of.type);
    if (listed) return of.list->items[static_cast<size_t>(i)];
    if (of.is(Type::range)) return Value::of(of.range->start + i * of.range->step);
    if (of.is(Type::string) && !of.text->markup && of.text->ascii())
      return w.character(static_cast<uint8_t>(of.bytes()[static_cast<size_t>(i)]));
    return sliced(w, of, {i, 1, 1});
  }
  if (key.is(Type::string)) return attribute(of, key.text);
  return Value::missing(nullptr, of.type);
}

Args Interpreter::arguments(const Expr& e) {
  Args args;
  const size_t first = 1, named = e.args.size() - e.keywords.size();
  for (size_t i = first; i < named; ++i) args.positional.push_back(eval(*e.args[i]));
  for (size_t i = named; i < e.args.size(); ++i) {
    const Text* const name = e.keywords[i - named];
    for (const auto& [other, v] : args.named)
      if (other == name) w.refuse(fmt::format("the argument \"{}\" is given twice", name->bytes));
    args.named.emplace_back(name, eval(*e.args[i]));
  }
  if (e.more)
    for (const Value& v : w.items(eval(*e.more))) args.positional.push_back(v);
  if (e.more_named) {
    const Value d = eval(*e.more_named);
    if (!d.is(Type::dict)) w.refuse(fmt::format("** needs a mapping, found {}", name_of(d.type)));
    for (const auto& [key, v] : d.dict->entries) {
      if (!key.is(Type::string)) w.refuse("** needs a mapping whose keys are texts");
      args.named.emplace_back(key.text, v);
    }
  }
  w.site.line = e.line;
  return args;
}

Value Interpreter::filter(const Expr& e) {
  const Value of = eval(*e.args[0]);
  return filter(e.text->bytes, of, arguments(e));
}
Value Interpreter::test(const Expr& e) {
  const Value of = eval(*e.args[0]);
  return Value::of(test(e.text->bytes, of, arguments(e)));
}

Value Interpreter::call(const Expr& e, const Value* caller) {
  const Value f = eval(*e.args[0]);
  Args args = arguments(e);
  if (caller) {
    static const Text kCaller = text_of("caller");
    args.named.emplace_back(&kCaller, *caller);
  }
  return call(f, args);
}

}  // namespace fewbit::jinja

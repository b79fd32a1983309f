// Calls: macros, the functions that every template has, arguments under their names.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "src/text/jinja/interpreter.h"
#include "src/text/jinja/methods.h"
#include "src/text/jinja/print.h"

namespace fewbit::jinja {

Bound::Bound(Workspace& w, const std::string& what, const Args& args, std::initializer_list<const char*> parameters)
    : w_(w),
      what_(what),
      names_(parameters.begin(), parameters.end()),
      values_(parameters.size()),
      present_(parameters.size(), false) {
  if (args.positional.size() > values_.size())
    w.refuse(fmt::format("\"{}\" takes {} arguments at most, found {}", what, values_.size(), args.positional.size()));
  for (size_t i = 0; i < args.positional.size(); ++i) {
    values_[i] = args.positional[i];
    present_[i] = true;
  }
  for (const auto& [name, v] : args.named) {
    const auto at = std::find(names_.begin(), names_.end(), name->bytes);
    if (at == names_.end()) w.refuse(fmt::format("\"{}\" has no argument \"{}\"", what, name->bytes));
    const auto i = static_cast<size_t>(at - names_.begin());
    if (present_[i]) w.refuse(fmt::format("\"{}\": the argument \"{}\" is given twice", what, name->bytes));
    values_[i] = v;
    present_[i] = true;
  }
}
const Value& Bound::required(size_t i) const {
  if (!present_[i]) w_.refuse(fmt::format("\"{}\" needs the argument \"{}\"", what_, names_[i]));
  return values_[i];
}
std::string Bound::text(size_t i, const std::string& otherwise) const {
  if (!present_[i]) return otherwise;
  if (!values_[i].is(Type::string))
    w_.refuse(fmt::format("\"{}\": {} must be a text, found {}", what_, names_[i], name_of(values_[i].type)));
  return values_[i].bytes();
}
int64_t Bound::integer(size_t i, int64_t otherwise) const {
  if (!present_[i]) return otherwise;
  if (!values_[i].whole())
    w_.refuse(fmt::format("\"{}\": {} must be a whole number, found {}", what_, names_[i], name_of(values_[i].type)));
  return values_[i].integer;
}

Value Interpreter::call(const Value& f, const Args& args) {
  const Deeper deeper(w);
  switch (f.type) {
    case Type::undefined:
      w.refuse(why_undefined(f));
    case Type::macro:
      return call_macro(*f.macro, args);
    case Type::loop:
      return call_loop(*f.loop, args);
    case Type::function:
      return builtin(f.integer, args);
    case Type::method:
      if (f.method->self.is(Type::loop)) return loop_method(*f.method->self.loop, f.method->name->bytes, args);
      return call_method(w, f.method->self, f.method->name->bytes, args);
    default:
      w.refuse(fmt::format("'{}' object is not callable", name_of(f.type)));
  }
}

Value Interpreter::call_macro(const Macro& m, const Args& args) {
  const Node& n = *m.node;
  const std::string name = n.kind == Node::Kind::call ? "caller" : n.text->bytes;
  const auto symbol = [&](const char* word) {
    return static_cast<Symbol>(std::find(syntax_.names.begin(), syntax_.names.end(), word) - syntax_.names.begin());
  };
  Scope* const around = scope_;
  Scope* const inner = open(m.around, n.hidden);
  const size_t count = n.parameters.size(), given = args.positional.size();
  if (given > count && !n.uses_varargs)
    w.refuse(fmt::format("macro '{}' takes not more than {} arguments", name, count));
  w.step(static_cast<int64_t>((syntax_.names.size() + count * (count + args.named.size())) / kLooksInAStep));
  std::vector<bool> present(count, false);
  for (size_t i = 0; i < std::min(count, given); ++i) {
    inner->set(n.parameters[i], args.positional[i]);
    present[i] = true;
  }
  const Value more_named = n.uses_kwargs ? w.dict() : Value();
  Value caller = Value::missing(nullptr);
  for (const auto& [key, v] : args.named) {
    size_t i = 0;
    while (i < count && syntax_.names[static_cast<size_t>(n.parameters[i])] != key->bytes) ++i;
    if (i < count && !present[i]) {
      inner->set(n.parameters[i], v);
      present[i] = true;
    } else if (n.uses_caller && key->bytes == "caller") {
      caller = v;
    } else if (n.uses_kwargs) {
      w.put(*more_named.dict, Value::of(key), v);
    } else {
      w.refuse(fmt::format("macro '{}' takes no keyword argument '{}'", name, key->bytes));
    }
  }
  scope_ = inner;
  for (size_t i = 0; i < count; ++i) {
    const size_t first_default = count - n.values.size();
    if (present[i]) continue;
    // A default may name the parameters before it.
    inner->set(n.parameters[i], i >= first_default ? eval(*n.values[i - first_default]) : Value::missing(nullptr));
  }
  if (n.uses_caller) inner->set(symbol("caller"), caller);
  if (n.uses_kwargs) inner->set(symbol("kwargs"), more_named);
  if (n.uses_varargs) {
    const auto from = args.positional.begin() + static_cast<int64_t>(std::min(count, given));
    inner->set(symbol("varargs"), w.list({from, args.positional.end()}, Type::tuple));
  }
  std::string before;
  std::swap(before, out_);
  run(n.body);
  std::swap(before, out_);
  scope_ = around;
  return w.text(std::move(before));
}

namespace {

// dict(…) and namespace(…): a mapping or pairs, then names.
void fill(Workspace& w, Dict& d, const std::string& what, const Args& args) {
  if (args.positional.size() > 1) w.refuse(fmt::format("\"{}\" takes one positional argument at most", what));
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is(Type::dict)) {
      for (const auto& [key, v] : from.dict->entries) w.put(d, key, v);
    } else {
      for (const Value& pair : w.items(from)) {
        const std::vector<Value>& parts = w.items(pair);
        if (parts.size() != 2) w.refuse(fmt::format("\"{}\" needs pairs, found {} values", what, parts.size()));
        w.put(d, parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, v] : args.named) w.put(d, Value::of(name), v);
}

Value range_of(Workspace& w, const Args& args) {
  const size_t n = args.positional.size();
  if (!args.named.empty() || n < 1 || n > 3) w.refuse("\"range\" takes one to three whole numbers");
  for (const Value& v : args.positional)
    if (!v.whole())
      w.refuse(v.is(Type::undefined) ? why_undefined(v)
                                     : fmt::format("\"range\" takes whole numbers, found {}", name_of(v.type)));
  const auto at = [&](size_t i) { return args.positional[i].integer; };
  if (n == 3 && at(2) == 0) w.refuse("\"range\" with a step of 0");
  return w.range(n > 1 ? at(0) : 0, at(n > 1), n == 3 ? at(2) : 1);
}

// datetime.now().strftime: C's, but for %f, %z and %Z.
std::string now_as(Workspace& w, const std::string& format) {
  if (format.size() > 4096) w.refuse("\"strftime_now\": the format is longer than 4096 bytes");
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1000000;
  std::string plain;
  for (size_t i = 0; i < format.size(); ++i) {
    const char next = i + 1 < format.size() ? format[i + 1] : '\0';
    if (format[i] != '%') {
      plain += format[i];
      continue;
    }
    ++i;
    if (next == 'f')
      plain += fmt::format("{:06}", micros);
    else if (next != 'z' && next != 'Z')
      plain += next ? std::string{'%', next} : "%%";
  }
  std::tm parts{};
  localtime_r(&seconds, &parts);
  std::string out(plain.size() * 16 + 256, '\0');
  out.resize(std::strftime(out.data(), out.size(), plain.c_str(), &parts));
  return out;
}

}  // namespace

Value Interpreter::builtin(int64_t which, const Args& args) {
  const std::string name = kFunctions[which];
  if (name == "range") return range_of(w, args);
  if (name == "dict") {
    const Value d = w.dict();
    fill(w, *d.dict, name, args);
    return d;
  }
  if (name == "namespace") {
    const Value s = w.space();
    fill(w, *s.dict, name, args);
    for (const auto& [key, v] : s.dict->entries)
      if (key.is(Type::string) && key.bytes().starts_with('_'))
        w.refuse("attributes of a namespace cannot begin with an underscore");
    return s;
  }
  if (name == "raise_exception") {
    const Bound b(w, name, args, {"message"});
    w.refuse("the chat template refuses: " + str_of(w, b.required(0)));
  }
  if (name == "strftime_now") {
    const Bound b(w, name, args, {"format"});
    b.required(0);
    return w.text(now_as(w, b.text(0, "")));
  }
  w.unsupported(fmt::format("the function \"{}\"", name));
}

}  // namespace fewbit::jinja

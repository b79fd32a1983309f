#include "src/text/jinja/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/core/strings.h"

namespace fewbit::jinja {
namespace {

std::set<std::string> set_of(const char* text) {
  const std::vector<std::string> list = words(text);
  return {list.begin(), list.end()};
}

struct Attributes {
  std::set<std::string> safe{}, unsafe{}, unknown{};
};

// The attributes of Python's types, without those that begin with underscores.
const std::map<Type, Attributes>& attributes() {
  static const std::set<std::string> whole = set_of(
      "as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real to_bytes is_integer");
  static const std::map<Type, Attributes> table = {
      {Type::string,
       {set_of(
           "capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha "
           "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust "
           "lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit "
           "rstrip split splitlines startswith strip swapcase title translate upper zfill")}},
      {Type::list, {set_of("copy count index"), set_of("append clear pop reverse insert sort extend remove")}},
      {Type::tuple, {set_of("count index")}},
      {Type::dict, {set_of("copy fromkeys get items keys values"), set_of("clear pop popitem setdefault update")}},
      {Type::range, {set_of("count index")}},
      {Type::integer, {{}, {}, whole}},
      {Type::boolean, {{}, {}, whole}},
      {Type::real, {set_of("is_integer"), {}, set_of("as_integer_ratio conjugate fromhex hex imag real")}},
      {Type::view, {{}, {}, set_of("isdisjoint mapping")}},
      {Type::generator, {{}, {}, set_of("close send throw gi_code gi_frame gi_running gi_suspended gi_yieldfrom")}},
  };
  return table;
}

Value from_dict(Workspace& w, const Value& self, const std::string& name, const Args& args) {
  if (name == "get") {
    const Bound b(w, name, args, {"key", "default"});
    if (!args.named.empty()) w.refuse("\"get\" takes no named arguments");
    const Value* v = w.find(*self.dict, b.required(0));
    return v ? *v : b.value(1, Value::none());
  }
  const Bound none(w, name, args, {});
  if (name == "copy") {
    const Value copy = w.dict();
    for (const auto& [key, v] : self.dict->entries) w.put(*copy.dict, key, v);
    return copy;
  }
  return w.view({name == "keys"     ? View::Kind::keys
                 : name == "values" ? View::Kind::values
                                    : View::Kind::items,
                 self.dict});
}

Value from_list(Workspace& w, const Value& self, const std::string& name, const Args& args) {
  const std::vector<Value>& items = w.items(self);
  if (name == "copy") {
    const Bound none(w, name, args, {});
    w.claim(static_cast<int64_t>(items.size() * sizeof(Value)));
    return w.list(items);
  }
  const Bound b(w, name, args, {"value"});
  const auto is = [&](const Value& v) { return w.equal(v, b.required(0)); };
  if (name == "count") return Value::of(static_cast<int64_t>(std::count_if(items.begin(), items.end(), is)));
  const auto at = std::find_if(items.begin(), items.end(), is);
  if (at == items.end()) w.refuse("\"index\": the value is not in the list");
  return Value::of(static_cast<int64_t>(at - items.begin()));
}

}  // namespace

Access has_method(Type type, const std::string& name) {
  const auto at = attributes().find(type);
  if (at == attributes().end()) return Access::absent;
  const auto in = [&](const std::set<std::string>& set) { return set.count(name) > 0; };
  return in(at->second.safe)      ? Access::safe
         : in(at->second.unsafe)  ? Access::unsafe
         : in(at->second.unknown) ? Access::unknown
                                  : Access::absent;
}

Value call_method(Workspace& w, const Value& self, const std::string& name, const Args& args) {
  if (self.is(Type::string)) return text_method(w, self, name, args);
  if (self.is(Type::dict) && name != "fromkeys") return from_dict(w, self, name, args);
  if (self.is(Type::list) || self.is(Type::tuple) || self.is(Type::range)) return from_list(w, self, name, args);
  w.unsupported(fmt::format("the method \"{}\" of a {}", name, name_of(self.type)));
}

}  // namespace fewbit::jinja

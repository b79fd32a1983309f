// Methods of texts.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/text/jinja/characters.h"
#include "src/text/jinja/methods.h"
#include "src/text/jinja/print.h"
#include "src/text/jinja/texts.h"
#include "src/text/utf8.h"

namespace fewbit::jinja {
namespace {

// One call: the text, its name and arguments. What depends on nothing but characters keeps the mark of safe texts.
struct Call {
  Workspace& w;
  const Value& self;
  const std::string& name;
  const Args& args;

  const std::string& s() const { return self.bytes(); }
  Value same(std::string text) const { return w.text(std::move(text), self.text->markup); }
  Value list(const std::vector<std::string>& parts, Type type = Type::list) const {
    std::vector<Value> items;
    for (const std::string& p : parts) items.push_back(same(p));
    return w.list(std::move(items), type);
  }
  Bound bound(std::initializer_list<const char*> parameters) const { return {w, name, args, parameters}; }
  std::optional<std::string> optional_text(const Bound& b, size_t i) const {
    if (!b.has(i) || b.at(i).is(Type::none)) return std::nullopt;
    return b.text(i, "");
  }
};

Value strip(const Call& c) {
  const Bound b = c.bound({"chars"});
  const auto set = c.optional_text(b, 0);
  c.w.read(static_cast<int64_t>(c.s().size() * (set ? set->size() + 1 : 1)));
  const std::string_view left = stripped(c.s(), set, c.name != "rstrip", c.name != "lstrip");
  return left.size() == c.s().size() ? c.self : c.same(std::string(left));
}

Value split(const Call& c) {
  const Bound b = c.bound({"sep", "maxsplit"});
  return c.list(cut(c.w, c.self, c.optional_text(b, 0), b.integer(1, -1), c.name == "rsplit"));
}
Value splitlines(const Call& c) { return c.list(lines_of(c.s(), c.bound({"keepends"}).truth(0, false))); }

Value partition(const Call& c) {
  const std::string sep = c.bound({"sep"}).required(0).is(Type::string) ? c.args.positional.at(0).bytes() : "";
  if (sep.empty()) c.w.refuse(fmt::format("\"{}\" needs a separator that is not empty", c.name));
  const bool right = c.name == "rpartition";
  const size_t at = right ? found_last(c.w, c.s(), sep) : found_in(c.w, c.s(), sep);
  if (at == std::string::npos)
    return right ? c.list({"", "", c.s()}, Type::tuple) : c.list({c.s(), "", ""}, Type::tuple);
  return c.list({c.s().substr(0, at), sep, c.s().substr(at + sep.size())}, Type::tuple);
}

// The part [start, end) that searches look at, and whether there is one at all.
struct Part {
  size_t begin = 0, end = 0;
  bool valid = true;
};
Part part_of(const Call& c, const Bound& b, size_t start, size_t stop) {
  const int64_t length = c.self.text->length;
  const auto placed = [&](size_t i, int64_t otherwise) {
    if (!b.has(i) || b.at(i).is(Type::none)) return otherwise;
    const int64_t v = b.integer(i, 0);
    return v < 0 ? std::max<int64_t>(v + length, 0) : v;
  };
  const int64_t first = placed(start, 0), last = std::min(placed(stop, length), length);
  if (first > length || first > last) return {0, 0, false};
  return {byte_of(*c.self.text, first), byte_of(*c.self.text, last), true};
}

Value affix(const Call& c) {
  const Bound b = c.bound({"prefix", "start", "end"});
  const Part part = part_of(c, b, 1, 2);
  const std::string_view s = std::string_view(c.s()).substr(part.begin, part.end - part.begin);
  const auto matches = [&](const Value& v) {
    if (!v.is(Type::string))
      c.w.refuse(fmt::format("\"{}\" needs a text or a tuple of texts, found {}", c.name, name_of(v.type)));
    return part.valid && (c.name == "startswith" ? s.starts_with(v.bytes()) : s.ends_with(v.bytes()));
  };
  const Value& first = b.required(0);
  if (!first.is(Type::tuple)) return Value::of(matches(first));
  for (const Value& v : first.list->items)
    if (matches(v)) return Value::of(true);
  return Value::of(false);
}

Value search(const Call& c) {
  const Bound b = c.bound({"sub", "start", "end"});
  b.required(0);
  const std::string sub = b.text(0, "");
  const Part part = part_of(c, b, 1, 2);
  c.w.read(static_cast<int64_t>(c.s().size()));
  const std::string_view s = std::string_view(c.s()).substr(part.begin, part.end - part.begin);
  if (c.name == "count") {
    if (!part.valid) return Value::of(int64_t{0});
    if (sub.empty()) return Value::of(index_of(*c.self.text, part.end) - index_of(*c.self.text, part.begin) + 1);
    int64_t n = 0;
    for (size_t at = 0; (at = found_in(c.w, s, sub, at)) != std::string_view::npos; at += sub.size()) ++n;
    return Value::of(n);
  }
  const size_t at = !part.valid        ? std::string_view::npos
                    : c.name[0] == 'r' ? found_last(c.w, s, sub)
                                       : found_in(c.w, s, sub);
  if (at != std::string_view::npos) return Value::of(index_of(*c.self.text, part.begin + at));
  if (c.name.ends_with("index")) c.w.refuse(fmt::format("\"{}\": the text is not found", c.name));
  return Value::of(int64_t{-1});
}

Value replace(const Call& c) {
  const Bound b = c.bound({"old", "new", "count"});
  if (c.self.text->markup) c.w.unsupported("\"replace\" of a text from \"safe\" or \"escape\"");
  b.required(0), b.required(1);
  return c.w.text(replaced(c.w, c.s(), b.text(0, ""), b.text(1, ""), b.integer(2, -1)));
}

Value remove_affix(const Call& c) {
  const Bound b = c.bound({"affix"});
  b.required(0);
  const std::string affix = b.text(0, "");
  if (c.name == "removeprefix") return c.s().starts_with(affix) ? c.same(c.s().substr(affix.size())) : c.self;
  return c.s().ends_with(affix) ? c.same(c.s().substr(0, c.s().size() - affix.size())) : c.self;
}

Value joined(const Call& c) {
  const Bound b = c.bound({"iterable"});
  if (c.self.text->markup) c.w.unsupported("\"join\" of a text from \"safe\" or \"escape\"");
  std::string out;
  const std::vector<Value>& items = c.w.items(b.required(0));
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Type::string))
      c.w.refuse(fmt::format("\"join\": item {} must be a text, found {}", i, name_of(items[i].type)));
    if (i) out += c.s();
    out += items[i].bytes();
    c.w.claim_text(static_cast<int64_t>(out.size()));
    c.w.read(static_cast<int64_t>(items[i].bytes().size() + c.s().size()));
  }
  return c.w.text(std::move(out));
}

Value pad(const Call& c) {
  const Bound b = c.bound({"width", "fillchar"});
  b.required(0);
  const std::string fill = b.text(1, " ");
  if (text_of(fill).length != 1) c.w.refuse(fmt::format("\"{}\" fills with exactly one character", c.name));
  return c.same(padded(c.w, *c.self.text, b.integer(0, 0), fill,
                       c.name == "center"  ? '^'
                       : c.name == "ljust" ? '<'
                                           : '>'));
}
Value zfill(const Call& c) {
  const Bound b = c.bound({"width"});
  b.required(0);
  const bool sign = c.s().starts_with('-') || c.s().starts_with('+');
  const Text digits = text_of(c.s().substr(sign ? 1 : 0));
  return c.same((sign ? c.s().substr(0, 1) : "") + padded(c.w, digits, b.integer(0, 0) - (sign ? 1 : 0), "0", '>'));
}

Value recased(const Call& c) {
  const Bound none = c.bound({});
  c.w.read(static_cast<int64_t>(c.s().size() * 16));
  if (c.name == "upper") return c.same(upper(c.s()));
  if (c.name == "lower") return c.same(lower(c.s()));
  if (c.name == "title") return c.same(title(c.s()));
  return c.same(capitalized(c.s()));
}

// isalpha and the like: every character, and at least one.
Value every(const Call& c) {
  const Bound none = c.bound({});
  c.w.read(static_cast<int64_t>(c.s().size()));
  const auto is = [&](uint32_t code) {
    if (c.name == "isalpha") return is_letter(code);
    if (c.name == "isspace") return is_blank(code);
    if (c.name == "isdecimal") return is_decimal(code);
    if (c.name == "isalnum" && is_letter(code)) return true;
    const std::optional<bool> digit = is_digit(code);
    if (c.name == "isalnum") return digit.value_or(true);  // fractions and the like are numeric
    if (!digit || (c.name == "isnumeric" && is_letter(code) && code >= 0x80))
      c.w.unsupported(fmt::format("\"{}\" of this character", c.name));
    return *digit;
  };
  for (size_t i = 0; i < c.s().size();)
    if (!is(next_code(c.s(), i))) return Value::of(false);
  return Value::of(!c.s().empty());
}
Value in_case(const Call& c) {
  const Bound none = c.bound({});
  bool found = false;
  for (size_t i = 0; i < c.s().size();) {
    const uint32_t code = next_code(c.s(), i);
    const bool right = c.name == "isupper" ? is_upper(code) : is_lower(code);
    if (!right && is_cased(code)) return Value::of(false);
    found |= right;
  }
  return Value::of(found);
}
Value is_ascii(const Call& c) {
  const Bound none = c.bound({});
  return Value::of(c.self.text->ascii());
}

}  // namespace

Value text_method(Workspace& w, const Value& self, const std::string& name, const Args& args) {
  static const std::map<std::string, Value (*)(const Call&)> table = {
      {"strip", strip},
      {"lstrip", strip},
      {"rstrip", strip},
      {"split", split},
      {"rsplit", split},
      {"splitlines", splitlines},
      {"partition", partition},
      {"rpartition", partition},
      {"startswith", affix},
      {"endswith", affix},
      {"find", search},
      {"rfind", search},
      {"index", search},
      {"rindex", search},
      {"count", search},
      {"replace", replace},
      {"removeprefix", remove_affix},
      {"removesuffix", remove_affix},
      {"join", joined},
      {"center", pad},
      {"ljust", pad},
      {"rjust", pad},
      {"zfill", zfill},
      {"upper", recased},
      {"lower", recased},
      {"title", recased},
      {"capitalize", recased},
      {"isalpha", every},
      {"isspace", every},
      {"isdecimal", every},
      {"isdigit", every},
      {"isnumeric", every},
      {"isalnum", every},
      {"isupper", in_case},
      {"islower", in_case},
      {"isascii", is_ascii},
  };
  const auto at = table.find(name);
  if (at == table.end()) w.unsupported(fmt::format("the method \"{}\" of a text", name));
  // Of Python's methods of str only split, rsplit and splitlines know their arguments by name.
  if (!args.named.empty() && name.find("split") == std::string::npos)
    w.refuse(fmt::format("\"{}\" takes no named arguments", name));
  return at->second({w, self, name, args});
}

}  // namespace fewbit::jinja

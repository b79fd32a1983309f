// Filters of texts and of single values.
#include "src/text/jinja/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "src/core/strings.h"
#include "src/text/jinja/arithmetic.h"
#include "src/text/jinja/characters.h"
#include "src/text/jinja/methods.h"
#include "src/text/jinja/print.h"
#include "src/text/jinja/texts.h"
#include "src/text/utf8.h"

namespace fewbit::jinja {
namespace {

// What a filter of texts sees: a text as it is, any other value printed.
Value soft(const Use& u) { return u.of.is(Type::string) ? u.of : u.w().text(str_of(u.w(), u.of)); }
Value as_method(const Use& u, const char* method) { return text_method(u.w(), soft(u), method, u.args); }
void no_arguments(const Use& u) { u.bound({}); }

Value do_upper(const Use& u) { return as_method(u, "upper"); }
Value do_lower(const Use& u) { return as_method(u, "lower"); }
Value do_capitalize(const Use& u) { return as_method(u, "capitalize"); }
Value do_trim(const Use& u) {
  const Bound b = u.bound({"chars"});
  return text_method(u.w(), soft(u), "strip", {{b.value(0, Value::none())}, {}});
}
Value do_center(const Use& u) {
  const Bound b = u.bound({"width"});
  return text_method(u.w(), soft(u), "center", {{Value::of(b.integer(0, 80))}, {}});
}

// Every word begins with a capital, where words end at blanks, hyphens and opening brackets.
Value do_title(const Use& u) {
  no_arguments(u);
  const Value v = soft(u);
  u.w().read(static_cast<int64_t>(v.bytes().size() * 16));
  std::string out, word;
  const auto flush = [&] {
    if (word.empty()) return;
    size_t first = 0;
    next_code(word, first);
    out += upper(std::string_view(word).substr(0, first)) + lower(std::string_view(word).substr(first));
    word.clear();
  };
  const std::string& s = v.bytes();
  for (size_t i = 0; i < s.size();) {
    const size_t begin = i;
    const uint32_t c = next_code(s, i);
    const bool ends = is_blank(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (ends) flush();
    (ends ? out : word) += s.substr(begin, i - begin);
  }
  flush();
  return u.w().text(std::move(out));
}

Value do_replace(const Use& u) {
  const Bound b = u.bound({"old", "new", "count"});
  const std::string from = str_of(u.w(), b.required(0)), to = str_of(u.w(), b.required(1));
  const int64_t most = b.has(2) && !b.at(2).is(Type::none) ? b.integer(2, -1) : -1;
  return u.w().text(replaced(u.w(), str_of(u.w(), u.of), from, to, most));
}

Value do_string(const Use& u) {
  no_arguments(u);
  return soft(u);
}
Value do_safe(const Use& u) {
  no_arguments(u);
  return u.w().text(str_of(u.w(), u.of), true);
}
Value do_escape(const Use& u) {
  no_arguments(u);
  if (u.of.is(Type::string) && u.of.text->markup && u.name != "forceescape") return u.of;
  return u.w().text(escaped(str_of(u.w(), u.of)), true);
}

Value do_default(const Use& u) {
  const Bound b = u.bound({"default_value", "boolean"});
  const bool absent = u.of.is(Type::undefined) || (b.truth(1, false) && !truthy(u.of));
  return absent ? (b.has(0) ? b.at(0) : u.w().text("")) : u.of;
}

Value do_tojson(const Use& u) {
  const Bound b = u.bound({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = b.truth(0, false);
  style.sorted = b.truth(3, false);
  if (b.has(1) && !b.at(1).is(Type::none)) {
    const int64_t count = b.at(1).is(Type::string) ? 0 : b.integer(1, 0);
    u.w().claim_text(count);
    style.indent =
        b.at(1).is(Type::string) ? b.at(1).bytes() : std::string(static_cast<size_t>(std::max<int64_t>(count, 0)), ' ');
    style.comma = std::string(1, ',');
  }
  if (b.has(2) && !b.at(2).is(Type::none)) {
    const std::vector<Value>& pair = u.w().items(b.at(2));
    if (pair.size() != 2 || !pair[0].is(Type::string) || !pair[1].is(Type::string))
      u.w().refuse("\"tojson\": separators must be two texts");
    style.comma = pair[0].bytes();
    style.colon = pair[1].bytes();
  }
  return u.w().text(json_of(u.w(), u.of, style));
}

Value do_indent(const Use& u) {
  const Bound b = u.bound({"width", "first", "blank"});
  const int64_t width = b.has(0) && b.at(0).is(Type::string) ? 0 : b.integer(0, 4);
  u.w().claim_text(width);
  const std::string by = b.has(0) && b.at(0).is(Type::string)
                             ? b.at(0).bytes()
                             : std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  if (!u.of.is(Type::string)) u.w().refuse(fmt::format("\"indent\" needs a text, found {}", name_of(u.of.type)));
  const std::vector<std::string> lines = lines_of(u.of.bytes() + "\n", false);
  u.w().claim(static_cast<int64_t>(lines.size() * 40));
  std::string out = b.truth(1, false) ? by : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i) out += '\n';
    if (i && (!lines[i].empty() || b.truth(2, false))) out += by;
    out += lines[i];
    u.w().claim_text(static_cast<int64_t>(out.size()));
  }
  return u.w().text(std::move(out), u.of.text->markup);
}

Value do_truncate(const Use& u) {
  const Bound b = u.bound({"length", "killwords", "end", "leeway"});
  if (!u.of.is(Type::string)) u.w().refuse(fmt::format("\"truncate\" needs a text, found {}", name_of(u.of.type)));
  const std::string end = b.text(2, "...");
  const int64_t length = b.integer(0, 255), tail = text_of(end).length;
  const int64_t leeway = b.has(3) && !b.at(3).is(Type::none) ? b.integer(3, 0) : 5;
  if (length < tail || leeway < 0) u.w().refuse("\"truncate\": the length is shorter than the end, or leeway below 0");
  if (u.of.text->length - leeway <= length) return u.of;
  std::string kept = u.of.bytes().substr(0, byte_of(*u.of.text, length - tail));
  if (const size_t blank = kept.rfind(' '); !b.truth(1, false) && blank != std::string::npos) kept.resize(blank);
  return u.w().text(kept + end);
}

Value do_wordcount(const Use& u) {
  no_arguments(u);
  const Value v = soft(u);
  u.w().read(static_cast<int64_t>(v.bytes().size()));
  int64_t n = 0;
  bool inside = false;
  for (size_t i = 0; i < v.bytes().size();) {
    const uint32_t c = next_code(v.bytes(), i);
    const bool word = is_letter(c) || is_digit(c).value_or(true) || c == '_';
    n += word && !inside;
    inside = word;
  }
  return Value::of(n);
}

Value do_format(const Use& u) {
  if (!u.args.positional.empty() && !u.args.named.empty())
    u.w().refuse("\"format\" takes positional or named arguments");
  Value values = u.w().list(u.args.positional, Type::tuple);
  if (!u.args.named.empty()) {
    values = u.w().dict();
    for (const auto& [name, v] : u.args.named) u.w().put(*values.dict, Value::of(name), v);
  }
  return percent(u.w(), soft(u), values);
}

Value do_abs(const Use& u) {
  no_arguments(u);
  if (u.of.whole()) return u.of.integer < 0 ? negative(u.w(), u.of) : Value::of(u.of.integer);
  if (u.of.is(Type::real)) return Value::of(std::abs(u.of.real));
  u.w().refuse(fmt::format("\"abs\" needs a number, found {}", name_of(u.of.type)));
}

Value do_int(const Use& u) {
  const Bound b = u.bound({"default", "base"});
  const Value otherwise = b.value(0, Value::of(int64_t{0}));
  if (u.of.is(Type::undefined)) u.w().refuse(why_undefined(u.of));
  if (u.of.whole()) return Value::of(u.of.integer);
  std::optional<double> real;
  if (u.of.is(Type::real)) {
    if (std::isinf(u.of.real)) u.w().refuse("cannot convert float infinity to integer");
    real = u.of.real;
  } else if (u.of.is(Type::string)) {
    const int64_t base = b.integer(1, 10);
    if (const auto whole = whole_from(u.w(), u.of.bytes(), base < 0 || base > 36 ? 1 : static_cast<int>(base)))
      return Value::of(*whole);
    real = real_from(u.of.bytes());
  }
  return real && std::isfinite(*real) ? Value::of(truncated(u.w(), *real)) : otherwise;
}
Value do_float(const Use& u) {
  const Bound b = u.bound({"default"});
  if (u.of.is(Type::undefined)) u.w().refuse(why_undefined(u.of));
  if (u.of.number()) return Value::of(u.of.as_real());
  const std::optional<double> real = u.of.is(Type::string) ? real_from(u.of.bytes()) : std::nullopt;
  return real ? Value::of(*real) : b.value(0, Value::of(0.0));
}

Value do_round(const Use& u) {
  const Bound b = u.bound({"precision", "method"});
  const int64_t precision = b.integer(0, 0);
  const std::string method = b.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor")
    u.w().refuse(fmt::format("\"round\" knows common, ceil and floor, found {}", method));
  if (!u.of.number())
    u.w().refuse(u.of.is(Type::undefined) ? why_undefined(u.of)
                                          : fmt::format("\"round\" needs a number, found {}", name_of(u.of.type)));
  if (precision < 0 || precision > 300) u.w().unsupported("\"round\" to less than 0 or more than 300 digits");
  const double d = u.of.as_real();
  if (method == "common") {
    if (u.of.whole()) return Value::of(u.of.integer);
    // The C library rounds the exact value of a double, ties to even, as Python does.
    return Value::of(std::isfinite(d) ? std::stod(fmt::format("{:.{}f}", d, precision)) : d);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = d * scale;
  if (std::abs(scaled) > 9e15) u.w().unsupported("\"round\" of a number of more than 53 bits");
  return Value::of((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value do_attr(const Use& u) {
  const Bound b = u.bound({"name"});
  const Value& name = b.required(0);
  if (!name.is(Type::string)) u.w().refuse("\"attr\" needs a name");
  // An attribute only: a mapping's keys are not found.
  if (u.of.is(Type::dict) && has_method(u.of.type, name.bytes()) == Access::absent)
    return Value::missing(name.text, u.of.type);
  return u.in.attribute(u.of, name.text);
}

}  // namespace

Filter text_filter(const std::string& name) {
  static const std::map<std::string, Filter> table = {
      {"upper", do_upper},     {"lower", do_lower},       {"capitalize", do_capitalize},
      {"title", do_title},     {"trim", do_trim},         {"center", do_center},
      {"replace", do_replace}, {"string", do_string},     {"safe", do_safe},
      {"escape", do_escape},   {"e", do_escape},          {"forceescape", do_escape},
      {"default", do_default}, {"d", do_default},         {"tojson", do_tojson},
      {"indent", do_indent},   {"truncate", do_truncate}, {"wordcount", do_wordcount},
      {"format", do_format},   {"abs", do_abs},           {"int", do_int},
      {"float", do_float},     {"round", do_round},       {"attr", do_attr},
  };
  const auto at = table.find(name);
  return at == table.end() ? nullptr : at->second;
}

bool has_filter(const std::string& name) { return text_filter(name) || list_filter(name); }
bool is_jinja_filter(const std::string& name) {
  static const std::vector<std::string> others =
      words("filesizeformat pprint random striptags urlencode urlize wordwrap xmlattr");
  return has_filter(name) || std::find(others.begin(), others.end(), name) != others.end();
}

Value Interpreter::filter(const std::string& name, const Value& of, const Args& args) {
  const Deeper deeper(w);
  Filter f = text_filter(name);
  if (!f) f = list_filter(name);
  if (!f) {
    if (is_jinja_filter(name)) w.unsupported(fmt::format("the filter \"{}\"", name));
    w.refuse(fmt::format("there is no filter \"{}\"", name));
  }
  return f({*this, name, of, args});
}

}  // namespace fewbit::jinja

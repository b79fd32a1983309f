#include "src/text/jinja/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/text/jinja/characters.h"
#include "src/text/jinja/loop.h"
#include "src/text/utf8.h"

namespace fewbit::jinja {
namespace {

class Printer {
 public:
  explicit Printer(Workspace& w) : w_(w) {}
  std::string out;

  void repr(const Value& v, int level = 0) {
    w_.step();
    w_.claim_text(static_cast<int64_t>(out.size()));
    if (level > kDataDepth) w_.refuse(fmt::format("a value that is nested more than {} deep is printed", kDataDepth));
    switch (v.type) {
      case Type::undefined:
        out += "Undefined";
        return;
      case Type::none:
        out += "None";
        return;
      case Type::boolean:
        out += v.integer ? "True" : "False";
        return;
      case Type::integer:
        out += std::to_string(v.integer);
        return;
      case Type::real:
        out += repr_of(v.real);
        return;
      case Type::string:
        w_.read(static_cast<int64_t>(v.bytes().size()));
        out += v.text->markup ? fmt::format("Markup({})", repr_of(v.bytes())) : repr_of(v.bytes());
        return;
      default:
        return container(v, level);
    }
  }

 private:
  void container(const Value& v, int level) {
    switch (v.type) {
      case Type::list:
        return row("[", v.list->items, "]", level);
      case Type::tuple:
        return row("(", v.list->items, v.list->items.size() == 1 ? ",)" : ")", level);
      case Type::dict:
        return entries("{", *v.dict, "}", level);
      case Type::space:
        return entries("<Namespace {", *v.dict, "}>", level);
      case Type::view: {
        const View::Kind kind = v.view->kind;
        const char* name = kind == View::Kind::keys ? "keys" : kind == View::Kind::values ? "values" : "items";
        return row(fmt::format("dict_{}([", name), w_.items(v), "])", level);
      }
      case Type::range:
        out += v.range->step == 1 ? fmt::format("range({}, {})", v.range->start, v.range->stop)
                                  : fmt::format("range({}, {}, {})", v.range->start, v.range->stop, v.range->step);
        return;
      case Type::loop:
        out += loop_text(*v.loop);
        return;
      case Type::macro:
        out += macro_text(*v.macro);
        return;
      default:
        w_.unsupported(fmt::format("printing a {}, which has no fixed text", name_of(v.type)));
    }
  }

  void row(const std::string& open, const std::vector<Value>& items, const char* close, int level) {
    out += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) out += ", ";
      repr(items[i], level + 1);
    }
    out += close;
  }
  void entries(const char* open, const Dict& d, const char* close, int level) {
    out += open;
    for (size_t i = 0; i < d.entries.size(); ++i) {
      if (i) out += ", ";
      repr(d.entries[i].first, level + 1);
      out += ": ";
      repr(d.entries[i].second, level + 1);
    }
    out += close;
  }

  Workspace& w_;
};

class JsonPrinter {
 public:
  JsonPrinter(Workspace& w, const JsonStyle& style) : w_(w), style_(style) {}
  std::string out;

  void value(const Value& v, int level) {
    w_.step();
    w_.claim_text(static_cast<int64_t>(out.size()));
    if (level > kDataDepth)
      w_.refuse(fmt::format("\"tojson\" of a value that is nested more than {} deep", kDataDepth));
    if (v.is(Type::none) || v.is(Type::boolean) || v.number()) {
      out += scalar(v);
    } else if (v.is(Type::string)) {
      text(v.bytes());
    } else if (v.is(Type::list) || v.is(Type::tuple)) {
      const std::vector<Value>& items = v.list->items;
      group('[', ']', items.size(), level, [&](size_t i) { value(items[i], level + 1); });
    } else if (v.is(Type::dict)) {
      const auto entries = ordered(*v.dict);
      group('{', '}', entries.size(), level, [&](size_t i) {
        text(key(entries[i].first));
        out += style_.colon;
        value(entries[i].second, level + 1);
      });
    } else {
      w_.refuse(fmt::format("Object of type {} is not JSON serializable", name_of(v.type)));
    }
  }

 private:
  static std::string scalar(const Value& v) {
    if (v.is(Type::none)) return "null";
    if (v.is(Type::boolean)) return v.integer ? "true" : "false";
    if (v.is(Type::integer)) return std::to_string(v.integer);
    if (std::isnan(v.real)) return "NaN";
    if (std::isinf(v.real)) return v.real > 0 ? "Infinity" : "-Infinity";
    return repr_of(v.real);
  }
  std::string key(const Value& k) {
    if (k.is(Type::string)) return k.bytes();
    if (k.is(Type::none) || k.number()) return scalar(k);
    w_.refuse(fmt::format("\"tojson\": keys must be str, int, float, bool or None, not {}", name_of(k.type)));
  }
  std::vector<std::pair<Value, Value>> ordered(const Dict& d) {
    std::vector<std::pair<Value, Value>> entries = d.entries;
    if (style_.sorted)
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto& a, const auto& b) { return w_.less(a.first, b.first); });
    return entries;
  }

  void newline(int level) {
    if (!style_.indent) return;
    out += '\n';
    w_.claim_text(static_cast<int64_t>(out.size() + style_.indent->size() * static_cast<size_t>(level)));
    for (int i = 0; i < level; ++i) out += *style_.indent;
  }
  template <class Item>
  void group(char open, char close, size_t count, int level, const Item& item) {
    out += open;
    for (size_t i = 0; i < count; ++i) {
      if (i) out += style_.comma;
      newline(level + 1);
      item(i);
    }
    if (count) newline(level);
    out += close;
  }

  void unit(uint32_t code) { out += fmt::format("\\u{:04x}", code); }
  void text(std::string_view s) {
    w_.read(static_cast<int64_t>(s.size()));
    out += '"';
    for (size_t i = 0; i < s.size();) {
      const size_t begin = i;
      const uint32_t c = next_code(s, i);
      static constexpr std::string_view kPlain = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
      if (const size_t k = c < 0x80 ? kPlain.find(static_cast<char>(c)) : std::string_view::npos;
          k != std::string_view::npos) {
        out += '\\';
        out += kNames[k];
      } else if (c < 0x20 || (style_.ascii && c >= 0x7F && c < 0x10000)) {
        unit(c);
      } else if (style_.ascii && c >= 0x10000) {
        unit(0xD800 + ((c - 0x10000) >> 10));
        unit(0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        out += s.substr(begin, i - begin);
      }
    }
    out += '"';
  }

  Workspace& w_;
  const JsonStyle& style_;
};

}  // namespace

std::string str_of(Workspace& w, const Value& v) {
  if (v.is(Type::string)) return v.bytes();
  return v.is(Type::undefined) ? "" : repr_of(w, v);
}

std::string repr_of(Workspace& w, const Value& v) {
  Printer p(w);
  p.repr(v);
  return std::move(p.out);
}

std::string repr_of(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific);
  std::string_view s(buffer, static_cast<size_t>(end - buffer));
  const std::string sign = s[0] == '-' ? "-" : "";
  s.remove_prefix(sign.size());
  const size_t e = s.find('e');
  std::string digits(s.substr(0, 1));
  if (e > 2) digits += s.substr(2, e - 2);
  const int exponent = std::stoi(std::string(s.substr(e + 1)));
  const auto count = static_cast<int>(digits.size());
  const auto placed = [&](size_t point) { return fmt::format("{}.{}", digits.substr(0, point), digits.substr(point)); };
  const auto zeros = [](int n) { return std::string(static_cast<size_t>(n), '0'); };
  if (exponent < -4 || exponent >= 16)
    return fmt::format("{}{}e{}{:02}", sign, count > 1 ? placed(1) : digits, exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  if (exponent < 0) return fmt::format("{}0.{}{}", sign, zeros(-exponent - 1), digits);
  if (count <= exponent + 1) return fmt::format("{}{}{}.0", sign, digits, zeros(exponent + 1 - count));
  return sign + placed(static_cast<size_t>(exponent + 1));
}

std::string repr_of(std::string_view s) {
  const char quote = s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < s.size();) {
    const size_t begin = i;
    const uint32_t c = next_code(s, i);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (!is_printable(c)) {
      out += c < 0x100     ? fmt::format("\\x{:02x}", c)
             : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                           : fmt::format("\\U{:08x}", c);
    } else {
      out += s.substr(begin, i - begin);
    }
  }
  return out += quote;
}

std::string json_of(Workspace& w, const Value& v, const JsonStyle& style) {
  JsonPrinter p(w, style);
  p.value(v, 0);
  return std::move(p.out);
}

std::string escaped(std::string_view s) {
  std::string out;
  for (const char c : s) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace fewbit::jinja

// `text % values`, as Python formats.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "src/text/jinja/arithmetic.h"
#include "src/text/jinja/print.h"
#include "src/text/jinja/texts.h"
#include "src/text/utf8.h"

namespace fewbit::jinja {
namespace {

class Formatter {
 public:
  Formatter(Workspace& w, const std::string& format, const Value& values) : w_(w), s_(format), values_(values) {}

  std::string run() {
    std::string out;
    while (at_ < s_.size()) {
      if (s_[at_] != '%') {
        out += s_[at_++];
        continue;
      }
      ++at_;
      out += conversion();
      w_.claim_text(static_cast<int64_t>(out.size()));
    }
    if (values_.is(Type::tuple) ? taken_ < values_.list->items.size() : taken_ == 0 && !values_.is(Type::dict))
      w_.refuse("\"%\": not all arguments are used");
    return out;
  }

 private:
  char peek() const { return at_ < s_.size() ? s_[at_] : '\0'; }

  Value next() {
    if (values_.is(Type::tuple)) {
      if (taken_ >= values_.list->items.size()) w_.refuse("\"%\": not enough arguments");
      return values_.list->items[taken_++];
    }
    if (taken_++ > 0) w_.refuse("\"%\": not enough arguments");
    return values_;
  }
  Value named() {
    const size_t close = s_.find(')', at_);
    if (close == std::string::npos) w_.refuse("\"%\": a name in parentheses is not closed");
    if (!values_.is(Type::dict)) w_.refuse("\"%\": a name in parentheses needs a mapping");
    const std::string name = s_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    const Value* v = w_.find(*values_.dict, name);
    if (!v) w_.refuse(fmt::format("\"%\": there is no \"{}\"", name));
    return *v;
  }
  int64_t count() {
    int64_t n = 0;
    if (peek() == '*') w_.unsupported("\"*\" in a format");
    for (; peek() >= '0' && peek() <= '9'; ++at_) n = std::min<int64_t>(n * 10 + (peek() - '0'), INT32_MAX);
    return n;
  }

  std::string conversion() {
    const bool by_name = peek() == '(';
    const Value value_by_name = by_name ? named() : Value();
    std::string flags;
    while (std::string("-+ #0").find(peek()) != std::string::npos && peek()) flags += s_[at_++];
    const int64_t width = count();
    int64_t precision = -1;
    if (peek() == '.') {
      ++at_;
      precision = count();
    }
    while (peek() == 'h' || peek() == 'l' || peek() == 'L') ++at_;
    const char kind = peek();
    if (!kind) w_.refuse("\"%\": an incomplete format");
    ++at_;
    if (kind == '%') return "%";
    if (flags.find('#') != std::string::npos) w_.unsupported("\"#\" in a format");
    const Value v = by_name ? value_by_name : next();
    const bool left = flags.find('-') != std::string::npos;
    std::string text = body(kind, v, flags, precision);
    const bool zeros =
        !left && flags.find('0') != std::string::npos && std::string("srac").find(kind) == std::string::npos;
    std::string sign;
    if (zeros && (text[0] == '-' || text[0] == '+' || text[0] == ' ')) {
      sign = text.substr(0, 1);
      text.erase(0, 1);
    }
    const auto width_of_digits = width - static_cast<int64_t>(sign.size());
    return sign + padded(w_, text_of(std::move(text)), width_of_digits, zeros ? "0" : " ", left ? '<' : '>');
  }

  std::string body(char kind, const Value& v, const std::string& flags, int64_t precision) {
    switch (kind) {
      case 's':
      case 'r': {
        const Text t = text_of(kind == 's' ? str_of(w_, v) : repr_of(w_, v));
        return precision < 0 || precision >= t.length ? t.bytes : t.bytes.substr(0, byte_of(t, precision));
      }
      case 'd':
      case 'i':
      case 'u':
        return whole(v, 10, kind, flags, precision);
      case 'x':
      case 'X':
        return whole(v, 16, kind, flags, precision);
      case 'o':
        return whole(v, 8, kind, flags, precision);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return real(v, kind, flags, precision);
      case 'c':
        if (v.is(Type::string) && v.text->length == 1) return v.bytes();
        w_.unsupported("%c of anything but a text of one character");
      default:
        w_.refuse(fmt::format("\"%\": unsupported format character '{}'", kind));
    }
  }

  std::string whole(const Value& v, int base, char kind, const std::string& flags, int64_t precision) {
    if (!v.number() || (v.is(Type::real) && base != 10))
      w_.refuse(fmt::format("%{} format: a whole number is required, not {}", kind, name_of(v.type)));
    const int64_t n = v.is(Type::real) ? truncated(w_, v.real) : v.integer;
    const uint64_t size = n < 0 ? ~static_cast<uint64_t>(n) + 1 : static_cast<uint64_t>(n);
    std::string digits = base == 10    ? fmt::format("{}", size)
                         : base == 8   ? fmt::format("{:o}", size)
                         : kind == 'x' ? fmt::format("{:x}", size)
                                       : fmt::format("{:X}", size);
    return sign_of(n < 0, flags) + padded(w_, text_of(std::move(digits)), precision, "0", '>');
  }
  std::string real(const Value& v, char kind, const std::string& flags, int64_t precision) {
    if (!v.number()) w_.refuse(fmt::format("%{} format: a number is required, not {}", kind, name_of(v.type)));
    const double d = v.as_real();
    if (precision > 400) w_.unsupported("a precision of more than 400 digits");
    if (!std::isfinite(d)) {
      const std::string word = std::isnan(d) ? "nan" : "inf";
      return sign_of(d < 0, flags) + (kind < 'a' ? (word == "nan" ? "NAN" : "INF") : word);
    }
    const char format[] = {'%', '.', '*', kind, '\0'};
    char buffer[800];
    const int size =
        std::snprintf(buffer, sizeof buffer, format, precision < 0 ? 6 : static_cast<int>(precision), std::abs(d));
    return sign_of(std::signbit(d), flags) + std::string(buffer, static_cast<size_t>(size));
  }
  static std::string sign_of(bool negative, const std::string& flags) {
    if (negative) return "-";
    return flags.find('+') != std::string::npos ? "+" : flags.find(' ') != std::string::npos ? " " : "";
  }

  Workspace& w_;
  const std::string& s_;
  const Value& values_;
  size_t at_ = 0, taken_ = 0;
};

}  // namespace

Value percent(Workspace& w, const Value& text, const Value& values) {
  if (text.text->markup) w.unsupported("\"%\" of a text from \"safe\" or \"escape\"");
  // A list counts as all used, as in Python, where anything with keys or places does.
  w.read(static_cast<int64_t>(text.bytes().size()));
  return w.text(Formatter(w, text.bytes(), values).run());
}

}  // namespace fewbit::jinja

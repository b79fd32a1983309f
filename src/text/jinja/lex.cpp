#include "src/text/jinja/lex.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/text/jinja/characters.h"
#include "src/text/utf8.h"

namespace fewbit::jinja {
namespace {

using Kind = Token::Kind;

bool digit(char c) { return c >= '0' && c <= '9'; }
bool hex_digit(char c) { return digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool word(char c) {
  return digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<uint8_t>(c) >= 0x80;
}

// Newlines of other systems become \n; one at the end goes, as in Jinja.
std::string with_newlines(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '\r' && i + 1 < s.size() && s[i + 1] == '\n') continue;
    out += s[i] == '\r' ? '\n' : s[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, Site& site) : s_(std::move(source)), site_(site) { site_.line = 1; }

  std::vector<Token> run() {
    while (at_ < s_.size()) data();
    push(Kind::end, "");
    return std::move(out_);
  }

 private:
  void push(Kind kind, std::string text) { out_.push_back({kind, std::move(text), site_.line}); }
  bool next_is(std::string_view text) const { return s_.compare(at_, text.size(), text) == 0; }
  char peek(size_t ahead = 0) const { return at_ + ahead < s_.size() ? s_[at_ + ahead] : '\0'; }
  void go(size_t to) {
    to = std::min(to, s_.size());
    site_.line += static_cast<int>(
        std::count(s_.begin() + static_cast<int64_t>(at_), s_.begin() + static_cast<int64_t>(to), '\n'));
    at_ = to;
  }
  // Where the whitespace from `from` on ends.
  size_t past_blanks(size_t from) const {
    while (from < s_.size()) {
      size_t next = from;
      if (!is_blank(next_code(s_, next))) break;
      from = next;
    }
    return from;
  }

  // Steps over the end of a tag whose last two characters are at `stop`; '-' in front of them takes the whitespace
  // behind, trim_blocks one newline, unless '+' forbids it.
  void close(size_t stop, char mark, bool trim) {
    size_t to = stop + 2;
    if (mark == '-')
      to = past_blanks(to);
    else if (trim && mark != '+' && to < s_.size() && s_[to] == '\n')
      ++to;
    go(to);
    line_starts_ = to > stop + 2 && s_[to - 1] == '\n';
  }

  // A text in front of a tag: '-' takes its trailing whitespace, lstrip_blocks the blanks between the start of the line
  // and a block or comment.
  void push_data(std::string text, char mark, bool lstrip) {
    if (mark == '-') {
      text.resize(stripped(text, {}, false, true).size());
    } else if (mark != '+' && lstrip) {
      const size_t newline = text.rfind('\n'), begin = newline == std::string::npos ? 0 : newline + 1;
      if ((begin > 0 || line_starts_) && stripped(std::string_view(text).substr(begin), {}, true, true).empty())
        text.resize(begin);
    }
    if (!text.empty()) push(Kind::data, std::move(text));
  }

  // From here to the next tag, and the tag.
  void data() {
    size_t open = at_;
    while ((open = s_.find('{', open)) != std::string::npos && open + 1 < s_.size() && s_[open + 1] != '%' &&
           s_[open + 1] != '{' && s_[open + 1] != '#')
      ++open;
    if (open == std::string::npos || open + 1 >= s_.size()) {
      push(Kind::data, s_.substr(at_));
      go(s_.size());
      return;
    }
    const char kind = s_[open + 1], sign = open + 2 < s_.size() ? s_[open + 2] : '\0';
    const char mark = sign == '-' || sign == '+' ? sign : '\0';
    push_data(s_.substr(at_, open - at_), mark, kind != '{');
    go(open + (mark ? 3 : 2));
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    push(kind == '{' ? Kind::output_begin : Kind::block_begin, "");
    inside(kind == '{');
  }

  void comment() {
    const size_t stop = s_.find("#}", at_);
    if (stop == std::string::npos) site_.refuse("a comment is not closed by #}");
    const char mark = stop > at_ ? s_[stop - 1] : '\0';
    close(stop, mark, true);
  }

  // The end of a tag that holds nothing but `name`, seen from behind its opening mark; npos where it is another tag.
  size_t end_of(std::string_view name, size_t from, char& mark) const {
    size_t i = past_blanks(from);
    if (s_.compare(i, name.size(), name) != 0) return std::string::npos;
    i = past_blanks(i + name.size());
    mark = i < s_.size() && (s_[i] == '-' || (s_[i] == '+' && name != "raw")) ? s_[i] : '\0';
    if (mark) ++i;
    return s_.compare(i, 2, "%}") == 0 ? i : std::string::npos;
  }

  bool raw() {
    char mark = '\0';
    const size_t stop = end_of("raw", at_, mark);
    if (stop == std::string::npos) return false;
    close(stop, mark, false);
    for (size_t open = at_; (open = s_.find("{%", open)) != std::string::npos; open += 2) {
      const char sign = open + 2 < s_.size() ? s_[open + 2] : '\0';
      const bool marked = sign == '-' || sign == '+';
      const size_t end = end_of("endraw", open + (marked ? 3 : 2), mark);
      if (end == std::string::npos) continue;
      push_data(s_.substr(at_, open - at_), marked ? sign : '\0', true);
      close(end, mark, true);
      return true;
    }
    site_.refuse("{% raw %} is not closed by {% endraw %}");
  }

  void inside(bool output) {
    std::string open;  // brackets that wait for their other halves
    const std::string end = output ? "}}" : "%}";
    for (;;) {
      if (at_ >= s_.size()) site_.refuse(fmt::format("a tag is not closed by {}", end));
      if (open.empty()) {
        const bool marked = (peek() == '-' || (peek() == '+' && !output)) && s_.compare(at_ + 1, 2, end) == 0;
        if (marked || next_is(end)) {
          push(output ? Kind::output_end : Kind::block_end, "");
          return close(at_ + (marked ? 1 : 0), marked ? peek() : '\0', !output);
        }
      }
      if (const size_t to = past_blanks(at_); to > at_) {
        go(to);
      } else if (digit(peek())) {
        number();
      } else if (word(peek())) {
        size_t to_word = at_;
        while (to_word < s_.size() && word(s_[to_word])) ++to_word;
        push(Kind::name, s_.substr(at_, to_word - at_));
        go(to_word);
      } else if (peek() == '"' || peek() == '\'') {
        string();
      } else {
        symbol(open);
      }
    }
  }

  void symbol(std::string& open) {
    static constexpr std::array kTwo = std::to_array<std::string_view>({"==", "!=", "<=", ">=", "//", "**"});
    const std::string two = s_.substr(at_, 2);
    const char c = peek();
    if (std::find(kTwo.begin(), kTwo.end(), two) != kTwo.end()) {
      push(Kind::symbol, two);
      at_ += 2;
      return;
    }
    static constexpr std::string_view kOne = "+-/*%~[](){}<>=.:|,;", kOpen = "([{", kClose = ")]}";
    if (kOne.find(c) == std::string_view::npos) site_.refuse(fmt::format("unexpected character '{}'", c));
    if (const size_t k = kOpen.find(c); k != std::string_view::npos) open += kClose[k];
    if (kClose.find(c) != std::string_view::npos) {
      if (open.empty() || open.back() != c) site_.refuse(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    push(Kind::symbol, std::string(1, c));
    ++at_;
  }

  // Digits with underscores between them, from `i` on; `i` moves behind them.
  template <class IsDigit>
  std::string digits(size_t& i, IsDigit is_digit) const {
    std::string out;
    while (i < s_.size() && (is_digit(s_[i]) || (s_[i] == '_' && i + 1 < s_.size() && is_digit(s_[i + 1])))) {
      if (s_[i] != '_') out += s_[i];
      ++i;
    }
    return out;
  }

  void number() {
    const char c = static_cast<char>(peek(1) | 0x20);
    const bool behind_dot = at_ > 0 && s_[at_ - 1] == '.';
    size_t i = at_;
    if (peek() == '0' && (c == 'x' || c == 'b' || c == 'o')) {
      i += 2;
      const std::string found =
          digits(i, [&](char d) { return c == 'x' ? hex_digit(d) : d >= '0' && d <= (c == 'b' ? '1' : '7'); });
      if (!found.empty()) {
        push(Kind::integer, std::string("0") + c + found);
        return go(i);
      }
      i = at_;
    }
    std::string text = digits(i, digit);
    const size_t behind_whole = i;
    bool real = false;
    if (!behind_dot && i + 1 < s_.size() && s_[i] == '.' && digit(s_[i + 1])) {
      text += '.' + digits(++i, digit);
      real = true;
    }
    if (size_t e = i; !behind_dot && e < s_.size() && (s_[e] == 'e' || s_[e] == 'E')) {
      ++e;
      const std::string sign = e < s_.size() && (s_[e] == '+' || s_[e] == '-') ? s_.substr(e++, 1) : "";
      if (const std::string exponent = e < s_.size() && digit(s_[e]) ? digits(e, digit) : ""; !exponent.empty()) {
        text += 'e' + sign + exponent;
        i = e;
        real = true;
      }
    }
    if (!real && peek() == '0' && text.find_first_not_of('0') != std::string::npos)
      site_.refuse(fmt::format("the number {} begins with a zero", s_.substr(at_, behind_whole - at_)));
    push(real ? Kind::real : Kind::integer, std::move(text));
    go(i);
  }

  void string() {
    const char quote = peek();
    size_t i = at_ + 1;
    while (i < s_.size() && s_[i] != quote) i += s_[i] == '\\' ? 2 : 1;
    if (i >= s_.size()) site_.refuse("a string is not closed");
    push(Kind::string, unescaped(std::string_view(s_).substr(at_ + 1, i - at_ - 1)));
    go(i + 1);
  }

  std::string unescaped(std::string_view s) const {
    std::string out;
    for (size_t i = 0; i < s.size();) {
      if (s[i] != '\\') {
        out += s[i++];
        continue;
      }
      ++i;
      const size_t before = i;
      const uint32_t c = next_code(s, i);
      static constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t k = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
          k != std::string_view::npos) {
        out += kTo[k];
      } else if (c >= '0' && c <= '7') {
        uint32_t code = 0;
        for (i = before; i < s.size() && i < before + 3 && s[i] >= '0' && s[i] <= '7'; ++i)
          code = code * 8 + static_cast<uint32_t>(s[i] - '0');
        append_code(out, code);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_code(out, code_point(s, i, c == 'x' ? 2 : c == 'u' ? 4 : 8));
      } else if (c == 'N') {
        site_.unsupported("the escape \\N{…} in a string");
      } else if (c >= 0x80) {
        // Jinja writes the character as an escape of its own, and the backslash in front then stands for itself.
        out += fmt::format("\\{}{:0{}x}",
                           c < 0x100     ? 'x'
                           : c < 0x10000 ? 'u'
                                         : 'U',
                           c,
                           c < 0x100     ? 2
                           : c < 0x10000 ? 4
                                         : 8);
      } else if (c != '\n') {
        out += '\\';
        out += static_cast<char>(c);
      }
    }
    return out;
  }

  uint32_t code_point(std::string_view s, size_t& i, size_t count) const {
    uint32_t code = 0;
    for (size_t k = 0; k < count; ++k, ++i) {
      if (i >= s.size() || !hex_digit(s[i])) site_.refuse("an escape in a string has too few digits");
      code = code * 16 + static_cast<uint32_t>(digit(s[i]) ? s[i] - '0' : (s[i] | 0x20) - 'a' + 10);
    }
    if (code >= 0xD800 && code < 0xE000) site_.unsupported("half of a surrogate pair in a string");
    if (code > 0x10FFFF) site_.refuse("an escape in a string is no character");
    return code;
  }

  std::string s_;
  Site& site_;
  std::vector<Token> out_{};
  size_t at_ = 0;
  bool line_starts_ = true;  // what was read last ended a line
};

}  // namespace

std::vector<Token> lex(std::string_view source, Site& site) {
  if (!is_utf8(source)) site.refuse("the template is not UTF-8");
  return Lexer(with_newlines(source), site).run();
}

}  // namespace fewbit::jinja

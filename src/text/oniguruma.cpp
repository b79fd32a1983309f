// Translation of regular expressions from Oniguruma's Ruby syntax to PCRE2's: one pass over the pattern,
// copying what means the same, rewriting what does not, refusing the rest by name.
#include <fmt/format.h>

#include <array>
#include <cctype>
#include <vector>

#include "src/core/error.h"
#include "src/text/pattern.h"

namespace fewbit {
namespace {

// White_Space and its complement, as the inside of a class. PCRE2's own \s also takes U+180E.
constexpr std::string_view kSpace =
    "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr std::string_view kNotSpace =
    "\\x00-\\x08\\x0E-\\x1F\\x21-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{"
    "2027}"
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}";
// Oniguruma's Word class; PCRE2's own \w lacks marks and connectors other than '_'.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

struct Name {
  std::string_view oniguruma, pcre;
};
constexpr std::array kPropertyNames = std::to_array<Name>({
    {"Letter", "L"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Punctuation", "P"},
    {"Punct", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Other", "C"},
    {"Digit", "Nd"},
    {"Any", "Any"},
    {"Alpha", "Alphabetic"},
    {"Alphabetic", "Alphabetic"},
    {"Upper", "Uppercase"},
    {"Uppercase", "Uppercase"},
    {"Lower", "Lowercase"},
    {"Lowercase", "Lowercase"},
    {"Emoji", "Emoji"},
    {"Space", "White_Space"},
    {"White_Space", "White_Space"},
});

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    while (i_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::unsupported, where_ + ": regular expression construct " + what + " at byte " + std::to_string(i_) +
                                     " is not supported in \"" + std::string(in_) + "\"");
  }
  char peek(size_t ahead = 0) const { return i_ + ahead < in_.size() ? in_[i_ + ahead] : '\0'; }
  bool at(std::string_view s) const { return in_.substr(i_, s.size()) == s; }
  void copy(size_t n) {
    out_ += in_.substr(i_, n);
    i_ += n;
  }

  void step() {
    const char c = peek();
    if (c == '{') return interval();
    if (c == '*' || c == '+' || c == '?' || c == '|' || c == '^' || c == '$') return copy(1);
    if (c == '(') return open_group();
    if (c == ')') return close_group();
    atom_ = out_.size();
    if (c == '\\') return escape();
    if (c == '[') return char_class();
    copy(1);
    while ((static_cast<uint8_t>(peek()) & 0xC0) == 0x80) copy(1);  // the rest of a multi-byte character
  }

  void open_group() {
    groups_.push_back({out_.size(), folds_});
    if (at("(*")) refuse("(*");
    if (peek(1) != '?') return copy(1);
    for (std::string_view plain : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"})
      if (at(plain)) return copy(plain.size());
    size_t n = 2;
    while (i_ + n < in_.size() && (in_[i_ + n] == 'i' || in_[i_ + n] == '-')) ++n;
    // A bare (?i) reaches over alternatives differently in the two engines, unless it opens the pattern.
    const bool whole_pattern = peek(n) == ')' && out_.empty();
    if (n == 2 || (peek(n) != ':' && !whole_pattern)) refuse(std::string(in_.substr(i_, n + 1)));
    const std::string_view flags = in_.substr(i_ + 2, n - 2);
    if (flags.find('i') != std::string_view::npos) folds_ = flags.find('-') > flags.find('i');
    if (whole_pattern) groups_.pop_back(), ++n;
    copy(whole_pattern ? n : n + 1);
  }

  void close_group() {
    if (groups_.empty()) refuse(")");
    atom_ = groups_.back().begin;
    folds_ = groups_.back().folded;
    groups_.pop_back();
    copy(1);
  }

  // {n}, {n,}, {n,m}, {,m}; anything else is a literal brace.
  void interval() {
    size_t n = 1;
    bool digits = false, comma = false;
    while (std::isdigit(static_cast<unsigned char>(peek(n))) || (peek(n) == ',' && !comma)) {
      (peek(n) == ',' ? comma : digits) = true;
      ++n;
    }
    if (peek(n) != '}' || !digits) {
      atom_ = out_.size();
      out_ += '\\';
      return copy(1);
    }
    if (peek(1) == ',') {
      out_ += "{0";
      ++i_, --n;
    }
    copy(n + 1);
    // In Ruby's syntax a '+' here repeats the whole thing, and so does a '?' behind {n}.
    if (peek() == '+' || (peek() == '?' && !comma)) {
      out_.insert(atom_, "(?:");
      out_ += ')';
      copy(1);
    }
  }

  // What stands between [ or && and the next && or ]: single characters, ranges and escapes, and whole classes.
  struct Operand {
    std::string items{};
    std::vector<std::string> classes{};
  };

  void char_class() {
    const std::string translated = class_at(0);
    out_ += translated;
  }

  // The class that begins here, as an expression that matches one character. PCRE2 has neither classes in classes nor
  // &&: a union becomes alternatives, an intersection lookaheads.
  std::string class_at(int depth) {
    constexpr int kMaxNested = 8;
    if (depth > kMaxNested) refuse("[ in a class, so often,");
    ++i_;
    const bool negated = peek() == '^';
    i_ += negated;
    if (peek() == ']') refuse("[]");
    std::vector<Operand> operands(1);
    while (peek() != ']') {
      if (i_ >= in_.size()) refuse("[ without ]");
      Operand& now = operands.back();
      const bool joins = at("&&");
      if (!joins && peek() != '[') {
        class_item(now);
        continue;
      }
      if (folds_) refuse(joins ? "&& in a class under (?i)" : "[ in a class under (?i)");
      if (at("[:")) refuse("[: in a class");
      if (in_[i_ - 1] == '-') refuse("- in front of [ or &&");
      if (joins) {
        i_ += 2;
        operands.emplace_back();
      } else {
        now.classes.push_back(class_at(depth + 1));
      }
      if (peek() == '-') refuse("- behind ] or &&");
    }
    ++i_;
    if (operands.size() == 1 && operands[0].classes.empty()) return (negated ? "[^" : "[") + operands[0].items + "]";
    const std::string both = intersection_of(operands);
    return negated ? "(?:(?!" + both + ")\\p{Any})" : both;
  }

  std::string union_of(const Operand& o) const {
    if (o.classes.empty() && o.items.empty()) refuse("&& with nothing beside it");
    if (o.classes.empty()) return "[" + o.items + "]";
    std::string s = o.items.empty() ? "" : "[" + o.items + "]|";
    for (const std::string& c : o.classes) s += (&c == &o.classes[0] ? "" : "|") + c;
    return "(?:" + s + ")";
  }

  std::string intersection_of(const std::vector<Operand>& operands) const {
    std::string s;
    for (size_t k = 0; k + 1 < operands.size(); ++k) s += "(?=" + union_of(operands[k]) + ")";
    return "(?:" + s + union_of(operands.back()) + ")";
  }

  // A character or an escape. The escapes' translations write to `out_`, which is lent to them.
  void class_item(Operand& now) {
    std::swap(out_, now.items);
    const char kind = peek(1);
    if (peek() == '^' && out_.empty()) {  // not the class's own, so a character
      out_ += '\\';
      copy(1);
    } else if (peek() != '\\') {
      copy(1);
    } else {
      class_escape();
      // A hyphen behind a class is literal; behind our expansion it would open a range.
      if (peek() == '-' && peek(1) != ']' && std::string_view("swdpSDP").find(kind) != std::string_view::npos)
        out_ += '\\';
    }
    std::swap(out_, now.items);
  }

  void class_escape() {
    switch (peek(1)) {
      case 's':
        return emit(kSpace);
      case 'S':
        return emit(kNotSpace);
      case 'w':
        return emit(kWord);
      case 'W':
        refuse("\\W in a class");
      case 'b':
        return emit("\\x08");
      default:
        return shared_escape();
    }
  }

  void escape() {
    const std::string word = "[" + std::string(kWord) + "]", behind = "(?<=" + word + ")", ahead = "(?=" + word + ")",
                      not_behind = "(?<!" + word + ")", not_ahead = "(?!" + word + ")";
    switch (peek(1)) {
      case 's':
        return emit("[" + std::string(kSpace) + "]");
      case 'S':
        return emit("[^" + std::string(kSpace) + "]");
      case 'w':
        return emit(word);
      case 'W':
        return emit("[^" + std::string(kWord) + "]");
      case 'b':
        return emit("(?:" + behind + not_ahead + "|" + not_behind + ahead + ")");
      case 'B':
        return emit("(?:" + behind + ahead + "|" + not_behind + not_ahead + ")");
      case 'A':
      case 'z':
      case 'Z':
        return copy(2);
      default:
        return shared_escape();
    }
  }

  // Replaces the two characters of an escape.
  void emit(std::string_view s) {
    out_ += s;
    i_ += 2;
  }

  void shared_escape() {
    const char c = peek(1);
    if (c == 'p' || c == 'P') return property();
    if (c == 'x' || c == 'u') return code_point();
    if (c == 'v') return emit("\\x0B");
    const bool plain = std::string_view("dDnrtfea").find(c) != std::string_view::npos;
    if (c == '\0' || (!plain && !std::ispunct(static_cast<unsigned char>(c)))) refuse(fmt::format("\\{}", c));
    copy(2);
  }

  void property() {
    const size_t end = in_.find('}', i_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without {name}");
    std::string_view name = in_.substr(i_ + 3, end - i_ - 3);
    out_ += {'\\', peek(1), '{'};
    if (!name.empty() && name[0] == '^') {
      out_ += '^';
      name.remove_prefix(1);
    }
    std::string mapped = name.size() <= 2 ? std::string(name) : "sc:" + std::string(name);
    for (const Name& n : kPropertyNames)
      if (n.oniguruma == name) mapped = n.pcre;
    out_ += mapped + "}";
    i_ = end + 1;
  }

  void code_point() {
    const bool braces = peek(2) == '{';
    size_t n = braces ? 3 : 2;
    const size_t begin = n;
    while (std::isxdigit(static_cast<unsigned char>(peek(n))) && (braces || n < (peek(1) == 'u' ? 6u : 4u))) ++n;
    const std::string hex(in_.substr(i_ + begin, n - begin));
    if (hex.empty() || (braces && (peek(n) != '}' || peek(1) == 'u')) || (!braces && peek(1) == 'u' && hex.size() != 4))
      refuse(fmt::format("\\{}", peek(1)));
    // \xHH above 7F would be a raw byte.
    if (!braces && peek(1) == 'x' && std::stoul(hex, nullptr, 16) > 0x7F) refuse(fmt::format("\\x{}", hex));
    out_ += "\\x{" + hex + "}";
    i_ += braces ? n + 1 : n;
  }

  std::string_view in_;
  const std::string& where_;
  size_t i_ = 0;
  std::string out_;
  size_t atom_ = 0;  // where in `out_` the last repeatable thing begins
  struct Group {
    size_t begin = 0;     // in `out_`
    bool folded = false;  // whether case was ignored in front of it
  };
  std::vector<Group> groups_;  // that are open
  bool folds_ = false;         // case is ignored here
};

}  // namespace

std::string pcre_from_oniguruma(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace fewbit

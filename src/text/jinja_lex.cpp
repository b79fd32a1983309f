// Cutting a template into pieces and the inside of a tag into tokens.
#include "src/text/jinja_lex.h"

#include <fmt/format.h>

#include <array>
#include <cctype>

#include "src/core/error.h"

namespace fewbit::jinja {
namespace {

// Where the tag that begins at `begin` ends ("}}", "%}" or "#}"); strings inside of it are skipped.
size_t end_of_tag(std::string_view s, size_t begin, std::string_view close, const Refuser& refuse) {
  char quote = 0;
  for (size_t i = begin; i + 1 < s.size(); ++i) {
    if (quote) {
      if (s[i] == '\\')
        ++i;
      else if (s[i] == quote)
        quote = 0;
    } else if (close != "#}" && (s[i] == '"' || s[i] == '\'')) {
      quote = s[i];
    } else if (s.substr(i, 2) == close) {
      return i;
    }
  }
  refuse.broken(fmt::format("a tag is not closed by {}", close));
}

void strip_right(std::string& s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.pop_back();
}

// lstrip_blocks: blanks between the start of a line and a block vanish.
void strip_indent(std::string& s, bool at_start) {
  size_t n = s.size();
  while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t')) --n;
  if (n == 0 ? at_start : s[n - 1] == '\n') s.resize(n);
}

std::string unescaped(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '\\' || i + 1 == s.size()) {
      out += s[i];
      continue;
    }
    const char c = s[++i];
    out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
  }
  return out;
}

}  // namespace

void Refuser::unsupported(const std::string& what) const {
  fail(ErrorKind::unsupported,
       fmt::format("{}: line {}: {} is outside of the supported subset of Jinja; give --chat-template llama3, chatml, "
                   "mistral, gemma or a FILE",
                   where_, line, what));
}
void Refuser::broken(const std::string& what) const {
  fail(ErrorKind::checkpoint, fmt::format("{}: line {}: {}", where_, line, what));
}

std::vector<Piece> cut(std::string_view s, Refuser& refuse) {
  std::vector<Piece> pieces;
  if (s.ends_with('\n')) s.remove_suffix(1);  // as Jinja does
  bool strip_next = false, trim_newline = false;
  for (size_t i = 0; i < s.size();) {
    size_t open = i;
    while (open < s.size() && !(s[open] == '{' && open + 1 < s.size() && listed(std::string_view("{%#"), s[open + 1])))
      ++open;
    std::string text(s.substr(i, open - i));
    const bool at_start = i == 0;
    if (strip_next) text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (trim_newline && !strip_next && !text.empty() && text[0] == '\n') text.erase(0, 1);
    const int line_of_text = refuse.line;
    refuse.line +=
        static_cast<int>(std::count(s.begin() + static_cast<int64_t>(i), s.begin() + static_cast<int64_t>(open), '\n'));
    if (open == s.size()) {
      pieces.push_back({Piece::Kind::text, std::move(text), line_of_text});
      break;
    }
    const char kind = s[open + 1];
    const std::string close = kind == '{' ? "}}" : std::string{kind} + "}";
    const size_t stop = end_of_tag(s, open + 2, close, refuse);
    std::string_view inner = s.substr(open + 2, stop - open - 2);
    const bool minus = !inner.empty() && inner.front() == '-', plus = !inner.empty() && inner.front() == '+';
    if (minus)
      strip_right(text);
    else if (kind != '{' && !plus)
      strip_indent(text, at_start);
    if (minus || plus) inner.remove_prefix(1);
    strip_next = !inner.empty() && inner.back() == '-';
    trim_newline = kind != '{' && !(!inner.empty() && inner.back() == '+');
    if (!inner.empty() && (inner.back() == '-' || inner.back() == '+')) inner.remove_suffix(1);
    if (!text.empty()) pieces.push_back({Piece::Kind::text, std::move(text), line_of_text});
    if (kind != '#')
      pieces.push_back({kind == '{' ? Piece::Kind::output : Piece::Kind::block, std::string(inner), refuse.line});
    refuse.line += static_cast<int>(
        std::count(s.begin() + static_cast<int64_t>(open), s.begin() + static_cast<int64_t>(stop), '\n'));
    i = stop + 2;
  }
  return pieces;
}

std::vector<Token> tokens_of(std::string_view s, const Refuser& refuse) {
  static constexpr std::array kTwo = std::to_array<std::string_view>({"==", "!=", "<=", ">=", "//", "**"});
  std::vector<Token> out;
  const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t i = 0; i < s.size();) {
    const char c = s[i];
    size_t j = i + 1;
    if (std::isspace(static_cast<unsigned char>(c))) {
      i = j;
    } else if (word(c)) {
      while (j < s.size() && word(s[j])) ++j;
      const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
      out.push_back({digit ? Token::Kind::number : Token::Kind::name, std::string(s.substr(i, j - i))});
      i = j;
    } else if (c == '"' || c == '\'') {
      while (j < s.size() && s[j] != c) j += s[j] == '\\' ? 2 : 1;
      if (j >= s.size()) refuse.broken("a string is not closed");
      out.push_back({Token::Kind::string, unescaped(s.substr(i + 1, j - i - 1))});
      i = j + 1;
    } else {
      const size_t n = listed(kTwo, s.substr(i, 2)) ? 2 : 1;
      out.push_back({Token::Kind::symbol, std::string(s.substr(i, n))});
      i += n;
    }
  }
  out.emplace_back();
  return out;
}

}  // namespace fewbit::jinja

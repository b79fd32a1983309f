#pragma once
// Pattern: what a tokenizer.json splits at or replaces, a literal string or a regular expression. The files
// are written for Oniguruma (Ruby syntax, UTF-8); we run PCRE2, so expressions are translated first.
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/text/regex.h"

namespace fewbit {

using Match = Regex::Span;

class Pattern {
 public:
  static Pattern literal(std::string text);
  // Error{unsupported} naming `where` (file and key) for a construct that is not understood.
  static Pattern regex(std::string_view oniguruma, const std::string& where);

  // All matches from left to right, none overlapping. The subject must be well-formed UTF-8. An empty match
  // directly behind another match does not count.
  std::vector<Match> find_all(std::string_view subject) const;

 private:
  std::vector<Match> find_literal(std::string_view subject) const;

  std::string literal_{};
  std::optional<Regex> regex_{};
};

// An expression of Oniguruma as PCRE2 reads it (UTF, UCP, MULTILINE). What differs: \s, \w, \b, \v, \u, names
// of scripts, `{,n}` and `{n,m}+` (not possessive in Ruby), classes in classes and their intersections.
// Error{unsupported} where the two cannot be brought together.
std::string pcre_from_oniguruma(std::string_view pattern, const std::string& where);

}  // namespace fewbit

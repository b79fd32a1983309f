#pragma once
// Pattern: what a tokenizer.json splits at or replaces, a literal string or a regular expression. The files
// are written for Oniguruma (Ruby syntax, UTF-8); we run PCRE2, so expressions are translated first.
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace fewbit {

struct Match {
  size_t begin = 0, end = 0;  // byte offsets
};

class Pattern {
 public:
  static Pattern literal(std::string text);
  // Error{unsupported} naming `where` (file and key) for a construct that is not understood.
  static Pattern regex(std::string_view oniguruma, const std::string& where);

  // All matches from left to right, none overlapping. The subject must be well-formed UTF-8. An empty match
  // directly behind another match does not count.
  std::vector<Match> find_all(std::string_view subject) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::vector<Match> find_literal(std::string_view subject) const;

  std::string literal_{};
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_{};
};

// An expression of Oniguruma as PCRE2 reads it (UTF, UCP, MULTILINE). What differs: \s, \w, \b, \v, \u, names
// of scripts, `{,n}` and `{n,m}+` (not possessive in Ruby), classes in classes and their intersections.
// Error{unsupported} where the two cannot be brought together.
std::string pcre_from_oniguruma(std::string_view pattern, const std::string& where);

}  // namespace fewbit

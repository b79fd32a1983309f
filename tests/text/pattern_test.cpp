// Pattern: where Oniguruma and PCRE2 differ, the matches must be Oniguruma's.
#include "src/text/pattern.h"

#include <gtest/gtest.h>

#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

std::string matches(const std::string& regex, const std::string& text) {
  std::string out;
  for (const Match& m : Pattern::regex(regex, "test").find_all(text))
    out += text.substr(m.begin, m.end - m.begin) + "|";
  return out;
}

TEST(Pattern, SpaceIsWhiteSpace) {
  const std::string spaces = "\t\u0085\u00a0\u1680\u2003\u2028\u202f\u205f\u3000", vowel_separator = "\u180e";
  EXPECT_EQ(matches("\\s+", spaces), spaces + "|");
  EXPECT_EQ(matches("\\S+", spaces), "");
  EXPECT_EQ(matches("\\s", vowel_separator), "");
  EXPECT_EQ(matches("[^\\s]", vowel_separator), vowel_separator + "|");
  EXPECT_EQ(matches("[\\S]+", "a" + spaces + vowel_separator), "a|" + vowel_separator + "|");
}

TEST(Pattern, WordsHoldMarksAndConnectors) {
  const std::string word = "e\u0301_\u203f9";
  EXPECT_EQ(matches("\\w+", word + " -"), word + "|");
  EXPECT_EQ(matches("[\\w]+", word + " -"), word + "|");
  EXPECT_EQ(matches("\\W+", word + " -"), " -|");
  EXPECT_EQ(matches("\\bcat\\b", "cat cats"), "cat|");
  EXPECT_EQ(matches("\\Bat", "cat at"), "at|");
}

TEST(Pattern, IntervalPlusIsNotPossessive) {
  EXPECT_EQ(matches("[0-9]{1,3}+", "1234567"), "1234567|");
  EXPECT_EQ(matches("(?:ab){2}+", "abababab"), "abababab|");
  EXPECT_EQ(matches("a{2}?", "aab"), "aa||");  // optional, not lazy: also empty at the end
  EXPECT_EQ(matches("[0-9]{1,3}", "1234"), "123|4|");
  EXPECT_EQ(matches("a{,2}b", "aaab"), "aab|");
  EXPECT_EQ(matches("a{x}", "a{x}"), "a{x}|");
}

TEST(Pattern, PossessiveQuantifiersAndLookahead) {
  EXPECT_EQ(matches("a++a|a", "aaa"), "a|a|a|");
  EXPECT_EQ(matches("\\s+(?!\\S)|\\s+", "a   b "), "  | | |");
}

TEST(Pattern, Escapes) {
  EXPECT_EQ(matches("\\u00e9|\\x{3042}|\\x41", "\u00e9\u3042A"), "\u00e9|\u3042|A|");
  EXPECT_EQ(matches("[\\s-_]+", "- _a"), "- _|");
  EXPECT_EQ(matches("\\v", "\x0b\n"), "\x0b|");
  EXPECT_EQ(matches("^a$", "a\na"), "a|a|");  // lines, always
}

TEST(Pattern, Properties) {
  EXPECT_EQ(matches("\\p{Han}+", "\u6f22\u5b57\u3001a"), "\u6f22\u5b57|");  // U+3001 is Han by extension only
  EXPECT_EQ(matches("\\p{Lu}", "aA"), "A|");
  EXPECT_EQ(matches("\\p{^L}", "a1"), "1|");
  EXPECT_EQ(matches("\\P{Letter}", "a1"), "1|");
  EXPECT_EQ(matches("(?i:'s)", "'S"), "'S|");
}

TEST(Pattern, ClassesInClasses) {
  EXPECT_EQ(matches("[a-z&&[^aeiou]]+", "strength"), "str|ngth|");
  EXPECT_EQ(matches("[\\p{L}&&[^\\p{Han}]]+", "ab\u6f22c"), "ab|c|");
  EXPECT_EQ(matches("[a-f&&c-z&&[^d]]+", "abcdefg"), "c|ef|");
  EXPECT_EQ(matches("[^a-z&&[^aeiou]]+", "bad egg"), "a| e|");  // ^ is of the whole
  EXPECT_EQ(matches("[ab[x-z]]+", "abcxyz"), "ab|xyz|");
  EXPECT_EQ(matches("[^ab[x-z]]+", "abcxyz\n"), "c|\n|");
  EXPECT_EQ(matches("[[ab]&&[bc]]{2}+", "bbbb"), "bbbb|");
  EXPECT_EQ(matches("[[^b]&&^b]", "a^b"), "^|");  // a ^ that does not come first is a character
  EXPECT_EQ(matches("[a-c&&[\\s\\p{L}]]?x", "bx x"), "bx|x|");
}

TEST(Pattern, SearchesThatTryEverythingGiveUp) {
  std::string what;
  const std::string text(64, 'a');
  EXPECT_EQ(error_of([&] { Pattern::regex("(?:a|a)*[xy]", "test").find_all(text + "c"); }, &what),
            ErrorKind::unsupported);
  EXPECT_NE(what.find("gave up"), std::string::npos) << what;
}

TEST(Pattern, EmptyMatchesDoNotLoop) {
  EXPECT_EQ(Pattern::regex("x*", "test").find_all("a\u00e9").size(), 3u);
  EXPECT_EQ(Pattern::literal("").find_all("abc").size(), 0u);
}

TEST(Pattern, LongRunsNeedNoStack) {
  const std::string text(1 << 20, ' ');
  EXPECT_EQ(Pattern::regex("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", "test").find_all(text).size(), 1u);
  EXPECT_EQ(Pattern::regex("(?: |a)*b|(?: )+", "test").find_all(text).size(), 1u);
}

TEST(Pattern, RefusesWhatItCannotBring) {
  for (const char* regex :
       {"[a&&]",  "[[:alpha:]]", "[a-[b]]",       "[[a]-b]", "(?i:[a&&b])", "(?i:[a[b]])", "[[[[[[[[[[a]]]]]]]]]]",
        "(?m:.)", "a(?i)b",      "\\h",           "\\R",     "\\K",         "(*FAIL)",     "[\\W]",
        "\\xff",  "(?<n>a)",     "\\p{Nonsense}", "(",       ")",           "[a",          "\\"}) {
    std::string what;
    EXPECT_EQ(error_of([&] { Pattern::regex(regex, "file: key"); }, &what), ErrorKind::unsupported) << regex;
    EXPECT_EQ(what.rfind("file: key", 0), 0u) << what;
  }
}

}  // namespace
}  // namespace fewbit::test

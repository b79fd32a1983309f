#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/core/text/regex.h"

#include <pcre2.h>

#include <algorithm>

#include "src/core/error.h"
#include "src/core/text/shown.h"

namespace fewbit {
namespace {

// Of the text of an expression. A tokenizer's longest has some 2,000 bytes, a module name's some 100.
constexpr size_t kLongestPattern = 65536;
// Backtracking points: real expressions need some ten for each byte that they match, and so a search begins with few
// and is done again with more where they do not suffice. What it takes beyond the first is paid from the effort that
// all searches share; one through a name costs something in any case, because lists of patterns meet lists of names.
constexpr uint32_t kFirstOfTexts = 1 << 14, kFirstOfNames = 1 << 9, kOfEveryName = 1 << 6, kMorePoints = 16;
constexpr uint64_t kPoints = 20'000'000, kPointsPerByte = 200;  // well below a second, on short texts
// KiB of the heap that one search may take where it is not machine code: a run of a million spaces needs 200 MiB.
constexpr uint32_t kHeap = 320 << 10;

std::string message_of(int code) {
  PCRE2_UCHAR8 buffer[160];
  pcre2_get_error_message_8(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

struct Free {
  void operator()(pcre2_match_data_8* m) const { pcre2_match_data_free_8(m); }
  void operator()(pcre2_match_context_8* c) const { pcre2_match_context_free_8(c); }
};

}  // namespace

void Regex::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free_8(code); }

Regex::Effort::Effort(size_t bytes) : left_(kPoints + kPointsPerByte * bytes) {}

bool Regex::Effort::spend(uint32_t points) {
  if (points > left_ || points > (uint32_t{1} << 27)) return false;  // a second, whatever the text is
  left_ -= points;
  return true;
}

Regex::Regex(std::string_view pattern, Use use, const std::string& where) : where_(where), use_(use) {
  if (pattern.size() > kLongestPattern)
    fail(ErrorKind::unsupported, where + ": a regular expression of " + std::to_string(pattern.size()) +
                                     " bytes; supported: " + std::to_string(kLongestPattern) + " at most");
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | (use == Use::texts ? PCRE2_MULTILINE : PCRE2_ANCHORED);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(), options, &error, &offset,
                              nullptr));
  if (!code_)
    fail(ErrorKind::unsupported, where + ": regular expression \"" + shown(pattern) + "\" cannot be compiled: " +
                                     message_of(error) + " at byte " + std::to_string(offset));
  // Without machine code the interpreter runs it.
  if (use == Use::texts) pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE);
}

std::optional<Regex::Span> Regex::search(std::string_view text, size_t start, Effort& effort) const {
  const std::unique_ptr<pcre2_match_data_8, Free> data(pcre2_match_data_create_from_pattern_8(code_.get(), nullptr));
  const std::unique_ptr<pcre2_match_context_8, Free> limits(pcre2_match_context_create_8(nullptr));
  if (!data || !limits) fail(ErrorKind::memory, where_ + ": no memory for a regular expression's match");
  const auto* bytes = reinterpret_cast<PCRE2_SPTR8>(text.data());
  const bool texts = use_ == Use::texts;
  // Whoever searches texts has checked them; PCRE2 would check the whole anew at every search.
  uint32_t options = texts ? PCRE2_NO_UTF_CHECK : 0, points = texts ? kFirstOfTexts : kFirstOfNames;
  pcre2_set_heap_limit_8(limits.get(), kHeap);
  bool paid = texts || effort.spend(kOfEveryName);
  for (;;) {
    if (!paid)
      fail(ErrorKind::unsupported, where_ +
                                       ": a regular expression gave up on the text: it tries too many ways; give "
                                       "the text in smaller pieces, or mend the expression");
    pcre2_set_match_limit_8(limits.get(), points);
    const int rc = pcre2_match_8(code_.get(), bytes, text.size(), start, options, data.get(), limits.get());
    if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (rc >= 0) {
      const PCRE2_SIZE* at = pcre2_get_ovector_pointer_8(data.get());
      return Span{at[0], std::max(at[0], at[1])};  // \K may put the beginning behind the end
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !(options & PCRE2_NO_JIT)) {
      options |= PCRE2_NO_JIT;  // the interpreter takes its memory from the heap
    } else if (rc == PCRE2_ERROR_MATCHLIMIT) {
      points *= kMorePoints;  // ends before 32 bits do: no effort pays for so many
      paid = effort.spend(points);
    } else {
      fail(ErrorKind::unsupported, where_ + ": a regular expression gave up on the text: " + message_of(rc) +
                                       "; give the text in smaller pieces");
    }
  }
}

}  // namespace fewbit

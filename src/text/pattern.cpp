// Pattern on PCRE2, 8-bit library in UTF mode, compiled to machine code where the library can.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/text/pattern.h"

#include <pcre2.h>

#include "src/core/error.h"

namespace fewbit {
namespace {

// Of one search, so that an expression that tries everything gives up: backtracking points, and KiB of the heap where
// it is not compiled. Real ones need some 10 points for each byte that they match.
const std::string kLimits = "(*LIMIT_MATCH=10000000)(*LIMIT_HEAP=1048576)";

std::string pcre_message(int code) {
  PCRE2_UCHAR8 buffer[160];
  pcre2_get_error_message_8(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

struct FreeMatchData {
  void operator()(pcre2_match_data_8* m) const { pcre2_match_data_free_8(m); }
};

// One search from `start`; false when there is no match.
bool search(const pcre2_code_8* code, std::string_view subject, size_t start, pcre2_match_data_8* data) {
  const auto* text = reinterpret_cast<PCRE2_SPTR8>(subject.data());
  // The caller has checked the text; PCRE2 would check it anew at every search.
  int rc = pcre2_match_8(code, text, subject.size(), start, PCRE2_NO_UTF_CHECK, data, nullptr);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)  // the interpreter takes its memory from the heap
    rc = pcre2_match_8(code, text, subject.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, nullptr);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0)
    fail(ErrorKind::unsupported, "tokenizer: a regular expression gave up on the text: " + pcre_message(rc) +
                                     "; give the text in smaller pieces");
  return true;
}

size_t step_past(std::string_view s, size_t i) {
  do ++i;
  while (i < s.size() && (static_cast<uint8_t>(s[i]) & 0xC0) == 0x80);
  return i;
}

}  // namespace

void Pattern::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free_8(code); }

Pattern Pattern::literal(std::string text) {
  Pattern p;
  p.literal_ = std::move(text);
  return p;
}

Pattern Pattern::regex(std::string_view oniguruma, const std::string& where) {
  const std::string pattern = kLimits + pcre_from_oniguruma(oniguruma, where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Pattern p;
  p.code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr));
  if (!p.code_)
    fail(ErrorKind::unsupported,
         where + ": regular expression \"" + std::string(oniguruma) + "\" cannot be compiled: " + pcre_message(error));
  pcre2_jit_compile_8(p.code_.get(), PCRE2_JIT_COMPLETE);  // without machine code the interpreter runs it
  return p;
}

std::vector<Match> Pattern::find_literal(std::string_view subject) const {
  std::vector<Match> out;
  if (literal_.empty()) return out;
  for (size_t i = subject.find(literal_); i != std::string_view::npos; i = subject.find(literal_, i + literal_.size()))
    out.push_back({i, i + literal_.size()});
  return out;
}

std::vector<Match> Pattern::find_all(std::string_view subject) const {
  if (!code_) return find_literal(subject);
  std::vector<Match> out;
  const std::unique_ptr<pcre2_match_data_8, FreeMatchData> data(
      pcre2_match_data_create_from_pattern_8(code_.get(), nullptr));
  if (!data) fail(ErrorKind::memory, "tokenizer: no memory for a regular expression's match");
  const PCRE2_SIZE* at = pcre2_get_ovector_pointer_8(data.get());
  for (size_t start = 0; start <= subject.size() && search(code_.get(), subject, start, data.get());) {
    const Match m{at[0], at[1]};
    if (m.begin == m.end && !out.empty() && out.back().end == m.end) {
      start = step_past(subject, start);
    } else {
      out.push_back(m);
      start = m.end;
    }
  }
  return out;
}

}  // namespace fewbit

#include "src/text/unicode/bert_text.h"

#include <utf8proc.h>

#include "src/text/utf8.h"

namespace fewbit {
namespace {

utf8proc_category_t category_of(uint32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_removed(uint32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const utf8proc_category_t k = category_of(c);
  return c == kReplacementCharacter || k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF ||
         k == UTF8PROC_CATEGORY_CO;
}

// Extension E begins at U+2B920 here, a slip of the reference's that its users' ids depend on.
bool is_ideograph(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

// A new text from append(out, code), called for every character.
template <class Append>
std::string rewritten(std::string_view text, const Append& append) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) append(out, next_code(text, i));
  return out;
}

}  // namespace

std::string clean_text(std::string_view text) {
  return rewritten(text, [](std::string& out, uint32_t c) {
    if (!is_removed(c)) append_code(out, is_space(c) ? ' ' : c);
  });
}

std::string space_ideographs(std::string_view text) {
  return rewritten(text, [](std::string& out, uint32_t c) {
    if (!is_ideograph(c)) return append_code(out, c);
    out += ' ';
    append_code(out, c);
    out += ' ';
  });
}

std::string drop_marks(std::string_view text, bool all) {
  return rewritten(text, [all](std::string& out, uint32_t c) {
    const utf8proc_category_t k = category_of(c);
    const bool mark = k == UTF8PROC_CATEGORY_MN || (all && (k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME));
    if (!mark) append_code(out, c);
  });
}

}  // namespace fewbit

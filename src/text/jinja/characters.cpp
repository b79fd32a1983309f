#include "src/text/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "src/text/utf8.h"

namespace fewbit::jinja {
namespace {

utf8proc_category_t category(uint32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

struct Special {
  uint32_t code;
  const char *upper, *title;
};
// Characters whose capital is more than one character (Unicode, SpecialCasing.txt, without conditions).
constexpr std::array kSpecial = std::to_array<Special>({
    {0x00DF, "SS", "Ss"},
    {0x0149, "\u02BCN", "\u02BCN"},
    {0x01F0, "J\u030C", "J\u030C"},
    {0x0390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x03B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    {0x0587, "\u0535\u0552", "\u0535\u0582"},
    {0x1E96, "H\u0331", "H\u0331"},
    {0x1E97, "T\u0308", "T\u0308"},
    {0x1E98, "W\u030A", "W\u030A"},
    {0x1E99, "Y\u030A", "Y\u030A"},
    {0x1E9A, "A\u02BE", "A\u02BE"},
    {0x1F50, "\u03A5\u0313", "\u03A5\u0313"},
    {0x1F52, "\u03A5\u0313\u0300", "\u03A5\u0313\u0300"},
    {0x1F54, "\u03A5\u0313\u0301", "\u03A5\u0313\u0301"},
    {0x1F56, "\u03A5\u0313\u0342", "\u03A5\u0313\u0342"},
    {0x1F80, "\u1F08\u0399", "\u1F88"},
    {0x1F81, "\u1F09\u0399", "\u1F89"},
    {0x1F82, "\u1F0A\u0399", "\u1F8A"},
    {0x1F83, "\u1F0B\u0399", "\u1F8B"},
    {0x1F84, "\u1F0C\u0399", "\u1F8C"},
    {0x1F85, "\u1F0D\u0399", "\u1F8D"},
    {0x1F86, "\u1F0E\u0399", "\u1F8E"},
    {0x1F87, "\u1F0F\u0399", "\u1F8F"},
    {0x1F88, "\u1F08\u0399", "\u1F88"},
    {0x1F89, "\u1F09\u0399", "\u1F89"},
    {0x1F8A, "\u1F0A\u0399", "\u1F8A"},
    {0x1F8B, "\u1F0B\u0399", "\u1F8B"},
    {0x1F8C, "\u1F0C\u0399", "\u1F8C"},
    {0x1F8D, "\u1F0D\u0399", "\u1F8D"},
    {0x1F8E, "\u1F0E\u0399", "\u1F8E"},
    {0x1F8F, "\u1F0F\u0399", "\u1F8F"},
    {0x1F90, "\u1F28\u0399", "\u1F98"},
    {0x1F91, "\u1F29\u0399", "\u1F99"},
    {0x1F92, "\u1F2A\u0399", "\u1F9A"},
    {0x1F93, "\u1F2B\u0399", "\u1F9B"},
    {0x1F94, "\u1F2C\u0399", "\u1F9C"},
    {0x1F95, "\u1F2D\u0399", "\u1F9D"},
    {0x1F96, "\u1F2E\u0399", "\u1F9E"},
    {0x1F97, "\u1F2F\u0399", "\u1F9F"},
    {0x1F98, "\u1F28\u0399", "\u1F98"},
    {0x1F99, "\u1F29\u0399", "\u1F99"},
    {0x1F9A, "\u1F2A\u0399", "\u1F9A"},
    {0x1F9B, "\u1F2B\u0399", "\u1F9B"},
    {0x1F9C, "\u1F2C\u0399", "\u1F9C"},
    {0x1F9D, "\u1F2D\u0399", "\u1F9D"},
    {0x1F9E, "\u1F2E\u0399", "\u1F9E"},
    {0x1F9F, "\u1F2F\u0399", "\u1F9F"},
    {0x1FA0, "\u1F68\u0399", "\u1FA8"},
    {0x1FA1, "\u1F69\u0399", "\u1FA9"},
    {0x1FA2, "\u1F6A\u0399", "\u1FAA"},
    {0x1FA3, "\u1F6B\u0399", "\u1FAB"},
    {0x1FA4, "\u1F6C\u0399", "\u1FAC"},
    {0x1FA5, "\u1F6D\u0399", "\u1FAD"},
    {0x1FA6, "\u1F6E\u0399", "\u1FAE"},
    {0x1FA7, "\u1F6F\u0399", "\u1FAF"},
    {0x1FA8, "\u1F68\u0399", "\u1FA8"},
    {0x1FA9, "\u1F69\u0399", "\u1FA9"},
    {0x1FAA, "\u1F6A\u0399", "\u1FAA"},
    {0x1FAB, "\u1F6B\u0399", "\u1FAB"},
    {0x1FAC, "\u1F6C\u0399", "\u1FAC"},
    {0x1FAD, "\u1F6D\u0399", "\u1FAD"},
    {0x1FAE, "\u1F6E\u0399", "\u1FAE"},
    {0x1FAF, "\u1F6F\u0399", "\u1FAF"},
    {0x1FB2, "\u1FBA\u0399", "\u1FBA\u0345"},
    {0x1FB3, "\u0391\u0399", "\u1FBC"},
    {0x1FB4, "\u0386\u0399", "\u0386\u0345"},
    {0x1FB6, "\u0391\u0342", "\u0391\u0342"},
    {0x1FB7, "\u0391\u0342\u0399", "\u0391\u0342\u0345"},
    {0x1FBC, "\u0391\u0399", "\u1FBC"},
    {0x1FC2, "\u1FCA\u0399", "\u1FCA\u0345"},
    {0x1FC3, "\u0397\u0399", "\u1FCC"},
    {0x1FC4, "\u0389\u0399", "\u0389\u0345"},
    {0x1FC6, "\u0397\u0342", "\u0397\u0342"},
    {0x1FC7, "\u0397\u0342\u0399", "\u0397\u0342\u0345"},
    {0x1FCC, "\u0397\u0399", "\u1FCC"},
    {0x1FD2, "\u0399\u0308\u0300", "\u0399\u0308\u0300"},
    {0x1FD3, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x1FD6, "\u0399\u0342", "\u0399\u0342"},
    {0x1FD7, "\u0399\u0308\u0342", "\u0399\u0308\u0342"},
    {0x1FE2, "\u03A5\u0308\u0300", "\u03A5\u0308\u0300"},
    {0x1FE3, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    {0x1FE4, "\u03A1\u0313", "\u03A1\u0313"},
    {0x1FE6, "\u03A5\u0342", "\u03A5\u0342"},
    {0x1FE7, "\u03A5\u0308\u0342", "\u03A5\u0308\u0342"},
    {0x1FF2, "\u1FFA\u0399", "\u1FFA\u0345"},
    {0x1FF3, "\u03A9\u0399", "\u1FFC"},
    {0x1FF4, "\u038F\u0399", "\u038F\u0345"},
    {0x1FF6, "\u03A9\u0342", "\u03A9\u0342"},
    {0x1FF7, "\u03A9\u0342\u0399", "\u03A9\u0342\u0345"},
    {0x1FFC, "\u03A9\u0399", "\u1FFC"},
    {0xFB00, "FF", "Ff"},
    {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},
    {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"},
    {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
    {0xFB13, "\u0544\u0546", "\u0544\u0576"},
    {0xFB14, "\u0544\u0535", "\u0544\u0565"},
    {0xFB15, "\u0544\u053B", "\u0544\u056B"},
    {0xFB16, "\u054E\u0546", "\u054E\u0576"},
    {0xFB17, "\u0544\u053D", "\u0544\u056D"},
});

const Special* special(uint32_t code) {
  const auto at =
      std::lower_bound(kSpecial.begin(), kSpecial.end(), code, [](const Special& s, uint32_t c) { return s.code < c; });
  return at != kSpecial.end() && at->code == code ? &*at : nullptr;
}

enum class Case : uint8_t { upper, lower, title };

void append_in(std::string& out, uint32_t code, Case to) {
  const auto c = static_cast<utf8proc_int32_t>(code);
  if (to == Case::lower) {
    if (code == 0x130)
      out += "i\u0307";
    else
      append_code(out, static_cast<uint32_t>(utf8proc_tolower(c)));
  } else if (const Special* s = special(code)) {
    out += to == Case::upper ? s->upper : s->title;
  } else {
    append_code(out, static_cast<uint32_t>(to == Case::upper ? utf8proc_toupper(c) : utf8proc_totitle(c)));
  }
}

// Characters that do not count where a word's end is looked for.
bool ignorable(uint32_t code) {
  static constexpr std::u32string_view kMid = U"'.:^`¨\u00AD·\u2018\u2019\u2024\u2027";
  const utf8proc_category_t c = category(code);
  return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
         c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || kMid.find(code) != std::u32string_view::npos;
}

// Whether the sigma at s[begin, end) ends a word.
bool final_sigma(std::string_view s, size_t begin, size_t end) {
  bool before = false;
  for (size_t i = begin; i > 0;) {
    size_t at = i = previous_start(s, i);
    const uint32_t code = next_code(s, at);
    if (ignorable(code)) continue;
    before = is_cased(code);
    break;
  }
  if (!before) return false;
  while (end < s.size()) {
    const uint32_t code = next_code(s, end);
    if (!ignorable(code)) return !is_cased(code);
  }
  return true;
}

void append_lower(std::string& out, std::string_view s, size_t begin, size_t end, uint32_t code) {
  if (code == 0x3A3)
    out += final_sigma(s, begin, end) ? "ς" : "σ";
  else
    append_in(out, code, Case::lower);
}

}  // namespace

bool is_blank(uint32_t code) { return is_space(code) || (code >= 0x1C && code <= 0x1F); }
bool is_letter(uint32_t code) {
  const utf8proc_category_t c = category(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
bool is_upper(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU || (code >= 0x2160 && code <= 0x216F) ||
         (code >= 0x24B6 && code <= 0x24CF);
}
bool is_lower(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL || code == 0xAA || code == 0xBA || (code >= 0x2B0 && code <= 0x2B8) ||
         (code >= 0x2170 && code <= 0x217F) || (code >= 0x24D0 && code <= 0x24E9);
}
bool is_cased(uint32_t code) { return is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT; }
bool is_decimal(uint32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
std::optional<bool> is_digit(uint32_t code) {
  if (is_decimal(code)) return true;
  const utf8proc_category_t c = category(code);
  if (c == UTF8PROC_CATEGORY_NO || c == UTF8PROC_CATEGORY_NL) return std::nullopt;
  return false;
}
bool is_printable(uint32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

std::string_view stripped(std::string_view s, std::optional<std::string_view> set, bool left, bool right) {
  const auto goes = [&](uint32_t code) {
    if (!set) return is_blank(code);
    for (size_t i = 0; i < set->size();)
      if (next_code(*set, i) == code) return true;
    return false;
  };
  while (left && !s.empty()) {
    size_t next = 0;
    if (!goes(next_code(s, next))) break;
    s.remove_prefix(next);
  }
  while (right && !s.empty()) {
    const size_t begin = previous_start(s, s.size());
    size_t at = begin;
    if (!goes(next_code(s, at))) break;
    s = s.substr(0, begin);
  }
  return s;
}

std::string upper(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size();) append_in(out, next_code(s, i), Case::upper);
  return out;
}
std::string lower(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size();) {
    const size_t begin = i;
    const uint32_t code = next_code(s, i);
    append_lower(out, s, begin, i, code);
  }
  return out;
}
std::string title(std::string_view s) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < s.size();) {
    const size_t begin = i;
    const uint32_t code = next_code(s, i);
    if (inside)
      append_lower(out, s, begin, i, code);
    else
      append_in(out, code, Case::title);
    inside = is_cased(code);
  }
  return out;
}
std::string capitalized(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size();) {
    const size_t begin = i;
    const uint32_t code = next_code(s, i);
    if (begin == 0)
      append_in(out, code, Case::title);
    else
      append_lower(out, s, begin, i, code);
  }
  return out;
}

}  // namespace fewbit::jinja

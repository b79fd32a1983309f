// UTF-8 checking and repair; character classes from utf8proc's tables.
#include "src/text/utf8.h"

#include <utf8proc.h>

namespace fewbit {
namespace {

// Bytes of the well-formed sequence at s[i], or minus the bytes of its maximal ill-formed part.
int sequence_length(std::string_view s, size_t i) {
  const auto first = static_cast<uint8_t>(s[i]);
  if (first < 0x80) return 1;
  int n = 0;
  if (first >= 0xC2 && first <= 0xDF) n = 2;
  if (first >= 0xE0 && first <= 0xEF) n = 3;
  if (first >= 0xF0 && first <= 0xF4) n = 4;
  if (n == 0) return -1;
  // The second byte has a narrower range where overlong forms, surrogates or values above U+10FFFF would
  // begin.
  uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (int k = 1; k < n; ++k) {
    if (i + static_cast<size_t>(k) >= s.size()) return -k;
    const auto b = static_cast<uint8_t>(s[i + static_cast<size_t>(k)]);
    if (b < low || b > high) return -k;
    low = 0x80, high = 0xBF;
  }
  return n;
}

}  // namespace

bool is_utf8(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    const int n = sequence_length(s, i);
    if (n < 0) return false;
    i += static_cast<size_t>(n);
  }
  return true;
}

std::string to_utf8(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t i = 0; i < s.size();) {
    const int n = sequence_length(s, i);
    if (n > 0) {
      out.append(s, i, static_cast<size_t>(n));
      i += static_cast<size_t>(n);
    } else {
      append_code(out, kReplacementCharacter);
      i += static_cast<size_t>(-n);
    }
  }
  return out;
}

void append_code(std::string& s, uint32_t c) {
  const auto put = [&](uint32_t b) { s += static_cast<char>(b); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      break;
  }
  // Alphabetic symbols (circled and squared letters) and the two joiners.
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
}

}  // namespace fewbit

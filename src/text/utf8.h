#pragma once
// UTF-8: checking, repairing and walking text, and the two character classes that tokenizers ask for by name.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fewbit {

inline constexpr uint32_t kReplacementCharacter = 0xFFFD;

// True when `s` is well-formed UTF-8 (Unicode chapter 3, table 3-7).
bool is_utf8(std::string_view s);

// `s` with each maximal ill-formed part replaced by U+FFFD: what Unicode recommends and the reference does.
std::string to_utf8(std::string_view s);

// The code point at s[i] and a step past it. The text must be well-formed.
inline uint32_t next_code(std::string_view s, size_t& i) {
  const auto byte = [&](size_t k) { return static_cast<uint32_t>(static_cast<uint8_t>(s[k])); };
  const uint32_t b = byte(i);
  if (b < 0x80) return i += 1, b;
  if (b < 0xE0) return i += 2, (b & 0x1F) << 6 | (byte(i - 1) & 0x3F);
  if (b < 0xF0) return i += 3, (b & 0x0F) << 12 | (byte(i - 2) & 0x3F) << 6 | (byte(i - 1) & 0x3F);
  return i += 4, (b & 0x07) << 18 | (byte(i - 3) & 0x3F) << 12 | (byte(i - 2) & 0x3F) << 6 | (byte(i - 1) & 0x3F);
}

// Start of the code point that ends before `end` (> 0).
inline size_t previous_start(std::string_view s, size_t end) {
  do --end;
  while (end > 0 && (static_cast<uint8_t>(s[end]) & 0xC0) == 0x80);
  return end;
}

void append_code(std::string& s, uint32_t code);

bool is_space(uint32_t code);  // White_Space
bool is_word(uint32_t code);   // \w: Alphabetic, marks, decimal digits, connectors, joiners

}  // namespace fewbit

#pragma once
// GPT-2's byte alphabet: every byte has a printable character of its own, so that a vocabulary of strings can
// hold any bytes. Printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards in byte order.
#include <array>
#include <cstdint>

namespace fewbit {

inline constexpr uint32_t kByteAlphabetEnd = 0x100 + 68;

struct ByteAlphabet {
  std::array<uint32_t, 256> code_of{};          // byte -> code point
  std::array<int, kByteAlphabetEnd> byte_of{};  // code point -> byte, -1 = none
};

constexpr ByteAlphabet make_byte_alphabet() {
  ByteAlphabet a;
  for (int& b : a.byte_of) b = -1;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    a.code_of[b] = printable ? b : next++;
    a.byte_of[a.code_of[b]] = static_cast<int>(b);
  }
  return a;
}

inline constexpr ByteAlphabet kByteAlphabet = make_byte_alphabet();
static_assert(kByteAlphabet.code_of[' '] == 0x120 && kByteAlphabet.code_of[0xAD] == kByteAlphabetEnd - 1);

}  // namespace fewbit

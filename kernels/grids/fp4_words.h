#pragma once
// Eight E2M1 codes of neighbouring inputs in a word, laid so that few instructions make pairs of bf16 of them.
//
// A code is sign, two bits of exponent, one of mantissa (OCP Microscaling Formats, version 1.0). Laid at bf16's sign,
// the bottom of its exponent and the top of its mantissa those bits read as the code's value times 2^-126, subnormal
// ones too. Inputs 2 j and 2 j + 1 are pair j, in the lower and the upper half. Pair 0 lies where bf16 has it; pair 1
// comes there when the word is shifted left by 6 bits, pair 2 when it is turned left by 10. What they leave free takes
// pair 3: its lowest bits come there when shifted right by 4, all others when shifted left by 4. A shift to the left is
// a product, so that half of all this is work of another pipe than that of shifts and masks, which bounds the kernels.
#include <array>
#include <cstdint>

namespace fewbit {

inline constexpr int kFp4WordCodes = 8;
inline constexpr uint32_t kFp4PairBits = 0x81c081c0;  // of a pair of bf16: signs, exponents' bottoms, mantissas' tops
inline constexpr int kFp4FirstShift = 6, kFp4SecondTurn = 10, kFp4LastShift = 4;
inline constexpr uint32_t kFp4LastBits = 0x81808180, kFp4LastLowBits = 0x00400040;  // of pair 3

// Where bit `bit` of the code of input `i` of a word lies.
constexpr int fp4_place(int i, int bit) {
  constexpr int kInHalf[4] = {6, 7, 8, 15};
  const int there = kInHalf[bit] + i % 2 * 16;
  if (i / 2 == 3) return bit == 0 ? there + kFp4LastShift : there - kFp4LastShift;
  constexpr int kLeft[3] = {0, kFp4FirstShift, kFp4SecondTurn};
  return (there - kLeft[i / 2] + 32) % 32;
}

// What a byte of two codes, that of the even input in its low nibble, gives to the word as its pair `pair`:
// [pair][byte].
using Fp4WordParts = std::array<std::array<uint32_t, 256>, kFp4WordCodes / 2>;
constexpr Fp4WordParts fp4_word_parts() {
  Fp4WordParts parts{};
  for (int pair = 0; pair < kFp4WordCodes / 2; ++pair)
    for (int byte = 0; byte < 256; ++byte)
      for (int bit = 0; bit < 8; ++bit)
        if (byte >> bit & 1) parts[pair][byte] |= uint32_t{1} << fp4_place(2 * pair + bit / 4, bit % 4);
  return parts;
}
inline constexpr Fp4WordParts kFp4WordParts = fp4_word_parts();

// The code of input `i` of a word.
constexpr uint8_t fp4_code(uint32_t word, int i) {
  uint32_t code = 0;
  for (int bit = 0; bit < 4; ++bit) code |= (word >> fp4_place(i, bit) & 1) << bit;
  return static_cast<uint8_t>(code);
}

}  // namespace fewbit

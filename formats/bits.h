#pragma once
// Words and the small fields in them. A run of values of `bits` bits (2 to 8) is one stream: value i occupies
// bits [bits*i, bits*i + bits) of the words laid end to end, the first word lowest. At 2, 4 and 8 bits no value
// straddles a word; at the others 32 values fill `bits` words and some straddle (at 3 bits values 10 and 21).
// Bytes are little-endian.
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fewbit::bits {

// Words that hold `count` values; the last ones may be partly empty. Values that may straddle words come in whole
// runs of 32.
constexpr int64_t words_for(int64_t count, int bits) {
  return 32 % bits != 0 ? bits * ((count + 31) / 32) : (count * bits + 31) / 32;
}

// Writes words_for(count, kBits) words; unused fields are 0. values[i] < 2^kBits.
template <int kBits>
constexpr void pack_run(const uint8_t* values, int64_t count, uint32_t* words) {
  uint64_t pending = 0;
  int have = 0;
  int64_t w = 0;
  for (int64_t i = 0; i < count; ++i) {
    pending |= static_cast<uint64_t>(values[i]) << have;
    have += kBits;
    if (have < 32) continue;
    words[w++] = static_cast<uint32_t>(pending);
    pending >>= 32;
    have -= 32;
  }
  for (const int64_t all = words_for(count, kBits); w < all; pending = 0) words[w++] = static_cast<uint32_t>(pending);
}

template <int kBits>
constexpr void unpack_run(const uint32_t* words, int64_t count, uint8_t* values) {
  uint64_t pending = 0;
  int have = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (have < kBits) {
      pending |= static_cast<uint64_t>(*words++) << have;
      have += 32;
    }
    values[i] = static_cast<uint8_t>(pending & ((1u << kBits) - 1));
    pending >>= kBits;
    have -= kBits;
  }
}

// f(std::integral_constant<int, bits>) for 2 to 8 bits.
template <class F>
constexpr void with_bits(int bits, F&& f) {
  switch (bits) {
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 5:
      return f(std::integral_constant<int, 5>{});
    case 6:
      return f(std::integral_constant<int, 6>{});
    case 7:
      return f(std::integral_constant<int, 7>{});
    default:
      return f(std::integral_constant<int, 8>{});
  }
}
constexpr void pack_run(const uint8_t* values, int64_t count, int bits, uint32_t* words) {
  with_bits(bits, [&](auto n) { pack_run<n()>(values, count, words); });
}
constexpr void unpack_run(const uint32_t* words, int64_t count, int bits, uint8_t* values) {
  with_bits(bits, [&](auto n) { unpack_run<n()>(words, count, values); });
}

// `field` in every field of a word (2, 4 and 8 bits).
constexpr uint32_t repeated(uint32_t field, int bits) {
  uint32_t word = 0;
  for (int shift = 0; shift < 32; shift += bits) word |= field << shift;
  return word;
}

// Element i of a file's tensor, which may lie at any address.
template <class T>
T load(const void* base, int64_t i) {
  T v;
  std::memcpy(&v, static_cast<const uint8_t*>(base) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}

static_assert(words_for(32, 3) == 3 && words_for(33, 3) == 6 && words_for(9, 4) == 2 && words_for(8, 4) == 1);
static_assert(repeated(7, 4) == 0x77777777u && repeated(1, 2) == 0x55555555u && repeated(127, 8) == 0x7f7f7f7fu);

}  // namespace fewbit::bits

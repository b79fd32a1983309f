// Blocks of 32 with scales of their own, low nibbles first half and high nibbles second half:
//   q4_0  d f16, qs[16]               w = d (v - 8)          q5_0  d, qh[4], qs[16]      w = d (v - 16)
//   q4_1  d f16, m f16, qs[16]        w = d v + m            q5_1  d, m, qh[4], qs[16]   w = d v + m
//   q8_0  d f16, int8 qs[32]          w = d q                (bit x of qh is bit 4 of value x)
#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/bits.h"
#include "formats/gguf/block_codes.h"
#include "formats/gguf/block_search.h"
#include "formats/gguf/four_bit_lanes.h"
#include "formats/gguf/lanes.h"
#include "src/core/half.h"

namespace fewbit::gguf {
namespace {

constexpr int kBlock = kSimpleBlock;

// Where the parts of a 4- or 5-bit block lie.
template <int kBits, bool kMin>
struct Nibbles {
  static constexpr bool kHasMin = kMin;
  static constexpr int kHigh = kMin ? 4 : 2;                 // byte of qh
  static constexpr int kLow = kHigh + (kBits == 5 ? 4 : 0);  // byte of qs
  static constexpr int64_t kBytes = kLow + kBlock / 2;
  static constexpr int kTop = (1 << kBits) - 1, kMid = 1 << (kBits - 1);

  static int code(const uint8_t* block, int x) {
    int v = (block[kLow + x % 16] >> (4 * (x / 16))) & 15;
    if constexpr (kBits == 5) v |= ((block[kHigh + x / 8] >> (x % 8)) & 1) << 4;
    return v;
  }
  static void put(uint8_t* block, const uint8_t* codes) {
    for (int x = 0; x < kBlock / 2; ++x)
      block[kLow + x] = static_cast<uint8_t>((codes[x] & 15) | ((codes[x + kBlock / 2] & 15) << 4));
    if constexpr (kBits == 5) {
      uint32_t high = 0;
      for (int x = 0; x < kBlock; ++x) high |= static_cast<uint32_t>(codes[x] >> 4) << x;
      std::memcpy(block + kHigh, &high, sizeof high);
    }
  }
  static void put(uint8_t* block, const int* codes) {
    uint8_t narrow[kBlock];
    for (int x = 0; x < kBlock; ++x) narrow[x] = static_cast<uint8_t>(codes[x]);
    put(block, narrow);
  }

  static void decode(const uint8_t* block, float* values) {
    const float d = load_f16(block), m = kMin ? load_f16(block + 2) : 0;
    for (int x = 0; x < kBlock; ++x) {
      const auto v = static_cast<float>(code(block, x) - (kMin ? 0 : kMid));
      values[x] = kMin ? d * v + m : d * v;
    }
  }

  static void encode_plain(const float* x, uint8_t* block) {
    float d = 0, least = 0;
    if constexpr (kMin) {
      const auto [low, high] = std::minmax_element(x, x + kBlock);
      least = *low;
      d = (*high - *low) / kTop;
      store_f16(block + 2, least);
    } else {
      const float* extreme =
          std::max_element(x, x + kBlock, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
      d = *extreme / -kMid;
    }
    store_f16(block, d);
    const float inverse = d != 0 ? 1 / d : 0;
    const float half = kMin ? 0.5f : kMid + 0.5f;
    int codes[kBlock];
    for (int i = 0; i < kBlock; ++i) codes[i] = std::min(static_cast<int>((x[i] - least) * inverse + half), kTop);
    put(block, codes);
  }

  static void encode(const float* x, const float* weight, uint8_t* block) {
    uint8_t found[kBytes];
    int codes[kBlock];
    if constexpr (kMin) {
      const Affine a = search_affine(x, weight, kBlock, kTop, MinSign::any);
      const float d = store_f16(found, a.scale), m = store_f16(found + 2, a.min);
      affine_codes(x, kBlock, {d, m}, kTop, codes);
    } else {
      const float d = store_f16(found, search_symmetric(x, weight, kBlock, -kMid, kMid - 1));
      symmetric_codes(x, kBlock, d, -kMid, kMid - 1, codes);
      for (int& c : codes) c += kMid;
    }
    put(found, codes);
    encode_plain(x, block);
    keep_better(decode, kBlock, x, weight, found, kBytes, block);
  }
};

constexpr int64_t kQ8Bytes = 2 + kBlock;

void decode_q8_0(const uint8_t* block, float* values) {
  const float d = load_f16(block);
  for (int x = 0; x < kBlock; ++x) values[x] = d * static_cast<float>(static_cast<int8_t>(block[2 + x]));
}

void encode_plain_q8_0(const float* x, uint8_t* block) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127, inverse = d != 0 ? 1 / d : 0;
  store_f16(block, d);
  for (int i = 0; i < kBlock; ++i) block[2 + i] = static_cast<uint8_t>(static_cast<int>(std::round(x[i] * inverse)));
}

void encode_q8_0(const float* x, const float* weight, uint8_t* block) {
  uint8_t found[kQ8Bytes];
  int codes[kBlock];
  const float d = store_f16(found, search_symmetric(x, weight, kBlock, -127, 127));
  symmetric_codes(x, kBlock, d, -127, 127, codes);
  for (int i = 0; i < kBlock; ++i) found[2 + i] = static_cast<uint8_t>(codes[i]);
  encode_plain_q8_0(x, block);
  keep_better(decode_q8_0, kBlock, x, weight, found, kQ8Bytes, block);
}

template <class N>
BlockCodes load_nibbles(const uint8_t* block) {
  BlockCodes c{.d = load_f16(block), .m = N::kHasMin ? load_f16(block + 2) : 0};
  for (int x = 0; x < kBlock; ++x) c.codes[x] = static_cast<uint8_t>(N::code(block, x));
  return c;
}
template <class N>
void store_nibbles(const BlockCodes& c, uint8_t* block) {
  store_f16(block, c.d);
  if constexpr (N::kHasMin) store_f16(block + 2, c.m);
  N::put(block, c.codes);
}

BlockCodes load_q8_0(const uint8_t* block) {
  BlockCodes c{.d = load_f16(block)};
  for (int x = 0; x < kBlock; ++x) c.codes[x] = block[2 + x] ^ 0x80;  // signed to offset by 128
  return c;
}
void store_q8_0(const BlockCodes& c, uint8_t* block) {
  store_f16(block, c.d);
  for (int x = 0; x < kBlock; ++x) block[2 + x] = c.codes[x] ^ 0x80;
}

struct CodeAccess {
  const BlockType* type;
  BlockCodes (*load)(const uint8_t*);
  void (*store)(const BlockCodes&, uint8_t*);
};
template <int kBits, bool kMin>
constexpr CodeAccess nibble_access(const BlockType& type) {
  return {&type, load_nibbles<Nibbles<kBits, kMin>>, store_nibbles<Nibbles<kBits, kMin>>};
}
constexpr CodeAccess kAccess[] = {nibble_access<4, false>(type_q4_0),
                                  nibble_access<4, true>(type_q4_1),
                                  nibble_access<5, false>(type_q5_0),
                                  nibble_access<5, true>(type_q5_1),
                                  {&type_q8_0, load_q8_0, store_q8_0}};

const CodeAccess* access_of(const BlockType& type) {
  for (const CodeAccess& a : kAccess)
    if (a.type == &type) return &a;
  return nullptr;
}

template <const BlockType& kType>
void encode_many(const float* x, const float* weight, int64_t blocks, uint8_t* to) {
  const bool four_bit = &kType == &type_q4_0 && has_four_bit_lanes();
  for (int64_t b = 0; b < blocks; b += kLanes, x += kLanes * kBlock, weight += kLanes * kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kLanes, blocks - b));
    uint8_t* const at = to + b * kType.bytes;
    if (!four_bit || !encode_four_bit_lanes(x, weight, count, at)) encode_simple_lanes(kType, x, weight, count, at);
  }
}

template <const BlockType& kType, int kBits, bool kMin>
constexpr BlockType nibble_type(uint32_t id, std::string_view name) {
  using N = Nibbles<kBits, kMin>;
  return {.id = id,
          .name = name,
          .elements = kBlock,
          .bytes = N::kBytes,
          .grid = QuantSpec{.bits = kBits, .group = kBlock, .symmetric = !kMin},
          .decode = N::decode,
          .encode = N::encode,
          .encode_plain = N::encode_plain,
          .encode_many = encode_many<kType>};
}

}  // namespace

bool has_codes(const BlockType& type) { return access_of(type) != nullptr; }

std::vector<std::string> types_with_codes() {
  std::vector<std::string> names;
  for (const BlockType* t : block_types())
    if (has_codes(*t)) names.emplace_back(t->name);
  return names;
}
BlockCodes load_codes(const BlockType& type, const uint8_t* block) { return access_of(type)->load(block); }
void store_codes(const BlockType& type, const BlockCodes& codes, uint8_t* block) {
  access_of(type)->store(codes, block);
}

int zero_point(const BlockCodes& c, int top) {
  if (c.d == 0) return c.m == 0 ? 0 : -1;
  const float z = std::nearbyint(-c.m / c.d);
  if (!(z >= 0 && z <= static_cast<float>(top))) return -1;
  return round_to_f16(-z * c.d) == c.m ? static_cast<int>(z) : -1;
}

constinit const BlockType type_q4_0 = nibble_type<type_q4_0, 4, false>(2, "q4_0");
constinit const BlockType type_q4_1 = nibble_type<type_q4_1, 4, true>(3, "q4_1");
constinit const BlockType type_q5_0 = nibble_type<type_q5_0, 5, false>(6, "q5_0");
constinit const BlockType type_q5_1 = nibble_type<type_q5_1, 5, true>(7, "q5_1");
constinit const BlockType type_q8_0 = {
    .id = 8,
    .name = "q8_0",
    .elements = kBlock,
    .bytes = kQ8Bytes,
    .grid = QuantSpec{.bits = 8, .group = kBlock},
    .decode = decode_q8_0,
    .encode = encode_q8_0,
    .encode_plain = encode_plain_q8_0,
    .encode_many = encode_many<type_q8_0>,
};

}  // namespace fewbit::gguf

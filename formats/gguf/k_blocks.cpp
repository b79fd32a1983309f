// K-quants: super-blocks of 256 whose sub-blocks have integer scales of a common f16 scale.
//   q4_k  d f16, dmin f16, scales[12], qs[128]           8 sub-blocks of 32   w = d sc v - dmin mn
//   q5_k  d, dmin, scales[12], qh[32], qs[128]           the same, bit 4 in qh
//   q6_k  ql[128], qh[64], int8 scales[16], d            16 sub-blocks of 16  w = d sc (v - 32)
//   q2_k  scales[16] (low 4 bits sc, high mn), qs[64], d, dmin    16 of 16    w = d sc v - dmin mn
//   q3_k  hmask[32], qs[64], scales[12], d                        16 of 16    w = d (sc - 32) (v - 4)
// docs/formats/gguf.md has the places of the fields; open_block.cpp encodes.
#include <array>
#include <cstring>

#include "formats/gguf/block_search.h"
#include "formats/gguf/open_block.h"

namespace fewbit::gguf {
namespace {

constexpr int kSuper = 256;

// The levels low, low + 1, …
template <int kLow, int kCount>
constexpr std::array<float, kCount> even_levels() {
  std::array<float, kCount> levels{};
  for (int i = 0; i < kCount; ++i) levels[static_cast<size_t>(i)] = static_cast<float>(kLow + i);
  return levels;
}
template <int kLow, int kCount>
constexpr std::array<float, kCount> kEven = even_levels<kLow, kCount>();

// Value x of a block whose parts of 32 values lie side by side in 2 bits each, four parts to 32 bytes (q2_k, q3_k, the
// high bits of q6_k): its byte and the shift of its bits.
constexpr int pair_byte(int x) { return 32 * (x / 128) + x % 32; }
constexpr int pair_shift(int x) { return 2 * (x % 128 / 32); }

// --- q4_k and q5_k: 16 values of 6 bits in 12 bytes: the first four scales and minima whole, the others split into 4
// and 2 bits

void load_scales(const uint8_t* s, OpenBlock& b) {
  for (int j = 0; j < 4; ++j) {
    b.scale[j] = s[j] & 63;
    b.min[j] = s[j + 4] & 63;
    b.scale[j + 4] = (s[j + 8] & 15) | ((s[j] >> 6) << 4);
    b.min[j + 4] = (s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4);
  }
}
void store_scales(const OpenBlock& b, uint8_t* s) {
  for (int j = 0; j < 4; ++j) {
    s[j] = static_cast<uint8_t>(b.scale[j] | ((b.scale[j + 4] >> 4) << 6));
    s[j + 4] = static_cast<uint8_t>(b.min[j] | ((b.min[j + 4] >> 4) << 6));
    s[j + 8] = static_cast<uint8_t>((b.scale[j + 4] & 15) | ((b.min[j + 4] & 15) << 4));
  }
}

template <int kBits>
struct AffineK {
  static constexpr int kScales = 4, kHigh = 16, kLow = kBits == 5 ? 48 : 16;
  static constexpr int64_t kBytes = kLow + kSuper / 2;

  static int low_byte(int x) { return kLow + 32 * (x / 64) + x % 32; }
  static int low_shift(int x) { return 4 * (x % 64 / 32); }

  static OpenBlock load(const uint8_t* block) {
    OpenBlock b{.d = load_f16(block), .dmin = load_f16(block + 2)};
    load_scales(block + kScales, b);
    for (int x = 0; x < kSuper; ++x) {
      int v = (block[low_byte(x)] >> low_shift(x)) & 15;
      if constexpr (kBits == 5) v |= ((block[kHigh + x % 32] >> (x / 32)) & 1) << 4;
      b.codes[x] = static_cast<uint8_t>(v);
    }
    return b;
  }
  static void store(const OpenBlock& b, uint8_t* block) {
    std::memset(block, 0, static_cast<size_t>(kBytes));
    store_f16(block, b.d);
    store_f16(block + 2, b.dmin);
    store_scales(b, block + kScales);
    for (int x = 0; x < kSuper; ++x) {
      block[low_byte(x)] |= static_cast<uint8_t>((b.codes[x] & 15) << low_shift(x));
      if constexpr (kBits == 5) block[kHigh + x % 32] |= static_cast<uint8_t>((b.codes[x] >> 4) << (x / 32));
    }
  }
  static constexpr OpenForm kForm = {.elements = kSuper,
                                     .sub = 32,
                                     .levels = kEven<0, 1 << kBits>,
                                     .even = true,
                                     .least_scale = 0,
                                     .most_scale = 63,
                                     .most_min = 63,
                                     .load = load,
                                     .store = store};
};

// --- q6_k

constexpr int64_t kSixBytes = 210;
constexpr int kSixHigh = 128, kSixScales = 192, kSixD = 208;

int six_low_byte(int x) { return 64 * (x / 128) + x % 32 + 32 * (x % 128 / 32 & 1); }
int six_low_shift(int x) { return 4 * (x % 128 / 64); }

OpenBlock load_q6_k(const uint8_t* block) {
  OpenBlock b{.d = load_f16(block + kSixD)};
  for (int j = 0; j < 16; ++j) b.scale[j] = (block[kSixScales + j] ^ 128) - 128;  // a signed byte
  for (int x = 0; x < kSuper; ++x) {
    const int low = (block[six_low_byte(x)] >> six_low_shift(x)) & 15;
    const int high = (block[kSixHigh + pair_byte(x)] >> pair_shift(x)) & 3;
    b.codes[x] = static_cast<uint8_t>(low | (high << 4));
  }
  return b;
}

void store_q6_k(const OpenBlock& b, uint8_t* block) {
  std::memset(block, 0, kSixBytes);
  store_f16(block + kSixD, b.d);
  for (int j = 0; j < 16; ++j) block[kSixScales + j] = static_cast<uint8_t>(b.scale[j]);
  for (int x = 0; x < kSuper; ++x) {
    block[six_low_byte(x)] |= static_cast<uint8_t>((b.codes[x] & 15) << six_low_shift(x));
    block[kSixHigh + pair_byte(x)] |= static_cast<uint8_t>((b.codes[x] >> 4) << pair_shift(x));
  }
}

// --- q2_k and q3_k

constexpr int64_t kTwoBytes = 84, kThreeBytes = 110;
constexpr int kTwoLow = 16, kTwoD = 80, kThreeLow = 32, kThreeScales = 96, kThreeD = 108;

OpenBlock load_q2_k(const uint8_t* block) {
  OpenBlock b{.d = load_f16(block + kTwoD), .dmin = load_f16(block + kTwoD + 2)};
  for (int j = 0; j < 16; ++j) b.scale[j] = block[j] & 15, b.min[j] = block[j] >> 4;
  for (int x = 0; x < kSuper; ++x)
    b.codes[x] = static_cast<uint8_t>((block[kTwoLow + pair_byte(x)] >> pair_shift(x)) & 3);
  return b;
}

void store_q2_k(const OpenBlock& b, uint8_t* block) {
  std::memset(block, 0, kTwoBytes);
  store_f16(block + kTwoD, b.d);
  store_f16(block + kTwoD + 2, b.dmin);
  for (int j = 0; j < 16; ++j) block[j] = static_cast<uint8_t>(b.scale[j] | (b.min[j] << 4));
  for (int x = 0; x < kSuper; ++x) block[kTwoLow + pair_byte(x)] |= static_cast<uint8_t>(b.codes[x] << pair_shift(x));
}

// Bit 2 of value x of q3_k: bit x / 32 of byte x % 32. Scales: 4 bits in bytes 0-7, 2 bits in bytes 8-11.
OpenBlock load_q3_k(const uint8_t* block) {
  const uint8_t* scales = block + kThreeScales;
  OpenBlock b{.d = load_f16(block + kThreeD)};
  for (int j = 0; j < 16; ++j)
    b.scale[j] = (((scales[j % 8] >> (4 * (j / 8))) & 15) | (((scales[8 + j % 4] >> (2 * (j / 4))) & 3) << 4)) - 32;
  for (int x = 0; x < kSuper; ++x) {
    const int low = (block[kThreeLow + pair_byte(x)] >> pair_shift(x)) & 3, high = (block[x % 32] >> (x / 32)) & 1;
    b.codes[x] = static_cast<uint8_t>(low | (high << 2));
  }
  return b;
}

void store_q3_k(const OpenBlock& b, uint8_t* block) {
  std::memset(block, 0, kThreeBytes);
  store_f16(block + kThreeD, b.d);
  uint8_t* scales = block + kThreeScales;
  for (int j = 0; j < 16; ++j) {
    const int s = b.scale[j] + 32;
    scales[j % 8] |= static_cast<uint8_t>((s & 15) << (4 * (j / 8)));
    scales[8 + j % 4] |= static_cast<uint8_t>((s >> 4) << (2 * (j / 4)));
  }
  for (int x = 0; x < kSuper; ++x) {
    block[kThreeLow + pair_byte(x)] |= static_cast<uint8_t>((b.codes[x] & 3) << pair_shift(x));
    block[x % 32] |= static_cast<uint8_t>((b.codes[x] >> 2) << (x / 32));
  }
}

// 16 sub-blocks of 16, scales alone.
template <int kLow, int kCount, int kLeast>
constexpr OpenForm signed_form(OpenBlock (*load)(const uint8_t*), void (*store)(const OpenBlock&, uint8_t*)) {
  return {.elements = kSuper,
          .sub = 16,
          .levels = kEven<kLow, kCount>,
          .even = true,
          .least_scale = kLeast,
          .most_scale = -kLeast - 1,
          .most_min = 0,
          .load = load,
          .store = store};
}
constexpr OpenForm kSixForm = signed_form<-32, 64, -128>(load_q6_k, store_q6_k);
constexpr OpenForm kThreeForm = signed_form<-4, 8, -32>(load_q3_k, store_q3_k);
constexpr OpenForm kTwoForm = {.elements = kSuper,
                               .sub = 16,
                               .levels = kEven<0, 4>,
                               .even = true,
                               .least_scale = 0,
                               .most_scale = 15,
                               .most_min = 15,
                               .load = load_q2_k,
                               .store = store_q2_k};

constexpr QuantSpec grid_of(int bits, const OpenForm& form) {
  return {.bits = bits, .group = form.sub, .symmetric = form.most_min == 0};
}

}  // namespace

constinit const BlockType type_q4_k =
    open_type<type_q4_k>(12, "q4_k", AffineK<4>::kBytes, grid_of(4, AffineK<4>::kForm), AffineK<4>::kForm);
constinit const BlockType type_q5_k =
    open_type<type_q5_k>(13, "q5_k", AffineK<5>::kBytes, grid_of(5, AffineK<5>::kForm), AffineK<5>::kForm);
constinit const BlockType type_q6_k = open_type<type_q6_k>(14, "q6_k", kSixBytes, grid_of(6, kSixForm), kSixForm);
constinit const BlockType type_q2_k = open_type<type_q2_k>(10, "q2_k", kTwoBytes, grid_of(2, kTwoForm), kTwoForm);
constinit const BlockType type_q3_k = open_type<type_q3_k>(11, "q3_k", kThreeBytes, grid_of(3, kThreeForm), kThreeForm);

}  // namespace fewbit::gguf

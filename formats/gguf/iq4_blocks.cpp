// Nibbles that point into a table of 16 uneven levels.
//   iq4_nl  d f16, qs[16]                               32 values              w = d level(v)
//   iq4_xs  d f16, scales_h u16, scales_l[4], qs[128]   8 sub-blocks of 32     w = d (sc - 32) level(v)
#include <array>
#include <cstring>

#include "formats/gguf/block_search.h"
#include "formats/gguf/open_block.h"

namespace fewbit::gguf {
namespace {

constexpr std::array<float, 16> kLevels = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int64_t kNlBytes = 18, kXsBytes = 136;
constexpr int kXsScales = 4, kXsCodes = 8;

// 32 values, low nibbles the first half.
void load_nibbles(const uint8_t* qs, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) codes[i] = qs[i] & 15, codes[i + 16] = qs[i] >> 4;
}
void store_nibbles(const uint8_t* codes, uint8_t* qs) {
  for (int i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>(codes[i] | (codes[i + 16] << 4));
}

OpenBlock load_iq4_nl(const uint8_t* block) {
  OpenBlock b{.d = load_f16(block), .scale = {1}};
  load_nibbles(block + 2, b.codes);
  return b;
}
void store_iq4_nl(const OpenBlock& b, uint8_t* block) {
  store_f16(block, b.d);
  store_nibbles(b.codes, block + 2);
}

OpenBlock load_iq4_xs(const uint8_t* block) {
  OpenBlock b{.d = load_f16(block)};
  const auto high = bits::load<uint16_t>(block, 1);
  for (int j = 0; j < 8; ++j) {
    b.scale[j] = (((block[kXsScales + j / 2] >> (4 * (j % 2))) & 15) | (((high >> (2 * j)) & 3) << 4)) - 32;
    load_nibbles(block + kXsCodes + 16 * j, b.codes + 32 * j);
  }
  return b;
}
void store_iq4_xs(const OpenBlock& b, uint8_t* block) {
  std::memset(block, 0, kXsBytes);
  store_f16(block, b.d);
  for (int j = 0; j < 8; ++j) {
    const int s = b.scale[j] + 32;
    block[2 + j / 4] |= static_cast<uint8_t>((s >> 4) << (2 * (j % 4)));
    block[kXsScales + j / 2] |= static_cast<uint8_t>((s & 15) << (4 * (j % 2)));
    store_nibbles(b.codes + 32 * j, block + kXsCodes + 16 * j);
  }
}

constexpr OpenForm kNlForm = {.elements = 32,
                              .sub = 32,
                              .levels = kLevels,
                              .even = false,
                              .least_scale = 1,
                              .most_scale = 1,
                              .most_min = 0,
                              .load = load_iq4_nl,
                              .store = store_iq4_nl};
constexpr OpenForm kXsForm = {.elements = 256,
                              .sub = 32,
                              .levels = kLevels,
                              .even = false,
                              .least_scale = -32,
                              .most_scale = 31,
                              .most_min = 0,
                              .load = load_iq4_xs,
                              .store = store_iq4_xs};
constexpr QuantSpec kGrid = {.bits = 4, .group = 32};

}  // namespace

constinit const BlockType type_iq4_nl = open_type<type_iq4_nl>(20, "iq4_nl", kNlBytes, kGrid, kNlForm);
constinit const BlockType type_iq4_xs = open_type<type_iq4_xs>(23, "iq4_xs", kXsBytes, kGrid, kXsForm);

}  // namespace fewbit::gguf

// Nibbles that point into a table of 16 uneven levels; read only.
//   iq4_nl  d f16, qs[16]                               32 values              w = d level(v)
//   iq4_xs  d f16, scales_h u16, scales_l[4], qs[128]   8 sub-blocks of 32     w = d (sc - 32) level(v)
#include "formats/gguf/block_search.h"
#include "formats/gguf/block_type.h"

namespace fewbit::gguf {
namespace {

constexpr float kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// 32 values, low nibbles the first half.
void decode_levels(const uint8_t* qs, float scale, float* values) {
  for (int i = 0; i < 16; ++i) {
    values[i] = scale * kLevels[qs[i] & 15];
    values[i + 16] = scale * kLevels[qs[i] >> 4];
  }
}

void decode_iq4_nl(const uint8_t* block, float* values) { decode_levels(block + 2, load_f16(block), values); }

void decode_iq4_xs(const uint8_t* block, float* values) {
  const float d = load_f16(block);
  const auto high = bits::load<uint16_t>(block, 1);
  for (int j = 0; j < 8; ++j) {
    const int scale = ((block[4 + j / 2] >> (4 * (j % 2))) & 15) | (((high >> (2 * j)) & 3) << 4);
    decode_levels(block + 8 + 16 * j, d * static_cast<float>(scale - 32), values + 32 * j);
  }
}

}  // namespace

constinit const BlockType type_iq4_nl = {
    .id = 20,
    .name = "iq4_nl",
    .elements = 32,
    .bytes = 18,
    .grid = QuantSpec{.bits = 4, .group = 32},
    .decode = decode_iq4_nl,
};
constinit const BlockType type_iq4_xs = {
    .id = 23,
    .name = "iq4_xs",
    .elements = 256,
    .bytes = 136,
    .grid = QuantSpec{.bits = 4, .group = 32},
    .decode = decode_iq4_xs,
};

}  // namespace fewbit::gguf

#pragma once
// Blocks with scales of their own, opened: types whose blocks have a d (and dmin) above integer scales (and minima) of
// sub-blocks (q2_k to q6_k, iq4_xs), or a d alone above uneven levels (iq4_nl), in one form. What searches for codes
// works on this form; where the fields lie in a block's bytes is the type's own affair.
#include <cstdint>
#include <span>

#include "formats/gguf/block_type.h"

namespace fewbit::gguf {

inline constexpr int kMostElements = 256, kMostSubBlocks = 16, kMostBlockBytes = 210;

// decoded = d scale[j] levels[code] - dmin min[j], j the sub-block of the value.
struct OpenBlock {
  float d = 0, dmin = 0;  // as f16 holds them
  int scale[kMostSubBlocks] = {}, min[kMostSubBlocks] = {};
  uint8_t codes[kMostElements] = {};
};

struct OpenForm {
  int elements;                   // of a block
  int sub;                        // values that share a scale
  std::span<const float> levels;  // by code, ascending
  bool even;                      // levels lie 1 apart, so that rounding finds the nearest
  int least_scale, most_scale;    // of sub-blocks; both 1: d stands alone
  int most_min;                   // 0: no minima, and dmin stays 0
  OpenBlock (*load)(const uint8_t* block);
  void (*store)(const OpenBlock&, uint8_t* block);

  int sub_blocks() const { return elements / sub; }
};

// values -> block, as BlockType::encode and encode_plain want it. Plain: every sub-block covers its range and scales go
// to the nearest integer. Else scales are searched for the least sum of weight (x - decoded)^2, in up to three rounds
// of integer scales next to the nearest and a refit of d and dmin; never worse than the plain block.
void encode_open(const BlockType&, const float* x, const float* weight, uint8_t* block);
// The same for consecutive blocks, several side by side (open_lanes.cpp).
void encode_open_many(const BlockType&, const float* x, const float* weight, int64_t blocks, uint8_t* to);
void encode_open_plain(const BlockType&, const float* x, uint8_t* block);
void decode_open(const OpenForm&, const uint8_t* block, float* values);

// The entry of a type; kType is the entry itself.
template <const BlockType& kType>
constexpr BlockType open_type(uint32_t id, std::string_view name, int64_t bytes, const QuantSpec& grid,
                              const OpenForm& form) {
  return {.id = id,
          .name = name,
          .elements = form.elements,
          .bytes = bytes,
          .grid = grid,
          .decode = [](const uint8_t* block, float* values) { decode_open(*kType.open, block, values); },
          .encode = [](const float* x, const float* weight, uint8_t* block) { encode_open(kType, x, weight, block); },
          .encode_plain = [](const float* x, uint8_t* block) { encode_open_plain(kType, x, block); },
          .encode_many = [](const float* x, const float* weight, int64_t blocks,
                            uint8_t* to) { encode_open_many(kType, x, weight, blocks, to); },
          .open = &form};
}

}  // namespace fewbit::gguf

#pragma once
// The simple block types as codes: what q4_0, q4_1, q5_0, q5_1 and q8_0 hold besides their scales.
#include "formats/gguf/block_type.h"

namespace fewbit::gguf {

inline constexpr int kSimpleBlock = 32;

// decoded = d * (code - mid) for symmetric types (mid = 2^(bits-1)), d * code + m for the others.
struct BlockCodes {
  float d = 0, m = 0;  // as f16 holds them; m stays 0 in symmetric types
  uint8_t codes[kSimpleBlock] = {};
};

bool has_codes(const BlockType&);             // one of the five
std::vector<std::string> types_with_codes();  // their names
BlockCodes load_codes(const BlockType&, const uint8_t* block);
void store_codes(const BlockType&, const BlockCodes&, uint8_t* block);
// At most kLanes (lanes.h) consecutive blocks, encoded side by side with the bytes of BlockType::encode.
void encode_simple_lanes(const BlockType&, const float* values, const float* weight, int count, uint8_t* to);
// The integer zero point z in 0 … top with m = f16(-z d), or -1 where the minimum is no such product.
int zero_point(const BlockCodes&, int top);

}  // namespace fewbit::gguf

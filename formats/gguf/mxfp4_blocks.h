#pragma once
// Blocks of MXFP4 as codes and a scale, for those who pack them.
#include "formats/gguf/block_type.h"

namespace fewbit::gguf {

struct MxBlock {
  float scale = 1;  // a power of two; NaN of a damaged file
  uint8_t codes[32] = {};
};
MxBlock load_mx(const uint8_t* block);
void store_mx(const MxBlock&, uint8_t* block);

}  // namespace fewbit::gguf

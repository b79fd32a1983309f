#pragma once
// Sixteen blocks of q4_0 side by side by AVX-512 with VNNI: the bytes of encode_simple_lanes(), in a third of its time.
// Internal to formats/gguf.
#include <cstdint>

namespace fewbit::gguf {

bool has_four_bit_lanes();  // of this processor
// At most kLanes (lanes.h) consecutive blocks of q4_0. False, and nothing written, where the weights of a block's
// values lie so far apart that integers of 23 bits do not tell its candidates from each other. Only where the processor
// can.
bool encode_four_bit_lanes(const float* x, const float* weight, int count, uint8_t* to);

}  // namespace fewbit::gguf

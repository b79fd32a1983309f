#pragma once
// Chunks: how the calibration's windows are cut into the pieces that run through a block one after another. The cut
// depends on the length of a window and the kind of device alone, never on a memory limit, so that every product of a
// run has the same shape on every machine, and with it the same bits.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/statistics/gram.h"

namespace fewbit {

// Tokens of a chunk, where windows are not longer: as many as the sums of statistics take at once, so that windows
// whose length divides them reach the sums without another copy. Few enough that the activations of a chunk are small
// beside the sums of a wide input.
constexpr int64_t chunk_tokens(Device::Kind kind) { return gram_chunk(kind); }

struct Chunks {
  int64_t windows = 0, length = 0;  // sequences, and tokens of each
  int64_t at_once = chunk_tokens(Device::cpu);

  int64_t per_chunk() const { return std::max<int64_t>(1, std::min(windows, at_once / std::max<int64_t>(1, length))); }
  int64_t count() const { return windows == 0 ? 0 : (windows + per_chunk() - 1) / per_chunk(); }
  int64_t tokens() const { return windows * length; }
  int64_t seqs(int64_t chunk) const { return std::min(per_chunk(), windows - chunk * per_chunk()); }
  int64_t begin(int64_t chunk) const { return chunk * per_chunk() * length; }  // the first of its tokens
  int64_t rows(int64_t chunk) const { return seqs(chunk) * length; }
  int64_t most_rows() const { return windows == 0 ? 0 : rows(0); }
  // One half of the chunks, by the parity of the ones in a chunk's number (Thue and Morse): early and late ones alike,
  // and as many of those that ranks have in turn. The first is of it.
  static bool in_half(int64_t chunk) { return std::popcount(static_cast<uint64_t>(chunk)) % 2 == 0; }
  int64_t half_tokens() const {
    int64_t n = 0;
    for (int64_t chunk = 0; chunk < count(); ++chunk) n += in_half(chunk) ? rows(chunk) : 0;
    return n;
  }
};

}  // namespace fewbit

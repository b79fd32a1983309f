#pragma once
// MXFP4 weights [out, in] as kernels stream them: in tiles of 16 outputs, each a piece of memory of its own at a
// multiple of 128 bytes. A tile is cut along k into records of four blocks of 32 inputs, which is what a warp
// multiplies at once: the codes of all its records, then the scales of all of them. Rows of codes apart from rows of
// scales would be read 64 bytes here and a byte there; scales between the codes would put these off their lines.
//
// Of record words, lane 4 g + t of a warp has
//   128 h + 4 (4 g + t) + word, word in 0 .. 3   the codes of output g + 8 h, block t (kernels/grids/fp4_words.h)
//   byte 2 (4 g + t) + h of its scales           its scale, an E8M0 code
// Blocks behind the last one are codes and scales of zero; what fills a tile's last line is not said.
#include <cstdint>

#include "kernels/grids/fp4_words.h"

namespace fewbit {

inline constexpr int kFp4Block = 32;                                              // inputs that share a scale
inline constexpr int kFp4BlockWords = kFp4Block / kFp4WordCodes;                  // of codes
inline constexpr int kFp4TileOuts = 16, kFp4RecordBlocks = 4;                     // of a record
inline constexpr int kFp4HalfWords = 32 * kFp4BlockWords;                         // of eight outputs
inline constexpr int kFp4CodeWords = 2 * kFp4HalfWords, kFp4ScaleBytes = 2 * 32;  // of a record

constexpr int64_t fp4_records(int64_t in) {  // of a tile
  constexpr int64_t kIn = kFp4RecordBlocks * kFp4Block;
  return (in + kIn - 1) / kIn;
}
constexpr int64_t fp4_tile_words(int64_t in) {
  constexpr int64_t kLine = 32;
  return (fp4_records(in) * (kFp4CodeWords + kFp4ScaleBytes / 4) + kLine - 1) / kLine * kLine;
}
// Where the codes of block `block` of output `out` begin, in words, and where its scale lies, in bytes.
struct Fp4Place {
  int64_t words, scale;
};
constexpr Fp4Place fp4_place_of(int64_t out, int64_t block, int64_t in) {
  const int64_t tile = out / kFp4TileOuts * fp4_tile_words(in), record = block / kFp4RecordBlocks;
  const int64_t half = out % kFp4TileOuts / 8, lane = out % 8 * kFp4RecordBlocks + block % kFp4RecordBlocks;
  return {tile + record * kFp4CodeWords + half * kFp4HalfWords + lane * kFp4BlockWords,
          (tile + fp4_records(in) * kFp4CodeWords) * 4 + record * kFp4ScaleBytes + 2 * lane + half};
}

}  // namespace fewbit

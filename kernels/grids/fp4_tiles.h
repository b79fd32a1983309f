#pragma once
// MXFP4 weights [out, in] as kernels stream them: in records of 16 outputs by four blocks of 32 inputs, codes and
// scales of a record side by side, the records of 16 outputs one after another. What a warp multiplies at once is then
// one piece of memory; rows of codes apart from rows of scales would be read 64 bytes here and a byte there.
//
// Of record words, lane 4 g + t of a warp has
//   128 h + 4 (4 g + t) + word, word in 0 .. 3   the codes of output g + 8 h, block t (kernels/grids/fp4_words.h)
//   byte 2 (4 g + t) + h behind the codes        its scale, an E8M0 code
// Blocks behind the last one are codes and scales of zero.
#include <cstdint>

#include "kernels/grids/fp4_words.h"

namespace fewbit {

inline constexpr int kFp4Block = 32;                                    // inputs that share a scale
inline constexpr int kFp4BlockWords = kFp4Block / kFp4WordCodes;        // of codes
inline constexpr int kFp4TileOuts = 16, kFp4RecordBlocks = 4;           // of a record
inline constexpr int kFp4HalfWords = 32 * kFp4BlockWords;               // of eight outputs
inline constexpr int kFp4RecordWords = 2 * kFp4HalfWords + 2 * 32 / 4;  // the scales' included

constexpr int64_t fp4_records(int64_t in) {  // of 16 outputs
  constexpr int64_t kIn = kFp4RecordBlocks * kFp4Block;
  return (in + kIn - 1) / kIn;
}
// Where the codes of block `block` of output `out` begin, in words, and where its scale lies, in bytes.
struct Fp4Place {
  int64_t words, scale;
};
constexpr Fp4Place fp4_place_of(int64_t out, int64_t block, int64_t records) {
  const int64_t record = (out / kFp4TileOuts * records + block / kFp4RecordBlocks) * kFp4RecordWords;
  const int64_t half = out % kFp4TileOuts / 8, lane = out % 8 * kFp4RecordBlocks + block % kFp4RecordBlocks;
  return {record + half * kFp4HalfWords + lane * kFp4BlockWords, (record + 2 * kFp4HalfWords) * 4 + 2 * lane + half};
}

}  // namespace fewbit

#pragma once
// Blocks of GGUF (docs/formats/gguf.md) in the order in which the CPU multiplies them: the codes and scales of a file,
// as many bytes, with those of sixteen outputs side by side. A register then holds the same columns of sixteen outputs,
// so that a product needs no sum across its lanes and takes any number of rows of x in one order of sums; two of them
// are enough work in flight to hide an instruction's latency, and are read as one stream.
//
//   value(o, i) = d[o, t] scale[o, g] levels[code(o, i)] + m[o, t] min[o, g]     t the block of i, g its group
//
// A weight is [ceil(out / 32)] strips of strip_bytes() each, of two halves of sixteen outputs; outputs past the last
// one are zeros. A strip:
//
//   heads    of one half, then of the other; of every block: d [16], m [16] where there are minima, then group by group
//            scale [16], min [16] where groups have their own
//   (zeros up to a multiple of 64 bytes)
//   codes    of every 32 columns: `bits` lines of 64 bytes for each half, one of the first half, then one of the
//            second, and so on. They are read in this order, the only one in which a processor reads well ahead. Of a
//            half they are words of 32 bits, one for each output, in planes:
//     4 low bits (4, 5 and 6 bits)  [4][16] words: column 8 j + 2 s + h in bits 16 h + 4 s of word j
//     2 bits (low ones of 2 and 3, high ones of 6)  [2][16]: column 16 j + 2 s + h in bits 16 h + 2 s of word j
//     1 bit (the high one of 3 and 5)  [16]: column 2 s + h in bit 16 h + s
//     8 bits  [8][4][2][4] pairs of bytes: columns 4 j + 2 p, 4 j + 2 p + 1 of output 4 k + i at [j][k][p][i], each a
//             sign in bit 7 and a magnitude; 0x80 is -128, or E4M3's -0
#include <array>
#include <cstdint>

#include "src/core/tensor.h"

namespace fewbit {

inline constexpr int64_t kStripOuts = 32, kLanes = 16, kChunkCols = 32;  // outputs of a strip and of a half; columns
inline constexpr int64_t kLineBytes = 64, kNextLine = 2 * kLineBytes;    // of codes; to the next one of the same half

// What stands in a head, with the bytes that each output has there.
enum class BlockScale : uint8_t {
  alone,    // d f16; m f16. No scales of groups: a block is a group
  bytes,    // d f16, scale i8; m f16, min u8
  nibbles,  // d f16, m f16; one byte: scale in the low nibble, min in the high one
  power,    // d E8M0
  wide,     // d f32; m f32. All groups of a block share them: packed integers and FP8, in blocks of any multiple of 32
};

struct BlockForm {
  int bits = 4;      // of a code: 2, 3, 4, 5, 6 or 8
  int group = 32;    // columns that share a scale: 16 or 32; of wide scales 32 or 128
  int columns = 32;  // of a block: a multiple of 32
  BlockScale scale = BlockScale::alone;
  bool minima = false;
  bool e4m3 = false;  // codes of 8 bits are E4M3 numbers
  // By code, all exact in bf16; of 8 bits unused: the code is the level, or the number of the level.
  std::array<float, 64> levels{};

  int groups() const { return columns / group; }            // of a block
  int64_t head_bytes() const;                               // of a block of a half
  int64_t heads_bytes(int64_t in) const;                    // of a strip, padded
  int64_t chunk_bytes() const { return kNextLine * bits; }  // of 32 columns
  int64_t strip_bytes(int64_t in) const;
};

struct BlockView {
  ConstTensorView strips{};  // u8 [ceil(out / 32), form.strip_bytes(in)], at a multiple of 64 bytes
  const BlockForm* form = nullptr;
  int64_t out = 0, in = 0;  // in: a multiple of form->columns

  const uint8_t* strip(int64_t s) const { return strips.as<uint8_t>() + s * strips.cols(); }
};

// A block of one output.
struct BlockContent {
  uint16_t d = 0, m = 0;  // the bits of f16; of a power E8M0 in d
  std::array<int16_t, 16> scale{}, min{};
  std::array<uint8_t, 256> codes{};  // of 8 bits the bits of an i8, or of an E4M3 number
};
// Stores block `t` of output `lane` (0 to 31) in a strip of a weight with `in` columns; not of wide scales.
void put_block(const BlockForm&, int64_t in, const BlockContent&, int64_t t, int64_t lane, uint8_t* strip);
// The parts of a block with wide scales: 32 codes, columns [32 c, 32 c + 32) of its row, and the scales of block t.
void put_chunk(const BlockForm&, int64_t in, const uint8_t* codes, int64_t c, int64_t lane, uint8_t* strip);
void put_wide(const BlockForm&, int64_t in, float d, float m, int64_t t, int64_t lane, uint8_t* strip);

namespace cpu {
// f32 [half][group][16] each: what multiplies the levels of a group, and what is added to every value of it; `minima`
// is left alone where the form has none.
void strip_scales(const BlockForm&, int64_t in, const uint8_t* strip, float* scales, float* minima);
// The levels of 32 columns of a half, f32 [32][16], whose lines begin at `codes`.
void chunk_levels(const BlockForm&, const uint8_t* codes, float* levels);
// The values of output o, f32 [in].
void block_row(const BlockView&, int64_t o, float* values);
}  // namespace cpu

}  // namespace fewbit

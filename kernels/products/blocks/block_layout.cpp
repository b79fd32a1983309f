// Where codes and scales lie in strips of sixteen outputs, written to be read; nothing here is fast but the loops of
// strip_scales() and chunk_levels(), which compile to vector instructions.
#include "kernels/products/blocks/block_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "src/core/half.h"
#include "src/core/hot.h"

namespace fewbit {
namespace {

void store_word(uint8_t* at, uint32_t w) { std::memcpy(at, &w, sizeof w); }

// Where the columns of a plane of `bits` bits lie in the words of an output: `32 / bits` in each.
constexpr int column_shift(int column, int bits) {
  const int in_word = column % (32 / bits);
  return 16 * (in_word % 2) + bits * (in_word / 2);
}

// Bits [first, first + bits) of the codes of 32 columns as a plane.
void put_plane(const uint8_t* codes, int first, int bits, int64_t lane, uint8_t* plane) {
  const int per_word = 32 / bits, mask = (1 << bits) - 1;
  for (int j = 0; j < bits; ++j) {
    uint32_t word = 0;
    for (int c = j * per_word; c < (j + 1) * per_word; ++c)
      word |= static_cast<uint32_t>(codes[c] >> first & mask) << column_shift(c, bits);
    store_word(plane + j * kNextLine + lane * 4, word);
  }
}

// Of two halves of an output's byte codes.
int64_t byte_place(int column, int64_t lane) {
  return kNextLine * (column / 4) + 16 * (lane / 4) + 8 * (column % 4 / 2) + 2 * (lane % 4) + column % 2;
}

uint8_t sign_and_magnitude(uint8_t code) {
  const int level = (code ^ 0x80) - 0x80;
  return static_cast<uint8_t>(level < 0 ? 0x80 | (-level & 0x7f) : level);
}

// The planes of a width: bits of the first, then of the second.
struct Planes {
  int low, high;
};
Planes planes_of(int bits) {
  switch (bits) {
    case 2:
      return {2, 0};
    case 3:
      return {2, 1};
    case 4:
      return {4, 0};
    case 5:
      return {4, 1};
    case 6:
      return {4, 2};
    default:
      bug("codes of 2 to 6 or 8 bits");
  }
}

}  // namespace

int64_t BlockForm::head_bytes() const {
  if (scale == BlockScale::power) return kLanes;
  if (scale == BlockScale::wide) return kLanes * (minima ? 8 : 4);
  const int64_t alone = kLanes * (minima ? 4 : 2), each = kLanes * groups();
  if (scale == BlockScale::alone) return alone;
  return alone + each * (scale == BlockScale::bytes && minima ? 2 : 1);
}
int64_t BlockForm::heads_bytes(int64_t in) const { return (2 * (in / columns) * head_bytes() + 63) / 64 * 64; }
int64_t BlockForm::strip_bytes(int64_t in) const { return heads_bytes(in) + in / kChunkCols * chunk_bytes(); }

void put_block(const BlockForm& f, int64_t in, const BlockContent& b, int64_t t, int64_t output, uint8_t* strip) {
  const int64_t half = output / kLanes, lane = output % kLanes;
  uint8_t* head = strip + (half * (in / f.columns) + t) * f.head_bytes();
  if (f.scale == BlockScale::power) {
    head[lane] = static_cast<uint8_t>(b.d);
  } else {
    std::memcpy(head + 2 * lane, &b.d, 2);
    if (f.minima) std::memcpy(head + 2 * kLanes + 2 * lane, &b.m, 2);
    uint8_t* of_group = head + (f.minima ? 4 : 2) * kLanes + lane;
    for (size_t g = 0; f.scale != BlockScale::alone && g < static_cast<size_t>(f.groups()); ++g, of_group += kLanes) {
      if (f.scale == BlockScale::nibbles) {
        *of_group = static_cast<uint8_t>(b.scale[g] | b.min[g] << 4);
        continue;
      }
      *of_group = static_cast<uint8_t>(b.scale[g]);
      if (f.minima) *(of_group += kLanes) = static_cast<uint8_t>(b.min[g]);
    }
  }
  for (int64_t c = 0; c < f.columns / kChunkCols; ++c)
    put_chunk(f, in, b.codes.data() + c * kChunkCols, t * f.columns / kChunkCols + c, output, strip);
}

void put_chunk(const BlockForm& f, int64_t in, const uint8_t* codes, int64_t c, int64_t output, uint8_t* strip) {
  const int64_t lane = output % kLanes;
  uint8_t* to = strip + f.heads_bytes(in) + c * f.chunk_bytes() + output / kLanes * kLineBytes;
  if (f.bits == 8) {
    for (int i = 0; i < kChunkCols; ++i) to[byte_place(i, lane)] = f.e4m3 ? codes[i] : sign_and_magnitude(codes[i]);
    return;
  }
  const Planes p = planes_of(f.bits);
  put_plane(codes, 0, p.low, lane, to);
  if (p.high) put_plane(codes, p.low, p.high, lane, to + kNextLine * p.low);
}

void put_wide(const BlockForm& f, int64_t in, float d, float m, int64_t t, int64_t output, uint8_t* strip) {
  uint8_t* head = strip + (output / kLanes * (in / f.columns) + t) * f.head_bytes() + 4 * (output % kLanes);
  std::memcpy(head, &d, 4);
  if (f.minima) std::memcpy(head + 4 * kLanes, &m, 4);
}

namespace cpu {
namespace {

// f16 as f32 without a branch: the exponent's bias by a product, which subnormal numbers need no more for.
FEWBIT_HOT_INLINE float half_value(uint16_t h) {
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13, sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t value = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = 0u - static_cast<uint32_t>((h & 0x7c00u) == 0x7c00u);  // infinities and NaN
  return std::bit_cast<float>((value & ~special) | ((0x7f800000u | magnitude) & special) | sign);
}
FEWBIT_HOT_INLINE void halves(const uint8_t* at, float* values) {
  uint16_t bits[kLanes];
  std::memcpy(bits, at, sizeof bits);
  for (int64_t l = 0; l < kLanes; ++l) values[l] = half_value(bits[l]);
}

// The whole of strip_scales() in one function, so that a clone of it has all loops.
FEWBIT_HOT void scales_of(const BlockForm& f, int64_t blocks, const uint8_t* strip, float* scales, float* minima) {
  const int64_t head = f.head_bytes(), groups = f.groups();
  const bool alone = f.scale == BlockScale::alone, nibbles = f.scale == BlockScale::nibbles;
  float d[kLanes] = {}, m[kLanes] = {};
  for (int64_t t = 0; t < blocks; ++t, strip += head) {
    float* to_d = alone ? scales : d;
    float* to_m = alone ? minima : m;
    halves(strip, to_d);
    if (f.minima) halves(strip + 2 * kLanes, to_m);
    if (alone) {
      scales += kLanes;
      if (f.minima) minima += kLanes;
      continue;
    }
    const uint8_t* at = strip + (f.minima ? 4 : 2) * kLanes;
    for (int64_t g = 0; g < groups; ++g, scales += kLanes, at += kLanes) {
      if (nibbles) {
        for (int64_t l = 0; l < kLanes; ++l) scales[l] = static_cast<float>(at[l] & 15) * d[l];
        for (int64_t l = 0; l < kLanes; ++l) minima[l] = static_cast<float>(at[l] >> 4) * m[l];
        minima += kLanes;
        continue;
      }
      for (int64_t l = 0; l < kLanes; ++l) scales[l] = static_cast<float>(static_cast<int8_t>(at[l])) * d[l];
      if (!f.minima) continue;
      at += kLanes;
      for (int64_t l = 0; l < kLanes; ++l) minima[l] = static_cast<float>(at[l]) * m[l];
      minima += kLanes;
    }
  }
}

// Of wide ones: d and m of a block for each of its groups.
void repeat(const BlockForm& f, int64_t blocks, const uint8_t* strip, float* scales, float* minima) {
  constexpr size_t kBytes = kLanes * sizeof(float);
  for (int64_t t = 0; t < blocks; ++t, strip += f.head_bytes())
    for (int g = 0; g < f.groups(); ++g, scales += kLanes) {
      std::memcpy(scales, strip, kBytes);
      if (!f.minima) continue;
      std::memcpy(minima, strip + kBytes, kBytes);
      minima += kLanes;
    }
}

// Powers of two: the code is the exponent, of 0 the number is subnormal and of 255 none.
FEWBIT_HOT void powers_of(const uint8_t* codes, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t e = codes[i], least = 0u - static_cast<uint32_t>(e == 0),
                   none = 0u - static_cast<uint32_t>(e == 255);
    to[i] = std::bit_cast<float>(e << 23 | (least & 0x00400000u) | (none & 0x00400000u));
  }
}

// Codes of 32 columns as their levels: those of a table, or consecutive ones from the first on.
template <int kLow, int kHigh, bool kTable>
FEWBIT_HOT_INLINE void plane_levels(const uint32_t* words, const float* table, float* levels) {
  for (int c = 0; c < kChunkCols; ++c) {
    const uint32_t* low = words + c * kLow / 32 * kLanes;
    const uint32_t* high = words + (kLow + c * kHigh / 32) * kLanes;
    const int of_low = column_shift(c, kLow), of_high = column_shift(c, std::max(kHigh, 1));
    for (int64_t l = 0; l < kLanes; ++l) {
      uint32_t code = low[l] >> of_low & ((1u << kLow) - 1);
      if (kHigh) code |= (high[l] >> of_high & ((1u << kHigh) - 1)) << kLow;
      levels[c * kLanes + l] = kTable ? table[code] : static_cast<float>(static_cast<int>(code)) + table[0];
    }
  }
}
template <int kLow, int kHigh>
FEWBIT_HOT_INLINE void plane_levels(const uint32_t* words, const BlockForm& f, bool even, float* levels) {
  even ? plane_levels<kLow, kHigh, false>(words, f.levels.data(), levels)
       : plane_levels<kLow, kHigh, true>(words, f.levels.data(), levels);
}

// The levels of bytes of sign and magnitude, by byte: whole numbers, or E4M3's.
std::array<float, 256> levels_of_bytes(bool e4m3) {
  std::array<float, 256> levels{};
  for (int code = 0; code < 256; ++code) {
    const int magnitude = code == 128 ? 128 : code & 127;
    levels[static_cast<size_t>(code)] =
        e4m3 ? f8_e4m3_to_f32(static_cast<uint8_t>(code)) : static_cast<float>(code < 128 ? magnitude : -magnitude);
  }
  return levels;
}
const std::array<float, 256> kWholeBytes = levels_of_bytes(false), kE4m3Bytes = levels_of_bytes(true);

FEWBIT_HOT_INLINE void byte_levels(const uint8_t* codes, const float* of_byte, float* levels) {
  for (int pair = 0; pair < kChunkCols / 2; ++pair) {
    uint16_t both[kLanes];
    for (int64_t k = 0; k < 4; ++k)
      std::memcpy(both + 4 * k, codes + 32 * (pair - pair % 2) + 16 * k + 8 * (pair % 2), 8);
    for (int h = 0; h < 2; ++h)
      for (int64_t l = 0; l < kLanes; ++l) levels[(2 * pair + h) * kLanes + l] = of_byte[both[l] >> 8 * h & 255];
  }
}

FEWBIT_HOT void levels_of(const uint32_t* words, const BlockForm& f, bool even, float* levels) {
  switch (f.bits) {
    case 2:
      return plane_levels<2, 0>(words, f, even, levels);
    case 3:
      return plane_levels<2, 1>(words, f, even, levels);
    case 4:
      return plane_levels<4, 0>(words, f, even, levels);
    case 5:
      return plane_levels<4, 1>(words, f, even, levels);
    case 6:
      return plane_levels<4, 2>(words, f, even, levels);
    default:
      return byte_levels(reinterpret_cast<const uint8_t*>(words), (f.e4m3 ? kE4m3Bytes : kWholeBytes).data(), levels);
  }
}

}  // namespace

void strip_scales(const BlockForm& f, int64_t in, const uint8_t* strip, float* scales, float* minima) {
  const int64_t blocks = 2 * (in / f.columns);  // of both halves
  if (f.scale == BlockScale::power) return powers_of(strip, blocks * kLanes, scales);
  (f.scale == BlockScale::wide ? repeat : scales_of)(f, blocks, strip, scales, minima);
}

void chunk_levels(const BlockForm& f, const uint8_t* codes, float* levels) {
  alignas(64) uint32_t words[8 * kLanes];
  for (int i = 0; i < f.bits; ++i) std::memcpy(words + i * kLanes, codes + i * kNextLine, kLineBytes);
  bool even = true;
  for (size_t i = 1; i < size_t{1} << (f.bits % 8); ++i) even &= f.levels[i] == f.levels[i - 1] + 1;
  levels_of(words, f, even, levels);
}

void block_row(const BlockView& w, int64_t o, float* values) {
  const BlockForm& f = *w.form;
  const uint8_t* strip = w.strip(o / kStripOuts);
  const int64_t half = o / kLanes % 2, lane = o % kLanes, groups = w.in / f.group;
  std::vector<float> scales(static_cast<size_t>(2 * groups * kLanes)), minima(scales.size());
  strip_scales(f, w.in, strip, scales.data(), minima.data());
  const uint8_t* codes = strip + f.heads_bytes(w.in) + half * kLineBytes;
  float levels[kChunkCols * kLanes];
  for (int64_t i = 0; i < w.in; ++i) {
    if (i % kChunkCols == 0) chunk_levels(f, codes + i / kChunkCols * f.chunk_bytes(), levels);
    const size_t g = static_cast<size_t>((half * groups + i / f.group) * kLanes + lane);
    values[i] = scales[g] * levels[i % kChunkCols * kLanes + lane];
    if (f.minima) values[i] += minima[g];  // a zero keeps its sign without
  }
}

}  // namespace cpu
}  // namespace fewbit

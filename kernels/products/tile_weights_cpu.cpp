// Levels of codes as tiles of bf16, in AVX-512.
#include "kernels/products/tile_weights.h"

#include <algorithm>

#include "kernels/cpu/x86_loops.h"
#include "src/core/half.h"

namespace fewbit::cpu {

#ifdef FEWBIT_X86
namespace {

#define FEWBIT_LEVELS_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))

constexpr int64_t kTile = kBlockOuts * kTileCols;  // values of the tiles of a block
constexpr int64_t kAheadBytes = 512;               // of a row that are prefetched, then the same of the next block

// The levels of codes 0 to 15 for every zero, as bf16. A zero of 16 exists: GPTQ v1 stores zero - 1.
struct NibbleLevels {
  alignas(64) uint16_t words[17][32];
};
const NibbleLevels& nibble_levels() {
  static const NibbleLevels table = [] {
    NibbleLevels t{};
    for (int zero = 0; zero <= 16; ++zero)
      for (int code = 0; code < 32; ++code) t.words[zero][code] = bf16(static_cast<float>(code % 16 - zero)).bits;
    return t;
  }();
  return table;
}

// Row o of the codes from byte `at` on; the row itself past the last output.
struct Rows {
  const uint8_t* codes;
  int64_t out, bytes;
  const uint8_t* at(int64_t o, int64_t byte) const { return codes + std::min(o, out - 1) * bytes + byte; }
  void prefetch(const uint8_t* line, int64_t byte) const {
    const int64_t next = byte + kAheadBytes < bytes ? 0 : (kBlockOuts - 1) * bytes;
    _mm_prefetch(reinterpret_cast<const char*>(line) + kAheadBytes + next, _MM_HINT_T0);
  }
};

struct Zeros {
  const uint8_t* zeros;
  int64_t out, groups, group;
  int zero;
  const uint8_t* row(int64_t o) const { return zeros + std::min(o, out - 1) * groups; }
  int of(int64_t o, int64_t column) const { return zeros ? row(o)[column / group] : zero; }
};

// Codes of 4 bits: the words of 32 columns stand in every quarter of a register, and each quarter shifts another code
// of theirs down. The permutation reads the low five bits of an index, of which the table has both halves alike.
template <bool kZeros>
FEWBIT_LEVELS_TARGET void fill_nibbles(const Rows& rows, const Zeros& zeros, int64_t o, int64_t i0, int64_t i1,
                                       int64_t c0, int64_t c1, uint16_t* tiles) {
  constexpr int64_t kLineCols = 128, kLineTiles = kLineCols / kTileCols;  // whose codes are a cache line
  const auto& table = nibble_levels().words;
  const __m512i shifts = _mm512_set_epi64(0x000c000c000c000c, 0x000c000c000c000c, 0x0008000800080008,
                                          0x0008000800080008, 0x0004000400040004, 0x0004000400040004, 0, 0);
  const __m512i same = _mm512_load_si512(table[zeros.zero]);
  for (int64_t c = c0; c < c1; c += kLineCols, tiles += kLineTiles * kTile) {
    const int64_t count = std::min(kLineCols, c1 - c) / kTileCols;
    int64_t groups[kLineTiles] = {};
    for (int64_t t = 0; kZeros && t < count; ++t) groups[t] = (c + t * kTileCols) / zeros.group;
    for (int64_t i = i0; i < i1; ++i) {
      const uint8_t* line = rows.at(o + i, c / 2);
      const uint8_t* of_row = kZeros ? zeros.row(o + i) : nullptr;
      uint16_t* to = tiles + i * kTileCols;
      const auto store_tile = [&](int64_t t) FEWBIT_LEVELS_TARGET {
        const __m512i lookup = kZeros ? _mm512_load_si512(table[of_row[groups[t]]]) : same;
        const __m512i words = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(line) + t));
        _mm512_store_si512(to + t * kTile, _mm512_permutexvar_epi16(_mm512_srlv_epi16(words, shifts), lookup));
      };
      if (count < kLineTiles) {
        for (int64_t t = 0; t < count; ++t) store_tile(t);
        continue;
      }
      rows.prefetch(line, c / 2);
#pragma GCC unroll 4
      for (int64_t t = 0; t < kLineTiles; ++t) store_tile(t);
    }
  }
}

FEWBIT_LEVELS_TARGET inline __m512i narrowed(__m512 lower, __m512 upper) {
  return (__m512i)_mm512_cvtne2ps_pbh(upper, lower);
}

// Bytes less their zero: at most 8 bits and a sign, which bf16 holds.
FEWBIT_LEVELS_TARGET void fill_bytes(const Rows& rows, const Zeros& zeros, int64_t o, int64_t i0, int64_t i1,
                                     int64_t c0, int64_t c1, uint16_t* tiles) {
  for (int64_t c = c0; c < c1; c += kTileCols, tiles += kTile)
    for (int64_t i = i0; i < i1; ++i) {
      const uint8_t* line = rows.at(o + i, c);
      if (c % 64 == 0) rows.prefetch(line, c);
      const __m512i zero = _mm512_set1_epi32(zeros.of(o + i, c));
      const auto level = [&](int64_t at) FEWBIT_LEVELS_TARGET {
        const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + at));
        return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(some), zero));
      };
      _mm512_store_si512(tiles + i * kTileCols, narrowed(level(0), level(16)));
    }
}

// E4M3: exponent and mantissa of a code in the place of a bf16's, with its bias; the eight subnormal ones from a table.
FEWBIT_LEVELS_TARGET void fill_f8(const Rows& rows, int64_t o, int64_t i0, int64_t i1, int64_t c0, int64_t c1,
                                  uint16_t* tiles) {
  alignas(64) static constexpr uint16_t kSubnormal[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
  const __m512i subnormal = _mm512_load_si512(kSubnormal), bias = _mm512_set1_epi16((127 - 7) << 7);
  const __m512i magnitude = _mm512_set1_epi16(0x07f0), exponent = _mm512_set1_epi16(0x0780);
  const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000)), quiet = _mm512_set1_epi16(0x7fc0);
  for (int64_t c = c0; c < c1; c += kTileCols, tiles += kTile)
    for (int64_t i = i0; i < i1; ++i) {
      const uint8_t* line = rows.at(o + i, c);
      if (c % 64 == 0) rows.prefetch(line, c);
      const __m512i codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)));
      const __m512i bits = _mm512_and_si512(_mm512_slli_epi16(codes, 4), magnitude);
      __m512i value = _mm512_add_epi16(bits, bias);
      value = _mm512_mask_permutexvar_epi16(value, _mm512_testn_epi16_mask(bits, exponent), codes, subnormal);
      value = _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(bits, magnitude), quiet);
      _mm512_store_si512(tiles + i * kTileCols, _mm512_ternarylogic_epi64(value, codes, sign, 0xf8));
    }
}

}  // namespace

std::optional<TileWeight> tile_weight(const RowPackedView& w) {
  const int64_t groups = w.scales.cols(), group = groups == 1 ? w.in : w.group;
  if (!tiles_fit(w.out(), w.in) || w.group_of.data || group % kTileCols != 0) return std::nullopt;
  const Rows rows{.codes = w.codes.as<uint8_t>(), .out = w.out(), .bytes = w.codes.cols()};
  const Zeros zeros{.zeros = w.zeros.data ? w.zeros.as<uint8_t>() : nullptr,
                    .out = w.out(),
                    .groups = groups,
                    .group = group,
                    .zero = 1 << (w.bits - 1)};
  auto* fill = w.bits > 4 ? fill_bytes : w.zeros.data ? fill_nibbles<true> : fill_nibbles<false>;
  const ColumnOrder order = w.bits > 4 ? ColumnOrder::natural : ColumnOrder::by_four;
  const bool avx512 = tile_unit() == TileUnit::avx512;
  return TileWeight{.out = w.out(),
                    .in = w.in,
                    .order = order,
                    .group = group,
                    .scales = w.scales.as<float>(),
                    .fill = [=](int64_t o, int64_t i0, int64_t i1, int64_t c0, int64_t c1,
                                uint16_t* tiles) { fill(rows, zeros, o, i0, i1, c0, c1, tiles); },
                    .quads = avx512 ? quad_loops(w) : QuadLoops{},
                    .row_bytes = rows.bytes};
}

std::optional<TileWeight> tile_weight(const ByteWeightView& w) {
  const Rows rows{.codes = w.codes.as<uint8_t>(), .out = w.codes.rows(), .bytes = w.codes.cols()};
  if (!tiles_fit(rows.out, rows.bytes) || w.codes.dtype != DType::f8_e4m3) return std::nullopt;
  return TileWeight{.out = rows.out,
                    .in = rows.bytes,
                    .group = rows.bytes,
                    .scales = w.scales.as<float>(),
                    .fill = [=](int64_t o, int64_t i0, int64_t i1, int64_t c0, int64_t c1,
                                uint16_t* tiles) { fill_f8(rows, o, i0, i1, c0, c1, tiles); },
                    .quads = tile_unit() == TileUnit::avx512 ? quad_loops(w) : QuadLoops{},
                    .row_bytes = rows.bytes};
}

#else

std::optional<TileWeight> tile_weight(const RowPackedView&) { return std::nullopt; }
std::optional<TileWeight> tile_weight(const ByteWeightView&) { return std::nullopt; }

#endif

}  // namespace fewbit::cpu

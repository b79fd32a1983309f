// The loops of block_dot.h. A register holds pairs of columns of sixteen outputs; an instruction multiplies them with
// one pair of x, which stands in all of its lanes, and adds to sixteen sums.
#include "kernels/products/blocks/block_dot.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/x86_loops.h"
#include "src/core/half.h"

namespace fewbit::cpu {

#ifdef FEWBIT_X86
namespace {

#define FEWBIT_BLOCK_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16,avx2,fma")))
#define FEWBIT_BLOCK_INLINE FEWBIT_BLOCK_TARGET __attribute__((always_inline)) inline

constexpr int kPairs = kChunkCols / 2;
// How far ahead codes are asked for, into the second cache: the processor's own reading ahead ends with a page, and a
// strip's scales lie behind the codes of the strip before it.
constexpr int64_t kAheadBytes = 8192;

// The levels of codes of up to 6 bits as bf16, over and over: what a wider index has above its code does not matter.
struct LevelTable {
  alignas(64) uint16_t words[64];
  explicit LevelTable(const BlockForm& f) {
    for (int i = 0; f.bits < 8 && i < 64; ++i) {
      const float level = f.levels[static_cast<size_t>(i & ((1 << f.bits) - 1))];  // exact in bf16
      words[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(level) >> 16);
    }
  }
};

// Of 8 bits the bytes of the bf16 of magnitudes 0 to 127, the low ones first.
struct ByteTable {
  alignas(64) uint8_t bytes[2][128];
  ByteTable() {
    for (int i = 0; i < 128; ++i) {
      const uint16_t value = bf16(static_cast<float>(i)).bits;
      bytes[0][i] = static_cast<uint8_t>(value);
      bytes[1][i] = static_cast<uint8_t>(value >> 8);
    }
  }
};
const ByteTable kBytes;

// Makes the levels of 32 columns of kStrips strips from their codes and gives them to take(pair, levels), in order.
template <int kBits>
struct Levels {
  __m512i table, upper;
  FEWBIT_BLOCK_INLINE explicit Levels(const LevelTable& t)
      : table(_mm512_load_si512(t.words)), upper(_mm512_load_si512(t.words + 32)) {}

  template <int kStrips, class Take>
  FEWBIT_BLOCK_INLINE void each(const uint8_t* const (&codes)[kStrips], const Take& take) const {
    __m512i level[kStrips];
#pragma GCC unroll 16
    for (int p = 0; p < kPairs; ++p) {
      for (int i = 0; i < kStrips; ++i) level[i] = at(codes[i], p);
      take(p, level);
    }
  }

 private:
  FEWBIT_BLOCK_INLINE __m512i at(const uint8_t* codes, int p) const {
    const auto plane = [&](int64_t i) FEWBIT_BLOCK_TARGET { return _mm512_loadu_si512(codes + kNextLine * i); };
    if constexpr (kBits == 2 || kBits == 3) {
      __m512i code = shifted(plane(p / 8), 2 * (p % 8));
      if constexpr (kBits == 3) code = joined(_mm512_set1_epi16(3), code, shifted(plane(2), p - 2));
      return _mm512_permutexvar_epi16(code, table);
    } else {
      __m512i code = shifted(plane(p / 4), 4 * (p % 4));
      const __m512i low = _mm512_set1_epi16(15);
      if constexpr (kBits == 5) code = joined(low, code, shifted(plane(4), p - 4));
      if constexpr (kBits == 6) code = joined(low, code, shifted(plane(4 + p / 8), 2 * (p % 8) - 4));
      return kBits == 6 ? _mm512_permutex2var_epi16(table, code, upper) : _mm512_permutexvar_epi16(code, table);
    }
  }
  // Words shifted to the right, or to the left where n < 0.
  static FEWBIT_BLOCK_INLINE __m512i shifted(__m512i words, int n) {
    return n == 0 ? words : n > 0 ? _mm512_srli_epi16(words, n) : _mm512_slli_epi16(words, -n);
  }
  // a where the mask is set, else b.
  static FEWBIT_BLOCK_INLINE __m512i joined(__m512i mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
  }
};

template <>
struct Levels<8> {
  __m512i low[2], high[2];
  FEWBIT_BLOCK_INLINE explicit Levels(const LevelTable&) {
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(kBytes.bytes[0] + 64 * i);
      high[i] = _mm512_load_si512(kBytes.bytes[1] + 64 * i);
    }
  }
  template <int kStrips, class Take>
  FEWBIT_BLOCK_INLINE void each(const uint8_t* const (&codes)[kStrips], const Take& take) const {
    const __m512i sign = _mm512_set1_epi8(-128), least = _mm512_set1_epi8(0x43);  // the high byte of bf16's 128
#pragma GCC unroll 8
    for (int j = 0; j < kPairs / 2; ++j) {
      __m512i first[kStrips], second[kStrips];
      for (int i = 0; i < kStrips; ++i) {
        const __m512i code = _mm512_loadu_si512(codes[i] + kNextLine * j);
        const __m512i lower = _mm512_permutex2var_epi8(low[0], code, low[1]);
        __m512i upper = _mm512_permutex2var_epi8(high[0], code, high[1]);
        upper = _mm512_mask_mov_epi8(upper, _mm512_cmpeq_epi8_mask(code, sign), least);
        upper = _mm512_ternarylogic_epi64(upper, code, sign, 0xf8);  // upper | (code & sign)
        first[i] = _mm512_unpacklo_epi8(lower, upper);
        second[i] = _mm512_unpackhi_epi8(lower, upper);
      }
      take(2 * j, first);
      take(2 * j + 1, second);
    }
  }
};

FEWBIT_BLOCK_INLINE __m512bh pair_of(uint32_t pair) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(pair)); }

// Adds what a group of columns gave to the totals: sums times the scale, then the minimum times the sum of x.
FEWBIT_BLOCK_INLINE __m512 with_group(__m512 total, __m512 sum, const float* scale, const float* minimum, float of_x) {
  total = _mm512_fmadd_ps(sum, _mm512_loadu_ps(scale), total);
  return minimum ? _mm512_fmadd_ps(_mm512_loadu_ps(minimum), _mm512_set1_ps(of_x), total) : total;
}

// A tile of kRows rows with kHalves halves from `half` on, whose levels come from codes.
template <int kBits, int kGroup, int kRows, int kHalves, bool kMinima>
FEWBIT_BLOCK_TARGET void from_codes(const StripRef& w, const LevelTable& table, int half, const PackedRows& x,
                                    int64_t first, float* sums) {
  constexpr int kGroupPairs = kGroup / 2;
  constexpr int64_t kChunk = kNextLine * kBits;
  const Levels<kBits> levels(table);
  const int64_t groups = x.in / kGroup;
  const uint8_t* codes[kHalves];
  for (int i = 0; i < kHalves; ++i) codes[i] = w.bytes + w.form.heads_bytes(x.in) + (half + i) * kLineBytes;
  const float *scales = w.scales + half * groups * kLanes, *minima = w.minima + half * groups * kLanes;
  const uint32_t* xs = x.pairs + first * (x.in / 2);
  __m512 total[kRows][kHalves], sum[kRows][kHalves];
  for (auto& of_row : total)
    for (__m512& t : of_row) t = _mm512_setzero_ps();
  int64_t g = 0;
  while (g < groups) {  // a line of codes has one group or several
    for (int line = 0; line < kHalves * kBits; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(codes[0]) + kAheadBytes + kLineBytes * line, _MM_HINT_T1);
    levels.each(codes, [&](int p, const __m512i(&level)[kHalves]) FEWBIT_BLOCK_TARGET {
      for (int r = 0; r < kRows; ++r) {
        const __m512bh both = pair_of(xs[p * kRows + r]);
        for (int i = 0; i < kHalves; ++i)
          sum[r][i] =
              _mm512_dpbf16_ps(p % kGroupPairs == 0 ? _mm512_setzero_ps() : sum[r][i], (__m512bh)level[i], both);
      }
      if ((p + 1) % kGroupPairs != 0) return;
      for (int i = 0; i < kHalves; ++i)
        for (int r = 0; r < kRows; ++r)
          total[r][i] = with_group(total[r][i], sum[r][i], scales + (i * groups + g) * kLanes,
                                   kMinima ? minima + (i * groups + g) * kLanes : nullptr,
                                   kMinima ? x.sums[(first + r) * groups + g] : 0);
      ++g;
    });
    for (int i = 0; i < kHalves; ++i) codes[i] += kChunk;
    xs += kPairs * kRows;
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kHalves; ++i) _mm512_storeu_ps(sums + ((first + r) * 2 + half + i) * kLanes, total[r][i]);
}

// The same of levels that lie in memory.
template <int kGroup, int kRows>
FEWBIT_BLOCK_TARGET void from_levels(const StripRef& w, const uint16_t* levels, const PackedRows& x, int64_t first,
                                     float* sums) {
  constexpr int kGroupPairs = kGroup / 2;
  const int64_t groups = x.in / kGroup;
  const uint16_t* of_half[2] = {levels, levels + x.in * kLanes};
  const uint32_t* xs = x.pairs + first * (x.in / 2);
  alignas(64) float total[kRows][2][kLanes] = {};
  for (int64_t g = 0; g < groups; ++g) {
    __m512 sum[kRows][2];
    for (auto& of_row : sum) of_row[0] = of_row[1] = _mm512_setzero_ps();
    for (int64_t p = g * kGroupPairs; p < (g + 1) * kGroupPairs; ++p, xs += kRows) {
      const auto a = (__m512bh)_mm512_load_si512(of_half[0] + p * 2 * kLanes),
                 b = (__m512bh)_mm512_load_si512(of_half[1] + p * 2 * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const __m512bh both = pair_of(xs[r]);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], a, both);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], b, both);
      }
    }
    for (int i = 0; i < 2; ++i)
      for (int r = 0; r < kRows; ++r)
        _mm512_store_ps(total[r][i],
                        with_group(_mm512_load_ps(total[r][i]), sum[r][i], w.scales + (i * groups + g) * kLanes,
                                   x.sums ? w.minima + (i * groups + g) * kLanes : nullptr,
                                   x.sums ? x.sums[(first + r) * groups + g] : 0));
  }
  std::memcpy(sums + first * 2 * kLanes, total, sizeof total);
}

// Calls tile<rows>(first) for the tiles of a pass: of a few rows powers of two, of many as many as the registers hold.
template <class F>
void for_tiles(int64_t rows, const F& tile) {
  int64_t r = 0;
  if (rows > kFewRows) {
    for (; r + 12 <= rows; r += 12) tile.template operator()<12>(r);
    for (; r + 6 <= rows; r += 6) tile.template operator()<6>(r);
    for (; r + 3 <= rows; r += 3) tile.template operator()<3>(r);
    for (; r < rows; ++r) tile.template operator()<1>(r);
    return;
  }
  if (r + 8 <= rows) tile.template operator()<8>(r), r += 8;
  if (r + 4 <= rows) tile.template operator()<4>(r), r += 4;
  if (r + 2 <= rows) tile.template operator()<2>(r), r += 2;
  if (r < rows) tile.template operator()<1>(r);
}

template <int kBits, int kGroup, bool kMinima>
void all_from_codes(const StripRef& w, const PackedRows& x, float* sums) {
  const LevelTable table(w.form);
  for_tiles(x.rows, [&]<int kRows>(int64_t first) {
    if constexpr (kRows <= 4) {
      from_codes<kBits, kGroup, kRows, 2, kMinima>(w, table, 0, x, first, sums);
    } else if constexpr (kRows == 8) {  // the sums of one half fill half of the registers
      for (int half = 0; half < 2; ++half) from_codes<kBits, kGroup, kRows, 1, kMinima>(w, table, half, x, first, sums);
    }
  });
}

template <int kBits>
FEWBIT_BLOCK_TARGET void levels_of(const StripRef& w, int64_t in, uint16_t* to) {
  const LevelTable table(w.form);
  const Levels<kBits> levels(table);
  const uint8_t* first = w.bytes + w.form.heads_bytes(in);
  const uint8_t* codes[2] = {first, first + kLineBytes};
  for (int64_t c = 0; c < in / kChunkCols; ++c, to += kChunkCols * kLanes) {
    levels.each(codes, [&](int p, const __m512i(&level)[2]) FEWBIT_BLOCK_TARGET {
      _mm512_store_si512(to + p * 2 * kLanes, level[0]);
      _mm512_store_si512(to + in * kLanes + p * 2 * kLanes, level[1]);
    });
    for (const uint8_t*& at : codes) at += kNextLine * kBits;
  }
}

FEWBIT_BLOCK_INLINE __m512 halves_at(const uint8_t* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}
FEWBIT_BLOCK_INLINE __m128i bytes_at(const uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
FEWBIT_BLOCK_INLINE void store_times(__m512i scale, __m512 d, float* to) {
  _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(scale), d));
}

FEWBIT_BLOCK_TARGET void scales_of(const BlockForm& f, int64_t blocks, const uint8_t* strip, float* scales,
                                   float* minima) {
  const int64_t head = f.head_bytes(), groups = f.scale == BlockScale::alone ? 0 : f.groups();
  const __m512i low = _mm512_set1_epi32(15);
  for (int64_t t = 0; t < blocks; ++t, strip += head) {
    const __m512 d = halves_at(strip), m = f.minima ? halves_at(strip + 2 * kLanes) : d;
    if (groups == 0) {
      _mm512_storeu_ps(scales, d);
      if (f.minima) _mm512_storeu_ps(minima, m);
      scales += kLanes;
      minima += kLanes;
    }
    const uint8_t* at = strip + (f.minima ? 4 : 2) * kLanes;
    for (int64_t g = 0; g < groups; ++g, scales += kLanes, minima += kLanes, at += kLanes) {
      if (f.scale == BlockScale::nibbles) {
        const __m512i both = _mm512_cvtepu8_epi32(bytes_at(at));
        store_times(_mm512_and_si512(both, low), d, scales);
        store_times(_mm512_srli_epi32(both, 4), m, minima);
        continue;
      }
      store_times(_mm512_cvtepi8_epi32(bytes_at(at)), d, scales);
      if (!f.minima) continue;
      at += kLanes;
      store_times(_mm512_cvtepu8_epi32(bytes_at(at)), m, minima);
    }
  }
}

// Calls f<bits, group>() of a form.
template <class F>
void for_form(const BlockForm& f, const F& call) {
  const auto with_group = [&]<int kBits>() {
    f.group == 16 ? call.template operator()<kBits, 16>() : call.template operator()<kBits, 32>();
  };
  switch (f.bits) {
    case 2:
      return with_group.template operator()<2>();
    case 3:
      return with_group.template operator()<3>();
    case 4:
      return with_group.template operator()<4>();
    case 5:
      return with_group.template operator()<5>();
    case 6:
      return with_group.template operator()<6>();
    default:
      return with_group.template operator()<8>();
  }
}

}  // namespace

bool has_block_dots() {
  static const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vbmi");
  return has;
}

void pack_rows(ConstTensorView x, int64_t first, int64_t rows, uint32_t* pairs) {
  const int64_t half = x.cols() / 2;
  for_tiles(rows, [&]<int kRows>(int64_t tile) {
    const bf16* from = x.as<bf16>() + (first + tile) * 2 * half;
    uint32_t* to = pairs + tile * half;
    for (int64_t p = 0; p < half; ++p)
      for (int64_t r = 0; r < kRows; ++r) std::memcpy(to++, from + r * 2 * half + 2 * p, sizeof *to);
  });
}

void dot_scales(const BlockForm& f, int64_t in, const uint8_t* strip, float* scales, float* minima) {
  if (f.scale == BlockScale::power || f.scale == BlockScale::wide) return strip_scales(f, in, strip, scales, minima);
  scales_of(f, 2 * (in / f.columns), strip, scales, minima);
}

void strip_levels(const StripRef& w, int64_t in, uint16_t* levels) {
  for_form(w.form, [&]<int kBits, int>() { levels_of<kBits>(w, in, levels); });
}

void code_dots(const StripRef& w, const PackedRows& x, float* sums) {
  for_form(w.form, [&]<int kBits, int kGroup>() {
    x.sums ? all_from_codes<kBits, kGroup, true>(w, x, sums) : all_from_codes<kBits, kGroup, false>(w, x, sums);
  });
}

void level_dots(const StripRef& w, const uint16_t* levels, const PackedRows& x, float* sums) {
  for_tiles(x.rows, [&]<int kRows>(int64_t first) {
    w.form.group == 16 ? from_levels<16, kRows>(w, levels, x, first, sums)
                       : from_levels<32, kRows>(w, levels, x, first, sums);
  });
}

#else

bool has_block_dots() { return false; }
void pack_rows(ConstTensorView, int64_t, int64_t, uint32_t*) { bug("no vector loops on this machine"); }
void dot_scales(const BlockForm&, int64_t, const uint8_t*, float*, float*) { bug("no vector loops on this machine"); }
void strip_levels(const StripRef&, int64_t, uint16_t*) { bug("no vector loops on this machine"); }
void code_dots(const StripRef&, const PackedRows&, float*) { bug("no vector loops on this machine"); }
void level_dots(const StripRef&, const uint16_t*, const PackedRows&, float*) { bug("no vector loops on this machine"); }

#endif

}  // namespace fewbit::cpu

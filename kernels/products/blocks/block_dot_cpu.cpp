// The loops of block_dot.h. A register holds pairs of columns of sixteen outputs; an instruction multiplies them with
// one pair of x, which stands in all of its lanes, and adds to sixteen sums.
#include "kernels/products/blocks/block_dot.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

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

// Of 8 bits the bytes of the bf16 of magnitudes 0 to 127, the low ones first.
struct ByteTable {
  alignas(64) uint8_t bytes[2][128];
  explicit ByteTable(bool e4m3) {
    for (int i = 0; i < 128; ++i) {
      const uint16_t value = bf16(e4m3 ? f8_e4m3_to_f32(static_cast<uint8_t>(i)) : static_cast<float>(i)).bits;
      bytes[0][i] = static_cast<uint8_t>(value);
      bytes[1][i] = static_cast<uint8_t>(value >> 8);
    }
  }
};
const ByteTable kWholeNumbers(false), kE4m3(true);

// The levels of codes of up to 6 bits as bf16, over and over: what a wider index has above its code does not matter.
struct LevelTable {
  alignas(64) uint16_t words[64];
  const ByteTable& bytes;
  bool has_least;  // 0x80 is -128
  explicit LevelTable(const BlockForm& f) : bytes(f.e4m3 ? kE4m3 : kWholeNumbers), has_least(!f.e4m3) {
    for (int i = 0; f.bits < 8 && i < 64; ++i) {
      const float level = f.levels[static_cast<size_t>(i & ((1 << f.bits) - 1))];  // exact in bf16
      words[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(level) >> 16);
    }
  }
};

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
  __mmask64 least_counts;
  FEWBIT_BLOCK_INLINE explicit Levels(const LevelTable& t) : least_counts(t.has_least ? ~__mmask64{0} : 0) {
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm512_load_si512(t.bytes.bytes[0] + 64 * i);
      high[i] = _mm512_load_si512(t.bytes.bytes[1] + 64 * i);
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
        upper = _mm512_mask_mov_epi8(upper, _mm512_mask_cmpeq_epi8_mask(least_counts, code, sign), least);
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

// A tile of kRows rows with both halves, whose levels come from codes.
template <int kBits, int kGroup, int kRows, bool kMinima>
FEWBIT_BLOCK_TARGET void from_codes(const StripRef& w, const LevelTable& table, const PackedRows& x, int64_t first,
                                    float* sums) {
  constexpr int kHalves = 2;
  constexpr int kChunks = std::max<int>(1, kGroup / kChunkCols);  // of a group
  constexpr int kPart = std::min<int>(kGroup / 2, kPairs);        // pairs of a group in a chunk
  constexpr int64_t kChunk = kNextLine * kBits;
  const Levels<kBits> levels(table);
  const int64_t groups = x.in / kGroup;
  const uint8_t* codes[kHalves];
  for (int i = 0; i < kHalves; ++i) codes[i] = w.bytes + w.form.heads_bytes(x.in) + i * kLineBytes;
  const uint32_t* xs = x.pairs + first * (x.in / 2);
  __m512 total[kRows][kHalves], sum[kRows][kHalves];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kHalves; ++i) total[r][i] = sum[r][i] = _mm512_setzero_ps();
  int64_t g = 0;
  const auto end_group = [&]() FEWBIT_BLOCK_TARGET __attribute__((always_inline)) {
    // Here the products of the group end, says this to GCC, which otherwise goes row by row and keeps all of x on the
    // stack.
    if constexpr (kMinima && kPart == kPairs)
      for (auto& of_row : sum) asm volatile("" : "+v"(of_row[0]), "+v"(of_row[1]));
    for (int i = 0; i < kHalves; ++i)
      for (int r = 0; r < kRows; ++r) {
        total[r][i] = with_group(total[r][i], sum[r][i], w.scales + (i * groups + g) * w.step,
                                 kMinima ? w.minima + (i * groups + g) * w.step : nullptr,
                                 kMinima ? x.sums[(first + r) * groups + g] : 0);
        sum[r][i] = _mm512_setzero_ps();
      }
    ++g;
  };
  while (g < groups) {  // NOLINT(bugprone-infinite-loop): end_group() counts
    for (int chunk = 0; chunk < kChunks; ++chunk, xs += kPairs * kRows) {
      for (int line = 0; line < kHalves * kBits; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(codes[0]) + kAheadBytes + kLineBytes * line, _MM_HINT_T1);
      levels.each(codes, [&](int p, const __m512i(&level)[kHalves]) FEWBIT_BLOCK_TARGET {
        for (int r = 0; r < kRows; ++r) {
          const __m512bh both = pair_of(xs[p * kRows + r]);
          for (int i = 0; i < kHalves; ++i) sum[r][i] = _mm512_dpbf16_ps(sum[r][i], (__m512bh)level[i], both);
        }
        if (kPart < kPairs && (p + 1) % kPart == 0) end_group();
      });
      for (int i = 0; i < kHalves; ++i) codes[i] += kChunk;
    }
    if (kPart == kPairs) end_group();
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kHalves; ++i) _mm512_storeu_ps(sums + ((first + r) * kHalves + i) * kLanes, total[r][i]);
}

// Calls tile<rows>(first) for tiles [begin, end) of a pass.
template <int kMost, class F>
void for_tiles(int64_t rows, int64_t begin, int64_t end, const F& tile) {
  const int64_t tiles = (rows + kMost - 1) / kMost;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = rows * t / tiles, count = rows * (t + 1) / tiles - first;
    [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
      ((count == kRows + 1 ? tile.template operator()<kRows + 1>(first) : void()), ...);
    }
    (std::make_integer_sequence<int, kMost>());
  }
}
// tile_rows()
template <int kBits, int kGroup, bool kMinima>
constexpr int kTileRows = kMinima                       ? 4
                          : kBits == 8 && kGroup == 128 ? 8
                                                        : 6;

template <int kBits, int kGroup, bool kMinima>
void all_from_codes(const StripRef& w, const PackedRows& x, float* sums) {
  const LevelTable table(w.form);
  for_tiles<kTileRows<kBits, kGroup, kMinima>>(x.rows, 0, row_tiles(w.form, x.rows), [&]<int kRows>(int64_t first) {
    from_codes<kBits, kGroup, kRows, kMinima>(w, table, x, first, sums);
  });
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
    if constexpr (kBits == 4 || kBits == 8)
      if (f.group == 128) return call.template operator()<kBits, 128>();
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

void pack_rows(const BlockForm& f, ConstTensorView x, int64_t first, int64_t rows, int64_t begin, int64_t end,
               uint32_t* pairs) {
  const int64_t half = x.cols() / 2;
  const auto pack = [&]<int kRows>(int64_t tile) {
    const bf16* from = x.as<bf16>() + (first + tile) * 2 * half;
    uint32_t* to = pairs + tile * half;
    for (int64_t p = 0; p < half; ++p)
      for (int64_t r = 0; r < kRows; ++r) std::memcpy(to++, from + r * 2 * half + 2 * p, sizeof *to);
  };
  switch (tile_rows(f)) {
    case 4:
      return for_tiles<4>(rows, begin, end, pack);
    case 6:
      return for_tiles<6>(rows, begin, end, pack);
    default:
      return for_tiles<8>(rows, begin, end, pack);
  }
}

void dot_scales(const BlockForm& f, int64_t in, const uint8_t* strip, float* scales, float* minima) {
  if (f.scale == BlockScale::power || f.scale == BlockScale::wide) return strip_scales(f, in, strip, scales, minima);
  scales_of(f, 2 * (in / f.columns), strip, scales, minima);
}

void code_dots(const StripRef& w, const PackedRows& x, float* sums) {
  for_form(w.form, [&]<int kBits, int kGroup>() {
    x.sums ? all_from_codes<kBits, kGroup, true>(w, x, sums) : all_from_codes<kBits, kGroup, false>(w, x, sums);
  });
}

#else

bool has_block_dots() { return false; }
void pack_rows(const BlockForm&, ConstTensorView, int64_t, int64_t, int64_t, int64_t, uint32_t*) {
  bug("no vector loops on this machine");
}
void dot_scales(const BlockForm&, int64_t, const uint8_t*, float*, float*) { bug("no vector loops on this machine"); }
void code_dots(const StripRef&, const PackedRows&, float*) { bug("no vector loops on this machine"); }

#endif

}  // namespace fewbit::cpu

// wide_dots() of block_dot.h in AVX2: levels in f32, eight outputs a register, times one value of x that stands in all
// of its lanes. Up to four rows meet levels where they are made, in registers; more rows find them in the first cache.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/x86_loops.h"
#include "kernels/products/blocks/block_dot.h"

namespace fewbit::cpu {

namespace {

// Where column c of a plane of `bits` bits lies: its word (block_layout.h), and the shift there.
constexpr int word_of(int c, int bits) { return c * bits / 32; }
constexpr int shift_of(int c, int bits) { return 16 * (c % 2) + bits * (c % (32 / bits) / 2); }

// A code of one plane whose levels count up by one is not shifted: where it lies it is 2^shift times itself, and x is
// divided by that (wide_factor()), which is exact. Only where it would reach the sign of its word it is shifted.
constexpr int kept_shift(int c, int bits) { return shift_of(c, bits) + bits < 32 ? shift_of(c, bits) : 0; }

bool counts_up(const BlockForm& f) {
  bool even = true;
  for (size_t i = 1; f.bits < 8 && i < size_t{1} << f.bits; ++i) even &= f.levels[i] == f.levels[i - 1] + 1;
  return even;
}

// 1 or 0.5 where the 16 levels of a table are whole multiples of that and fit a byte, else 0.
float unit_of(const BlockForm& f) {
  for (const float unit : {1.f, 0.5f})
    if (std::all_of(f.levels.begin(), f.levels.begin() + 16,
                    [&](float v) { return v / unit >= -128 && v / unit <= 127 && v / unit == std::floor(v / unit); }))
      return unit;
  return 0;
}

}  // namespace

float wide_factor(const BlockForm& f, int64_t column) {
  if (counts_up(f) && (f.bits == 2 || f.bits == 4))
    return 1.f / static_cast<float>(uint32_t{1} << kept_shift(static_cast<int>(column % kChunkCols), f.bits));
  const float unit = f.bits == 4 ? unit_of(f) : 0;
  return unit > 0 ? unit : 1;
}

float wide_offset(const BlockForm& f) { return f.bits < 8 && counts_up(f) ? f.levels[0] : 0; }

#ifdef FEWBIT_X86
namespace {

#define FEWBIT_WIDE_TARGET __attribute__((target("avx2,fma")))
#define FEWBIT_WIDE_INLINE FEWBIT_WIDE_TARGET __attribute__((always_inline)) inline

constexpr int kEight = 8, kParts = kLanes / kEight;  // outputs of a register, registers of a half
constexpr int kColumns = 4;                          // that are made of one word of each plane
// How far ahead codes are asked for: the processor's own reading ahead ends with a page, and a strip's scales lie
// behind the codes of the strip before it.
constexpr int64_t kAheadBytes = 4096;

FEWBIT_WIDE_INLINE __m256i eight_at(const uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// Codes of kLow + kHigh bits whose levels count up, as numbers from 0 on.
template <int kLow, int kHigh>
struct Planes {
  static constexpr bool kBothHalves = kHigh == 0;  // the words of one row with both halves fit the registers
  FEWBIT_WIDE_INLINE explicit Planes(const BlockForm&) {}
  struct Words {
    __m256i low, high;
  };
  // The words of columns 4 b to 4 b + 3 of eight outputs.
  FEWBIT_WIDE_INLINE Words words(const uint8_t* codes, int b) const {
    const __m256i low = eight_at(codes + kNextLine * word_of(kColumns * b, kLow));
    if constexpr (kHigh == 0) return {low, low};
    return {low, eight_at(codes + kNextLine * (kLow + word_of(kColumns * b, std::max(kHigh, 1))))};
  }
  FEWBIT_WIDE_INLINE __m256 level(const Words& w, int c) const {
    if constexpr (kHigh == 0) {
      const int kept = kept_shift(c, kLow), away = shift_of(c, kLow) - kept;
      const __m256i mask = _mm256_set1_epi32(((1 << kLow) - 1) << kept);
      return _mm256_cvtepi32_ps(_mm256_and_si256(away ? _mm256_srli_epi32(w.low, away) : w.low, mask));
    }
    const int up = shift_of(c, std::max(kHigh, 1)) - kLow;  // the high bits to their place above the low ones
    const __m256i high = up >= 0 ? _mm256_srli_epi32(w.high, up) : _mm256_slli_epi32(w.high, -up);
    const __m256i low = _mm256_srli_epi32(w.low, shift_of(c, kLow));
    return _mm256_cvtepi32_ps(_mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32((1 << kLow) - 1)),
                                              _mm256_and_si256(high, _mm256_set1_epi32(((1 << kHigh) - 1) << kLow))));
  }
};

// The byte at bit 8 * `byte` of every word, with its sign.
FEWBIT_WIDE_INLINE __m256 byte_of(__m256i words, int byte) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(byte == 3 ? words : _mm256_slli_epi32(words, 24 - 8 * byte), 24));
}

// Codes of 4 bits that point into a table, which are looked up as bytes: multiples of unit_of(), by which x is
// multiplied.
struct ByteTable {
  static constexpr bool kBothHalves = true;
  __m256i table;
  FEWBIT_WIDE_TARGET explicit ByteTable(const BlockForm& f) {
    alignas(16) int8_t levels[16];
    for (size_t i = 0; i < 16; ++i) levels[i] = static_cast<int8_t>(f.levels[i] / unit_of(f));
    table = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(levels)));
  }
  struct Words {
    __m256i low, high;  // of the low nibbles of each byte, and of the high ones
  };
  FEWBIT_WIDE_INLINE Words words(const uint8_t* codes, int b) const {
    const __m256i word = eight_at(codes + kNextLine * word_of(kColumns * b, 4)), low = _mm256_set1_epi8(15);
    return {_mm256_shuffle_epi8(table, _mm256_and_si256(word, low)),
            _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(word, 4), low))};
  }
  FEWBIT_WIDE_INLINE __m256 level(const Words& w, int c) const {
    const int shift = shift_of(c, 4);
    return byte_of(shift % 8 ? w.high : w.low, shift / 8);
  }
};

// The same of a table of any numbers.
struct FloatTable {
  static constexpr bool kBothHalves = true;
  __m256 lower, upper;
  FEWBIT_WIDE_TARGET explicit FloatTable(const BlockForm& f)
      : lower(_mm256_loadu_ps(f.levels.data())), upper(_mm256_loadu_ps(f.levels.data() + kEight)) {}
  using Words = __m256i;
  FEWBIT_WIDE_INLINE Words words(const uint8_t* codes, int b) const {
    return eight_at(codes + kNextLine * word_of(kColumns * b, 4));
  }
  FEWBIT_WIDE_INLINE __m256 level(const Words& w, int c) const {
    const __m256i code = _mm256_srli_epi32(w, shift_of(c, 4));             // indices are of three bits
    const __m256 half = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));  // the sign bit chooses the half
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, code), _mm256_permutevar8x32_ps(upper, code), half);
  }
};

// Bytes of sign and magnitude.
struct Bytes {
  static constexpr bool kBothHalves = true;
  FEWBIT_WIDE_INLINE explicit Bytes(const BlockForm&) {}
  using Words = __m256i;  // of every output its four columns, a byte each
  FEWBIT_WIDE_INLINE Words words(const uint8_t* codes, int b) const {
    const __m256i magnitude = _mm256_set1_epi8(0x7f), least = _mm256_set1_epi8(-128);
    const __m256i by_output =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    const __m256i code = eight_at(codes + kNextLine * b);
    const __m256i size =
        _mm256_or_si256(_mm256_and_si256(code, magnitude), _mm256_and_si256(_mm256_cmpeq_epi8(code, least), least));
    return _mm256_shuffle_epi8(_mm256_sign_epi8(size, code), by_output);
  }
  FEWBIT_WIDE_INLINE __m256 level(const Words& w, int c) const { return byte_of(w, c % kColumns); }
};

// A group's sums to totals: times the scale, and the minimum times the sum of the group's x.
FEWBIT_WIDE_INLINE __m256 with_group(__m256 total, __m256 sum, const float* scale, const float* minimum, float of_x) {
  total = _mm256_fmadd_ps(sum, _mm256_loadu_ps(scale), total);
  return minimum ? _mm256_fmadd_ps(_mm256_loadu_ps(minimum), _mm256_set1_ps(of_x), total) : total;
}

// Rows `first` to first + kRows with kHalves halves from `half` on. Four sums at least are under way, as many as hide
// the latency of an addition.
template <class Source, int kGroup, int kRows, int kHalves, bool kMinima>
FEWBIT_WIDE_TARGET void from_codes(const StripRef& w, int half, const WideRows& x, int64_t first, float* sums) {
  constexpr int kRegisters = kHalves * kParts, kPart = std::min<int>(kGroup, kChunkCols);  // columns of one chunk
  const Source source(w.form);
  const int64_t groups = x.in / kGroup, chunk = w.form.chunk_bytes();
  const uint8_t* codes = w.bytes + w.form.heads_bytes(x.in) + half * kLineBytes;
  const float *scales = w.scales + half * groups * w.step, *minima = w.minima + half * groups * w.step;
  const float *xs = x.values + first * kChunkCols, *of_x = x.sums + first * groups;
  const __m256 offset = _mm256_set1_ps(wide_offset(w.form));
  __m256 total[kRows][kRegisters], sum[kRows][kRegisters];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kRegisters; ++i) total[r][i] = sum[r][i] = _mm256_setzero_ps();
  for (int64_t at = 0; at < x.in; at += kChunkCols, codes += chunk, xs += x.all * kChunkCols) {
    for (int64_t line = 0; line < chunk; line += kLineBytes)
      _mm_prefetch(reinterpret_cast<const char*>(codes) + kAheadBytes + line, _MM_HINT_T0);
#pragma GCC unroll 8
    for (int b = 0; b < kChunkCols; b += kColumns) {
      if (b % kPart == 0 && (at + b) % kGroup == 0)
        for (int r = 0; r < kRows; ++r)
          for (__m256& s : sum[r]) s = _mm256_mul_ps(offset, _mm256_set1_ps(of_x[r * groups + (at + b) / kGroup]));
      typename Source::Words words[kRegisters];
      for (int i = 0; i < kRegisters; ++i)
        words[i] = source.words(codes + i / kParts * kLineBytes + i % kParts * 32, b / kColumns);
#pragma GCC unroll 4
      for (int c = b; c < b + kColumns; ++c) {
        __m256 value[kRows];
        for (int r = 0; r < kRows; ++r) value[r] = _mm256_broadcast_ss(xs + r * kChunkCols + c);
        for (int i = 0; i < kRegisters; ++i) {
          const __m256 level = source.level(words[i], c);
          for (int r = 0; r < kRows; ++r) sum[r][i] = _mm256_fmadd_ps(level, value[r], sum[r][i]);
        }
      }
      const int64_t past = at + b + kColumns;
      if ((b + kColumns) % kPart != 0 || past % kGroup != 0) continue;
      const int64_t g = past / kGroup - 1;
      for (int i = 0; i < kRegisters; ++i) {
        const int64_t scale = (i / kParts * groups + g) * w.step + i % kParts * kEight;
        for (int r = 0; r < kRows; ++r)
          total[r][i] = with_group(total[r][i], sum[r][i], scales + scale, kMinima ? minima + scale : nullptr,
                                   kMinima ? of_x[r * groups + g] : 0);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kRegisters; ++i)
      _mm256_storeu_ps(sums + (first + r) * kStripOuts + half * kLanes + i * kEight, total[r][i]);
}

template <class Source>
FEWBIT_WIDE_TARGET void half_levels(const Source& source, const uint8_t* codes, float* levels) {
#pragma GCC unroll 8
  for (int b = 0; b < kChunkCols / kColumns; ++b) {
    typename Source::Words words[kParts];
    for (int i = 0; i < kParts; ++i) words[i] = source.words(codes + 32 * i, b);
    for (int c = kColumns * b; c < kColumns * (b + 1); ++c)
      for (int i = 0; i < kParts; ++i) _mm256_store_ps(levels + c * kLanes + kEight * i, source.level(words[i], c));
  }
}

// A group of columns of a half, whose levels lie in memory, with kRows rows; x [chunks][all][32], totals [rows][32].
template <int kGroup, int kRows>
FEWBIT_WIDE_TARGET void add_group(const float* levels, __m256 offset, const float* scale, const float* minimum,
                                  const float* x, const WideRows& rows, const float* sums, float* totals) {
  constexpr int kPart = std::min<int>(kGroup, kChunkCols);
  const int64_t groups = rows.in / kGroup;
  __m256 sum[kRows][kParts];
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_mul_ps(offset, _mm256_set1_ps(sums[r * groups]));
  for (int part = 0; part < kGroup; part += kPart, x += rows.all * kChunkCols)
    for (int c = 0; c < kPart; ++c, levels += kLanes) {
      const __m256 a = _mm256_load_ps(levels), b = _mm256_load_ps(levels + kEight);
      for (int r = 0; r < kRows; ++r) {
        const __m256 value = _mm256_broadcast_ss(x + r * kChunkCols + c);
        sum[r][0] = _mm256_fmadd_ps(a, value, sum[r][0]);
        sum[r][1] = _mm256_fmadd_ps(b, value, sum[r][1]);
      }
    }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kParts; ++i) {
      float* to = totals + r * kStripOuts + kEight * i;
      _mm256_storeu_ps(to, with_group(_mm256_loadu_ps(to), sum[r][i], scale + kEight * i,
                                      minimum ? minimum + kEight * i : nullptr, sums[r * groups]));
    }
}

// All rows, as many columns of a half at a time as share a scale, 32 at least.
template <class Source, int kGroup>
FEWBIT_WIDE_TARGET void from_levels(const StripRef& w, const WideRows& x, float* totals) {
  constexpr int kStep = std::max<int>(kGroup, kChunkCols);
  const Source source(w.form);
  const int64_t groups = x.in / kGroup, chunk = w.form.chunk_bytes();
  const __m256 offset = _mm256_set1_ps(wide_offset(w.form));
  alignas(32) float levels[kStep * kLanes];
  std::fill_n(totals, x.rows * kStripOuts, 0.f);
  const uint8_t* codes = w.bytes + w.form.heads_bytes(x.in);
  for (int64_t at = 0; at < x.in; at += kStep, codes += kStep / kChunkCols * chunk)
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < kStep / kChunkCols; ++i)
        half_levels(source, codes + i * chunk + half * kLineBytes, levels + i * kChunkCols * kLanes);
      for (int64_t c = 0; c < kStep; c += kGroup) {
        const int64_t g = (at + c) / kGroup, scale = (half * groups + g) * w.step;
        const auto add = [&]<int kRows>(int64_t r) {
          add_group<kGroup, kRows>(levels + c * kLanes, offset, w.scales + scale,
                                   w.form.minima ? w.minima + scale : nullptr,
                                   x.values + at * x.all + r * kChunkCols + c, x, x.sums + r * groups + g,
                                   totals + r * kStripOuts + half * kLanes);
        };
        int64_t r = 0;
        for (; r + 6 <= x.rows; r += 6) add.template operator()<6>(r);
        for (; r + 4 <= x.rows; r += 4) add.template operator()<4>(r);
        for (; r < x.rows; ++r) add.template operator()<1>(r);
      }
    }
}

template <class Source, int kGroup, bool kMinima>
void few_rows(const StripRef& w, const WideRows& x, float* sums) {
  if (x.rows == 1 && Source::kBothHalves) return from_codes<Source, kGroup, 1, 2, kMinima>(w, 0, x, 0, sums);
  for (int half = 0; half < 2; ++half) {
    int64_t r = 0;
    for (; r + 2 <= x.rows; r += 2) from_codes<Source, kGroup, 2, 1, kMinima>(w, half, x, r, sums);
    if (r < x.rows) from_codes<Source, kGroup, 1, 1, kMinima>(w, half, x, r, sums);
  }
}

template <class Source, int kGroup>
void all_rows(const StripRef& w, const WideRows& x, float* sums) {
  constexpr int64_t kFew = 2;  // three rows and more save the second making of levels
  if (x.rows > kFew) return from_levels<Source, kGroup>(w, x, sums);
  w.form.minima ? few_rows<Source, kGroup, true>(w, x, sums) : few_rows<Source, kGroup, false>(w, x, sums);
}

template <class Source>
void of_levels(const StripRef& w, const WideRows& x, float* sums) {
  const int64_t group = w.form.group;
  (group == 16 ? all_rows<Source, 16> : group == 32 ? all_rows<Source, 32> : all_rows<Source, 128>)(w, x, sums);
}

}  // namespace

bool has_wide_dots() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}

void wide_dots(const StripRef& w, const WideRows& x, float* sums) {
  FEWBIT_ASSERT(w.form.bits == 4 || w.form.bits == 8 || counts_up(w.form));
  switch (w.form.bits) {
    case 2:
      return of_levels<Planes<2, 0>>(w, x, sums);
    case 3:
      return of_levels<Planes<2, 1>>(w, x, sums);
    case 4:
      if (counts_up(w.form)) return of_levels<Planes<4, 0>>(w, x, sums);
      return (unit_of(w.form) > 0 ? of_levels<ByteTable> : of_levels<FloatTable>)(w, x, sums);
    case 5:
      return of_levels<Planes<4, 1>>(w, x, sums);
    case 6:
      return of_levels<Planes<4, 2>>(w, x, sums);
    default:
      return of_levels<Bytes>(w, x, sums);
  }
}

#else

bool has_wide_dots() { return false; }
void wide_dots(const StripRef&, const WideRows&, float*) { bug("no vector loops on this machine"); }

#endif

}  // namespace fewbit::cpu

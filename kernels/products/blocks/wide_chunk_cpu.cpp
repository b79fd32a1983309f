// add_wide_chunk() of block_dot.h in AVX2: levels of 32 columns in f32, in the first cache, then rows of x.
#include <algorithm>

#include "kernels/cpu/x86_loops.h"
#include "kernels/products/blocks/block_dot.h"

namespace fewbit::cpu {

#ifdef FEWBIT_X86
namespace {

#define FEWBIT_WIDE_TARGET __attribute__((target("avx2,fma")))
#define FEWBIT_WIDE_INLINE FEWBIT_WIDE_TARGET __attribute__((always_inline)) inline

constexpr int kEight = 8;  // values of a register; a half has two

FEWBIT_WIDE_INLINE __m256i eight_at(const uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// Where column c of a plane of `bits` bits lies: its word (block_layout.h), and the shift there.
constexpr int word_of(int c, int bits) { return c * bits / 32; }
constexpr int shift_of(int c, int bits) { return 16 * (c % 2) + bits * (c % (32 / bits) / 2); }

// Levels by code: those of a table of at most 16, or consecutive ones.
struct WideTable {
  __m256 lower, upper;
  bool even = true;
  FEWBIT_WIDE_TARGET explicit WideTable(const BlockForm& f)
      : lower(_mm256_loadu_ps(f.levels.data())), upper(_mm256_loadu_ps(f.levels.data() + kEight)) {
    for (size_t i = 1; f.bits < 8 && i < size_t{1} << f.bits; ++i) even &= f.levels[i] == f.levels[i - 1] + 1;
    FEWBIT_ASSERT(even || f.bits <= 4);
    if (even) lower = _mm256_set1_ps(f.levels[0]);
  }
  template <bool kEven>
  FEWBIT_WIDE_INLINE __m256 of(__m256i code) const {
    if constexpr (kEven) return _mm256_add_ps(_mm256_cvtepi32_ps(code), lower);
    const __m256 high = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));  // the sign bit chooses the half
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, code), _mm256_permutevar8x32_ps(upper, code), high);
  }
};

template <int kLow, int kHigh, bool kEven>
FEWBIT_WIDE_TARGET void plane_levels(const uint8_t* codes, const WideTable& table, float* levels) {
  const __m256i low_mask = _mm256_set1_epi32((1 << kLow) - 1), high_mask = _mm256_set1_epi32((1 << kHigh) - 1);
#pragma GCC unroll 32
  for (int c = 0; c < kChunkCols; ++c)
    for (int i = 0; i < 2; ++i) {
      const __m256i low = eight_at(codes + kNextLine * word_of(c, kLow) + 32 * i);
      __m256i code = _mm256_and_si256(_mm256_srli_epi32(low, shift_of(c, kLow)), low_mask);
      if constexpr (kHigh > 0) {
        const __m256i high = eight_at(codes + kNextLine * (kLow + word_of(c, kHigh)) + 32 * i);
        const __m256i bits = _mm256_and_si256(_mm256_srli_epi32(high, shift_of(c, kHigh)), high_mask);
        code = _mm256_or_si256(code, _mm256_slli_epi32(bits, kLow));
      }
      _mm256_storeu_ps(levels + c * kLanes + kEight * i, table.of<kEven>(code));
    }
}

// Bytes of sign and magnitude: four columns of eight outputs in a register.
FEWBIT_WIDE_TARGET void byte_levels(const uint8_t* codes, float* levels) {
  const __m256i magnitude = _mm256_set1_epi8(0x7f), least = _mm256_set1_epi8(-128);
  const __m256i by_column =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  for (int j = 0; j < kChunkCols / 4; ++j)
    for (int i = 0; i < 2; ++i) {
      const __m256i code = eight_at(codes + kNextLine * j + 32 * i);
      const __m256i size =
          _mm256_or_si256(_mm256_and_si256(code, magnitude), _mm256_and_si256(_mm256_cmpeq_epi8(code, least), least));
      const __m256i level = _mm256_shuffle_epi8(_mm256_sign_epi8(size, code), by_column);
      const __m128i first = _mm256_castsi256_si128(level), second = _mm256_extracti128_si256(level, 1);
      const __m128i columns[2] = {_mm_unpacklo_epi32(first, second), _mm_unpackhi_epi32(first, second)};
      for (int c = 0; c < 4; ++c) {
        const __m128i eight = c % 2 ? _mm_srli_si128(columns[c / 2], 8) : columns[c / 2];
        _mm256_storeu_ps(levels + (4 * j + c) * kLanes + kEight * i, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)));
      }
    }
}

template <int kLow, int kHigh>
FEWBIT_WIDE_TARGET void any_levels(const uint8_t* codes, const WideTable& table, float* levels) {
  table.even ? plane_levels<kLow, kHigh, true>(codes, table, levels)
             : plane_levels<kLow, kHigh, false>(codes, table, levels);
}

FEWBIT_WIDE_TARGET void wide_levels(const BlockForm& f, const uint8_t* codes, float* levels) {
  const WideTable table(f);
  switch (f.bits) {
    case 2:
      return any_levels<2, 0>(codes, table, levels);
    case 3:
      return any_levels<2, 1>(codes, table, levels);
    case 4:
      return any_levels<4, 0>(codes, table, levels);
    case 5:
      return any_levels<4, 1>(codes, table, levels);
    case 6:
      return any_levels<4, 2>(codes, table, levels);
    default:
      return byte_levels(codes, levels);
  }
}

// A group of columns with kRows rows.
template <int kRows>
FEWBIT_WIDE_TARGET void add_group(const float* levels, int64_t group, const float* scale, const float* minimum,
                                  const float* x, int64_t in, const float* sums, int64_t groups, float* totals) {
  __m256 sum[kRows][2];
  for (auto& of_row : sum) of_row[0] = of_row[1] = _mm256_setzero_ps();
  for (int64_t c = 0; c < group; ++c) {
    const __m256 a = _mm256_loadu_ps(levels + c * kLanes), b = _mm256_loadu_ps(levels + c * kLanes + kEight);
    for (int r = 0; r < kRows; ++r) {
      const __m256 value = _mm256_broadcast_ss(x + r * in + c);
      sum[r][0] = _mm256_fmadd_ps(a, value, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(b, value, sum[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < 2; ++i) {
      float* to = totals + r * kStripOuts + kEight * i;
      __m256 total = _mm256_fmadd_ps(sum[r][i], _mm256_loadu_ps(scale + kEight * i), _mm256_loadu_ps(to));
      if (sums)
        total = _mm256_fmadd_ps(_mm256_loadu_ps(minimum + kEight * i), _mm256_broadcast_ss(sums + r * groups), total);
      _mm256_storeu_ps(to, total);
    }
}

}  // namespace

bool has_wide_chunks() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}

void add_wide_chunk(const BlockForm& f, const uint8_t* codes, const float* scales, const float* minima, const float* x,
                    int64_t in, int64_t rows, const float* sums, float* totals) {
  alignas(32) float levels[kChunkCols * kLanes];
  wide_levels(f, codes, levels);
  const int64_t groups = in / f.group;
  for (int64_t c = 0; c < kChunkCols; c += f.group) {
    const auto add = [&]<int kRows>(int64_t r) {
      add_group<kRows>(levels + c * kLanes, f.group, scales + c / f.group * kLanes, minima + c / f.group * kLanes,
                       x + r * in + c, in, sums ? sums + r * groups + c / f.group : nullptr, groups,
                       totals + r * kStripOuts);
    };
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) add.template operator()<4>(r);
    for (; r < rows; ++r) add.template operator()<1>(r);
  }
}

#else

bool has_wide_chunks() { return false; }
void add_wide_chunk(const BlockForm&, const uint8_t*, const float*, const float*, const float*, int64_t, int64_t,
                    const float*, float*) {
  bug("no vector loops on this machine");
}

#endif

}  // namespace fewbit::cpu

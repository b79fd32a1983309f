// The dot products of byte_dot.h in AVX2 and AVX-512.
#include "kernels/products/bytes/byte_dot.h"

#include <algorithm>

#include "kernels/cpu/x86_loops.h"
#include "src/core/error.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kLanes = 64;       // partial sums of dot() (kernels/cpu/cpu_rows.h); codes in a cache line
constexpr int64_t kLeastGroup = 16;  // codes that share a scale

#ifdef FEWBIT_X86

#define FEWBIT_AVX512_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define FEWBIT_AVX2_TARGET __attribute__((target("avx2,fma,f16c")))

// The bits of an E4M3 code in the place of an f16's (the sign at bit 15, the others at bits 13 to 7) are the f16 of
// 2^-8 times its value, subnormal ones included.
constexpr float kOfF16 = 256.f;
constexpr int16_t kF16Bits = static_cast<int16_t>(0xbfff);  // clears bit 14, where sign extension puts the sign too
constexpr int8_t kNan = 0x7f;                               // without its sign

// The sum of the lanes in the order of dot(): lanes 32 apart are added first, then 16, 8, 4, 2, 1.
FEWBIT_AVX2_TARGET inline float tree_sum(__m256 lanes) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
FEWBIT_AVX512_TARGET inline float tree_sum(__m512 lanes) {
  return tree_sum(_mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1)));
}

template <int kRows>
FEWBIT_AVX512_TARGET bool f8_avx512(const uint8_t* codes, float scale, const float* x, int64_t in, float* sums) {
  const __m512 factor = _mm512_set1_ps(scale * kOfF16);
  const __m512i bits = _mm512_set1_epi16(kF16Bits), nan = _mm512_set1_epi8(kNan);
  __mmask64 nans = 0;
  __m512 sum[kRows][4];
  for (auto& of_row : sum)
    for (__m512& s : of_row) s = _mm512_setzero_ps();
  for (int64_t i = 0; i < in; i += kLanes) {
    _mm_prefetch(reinterpret_cast<const char*>(codes) + i + kPrefetchBytes, _MM_HINT_T0);
    const __m512i line = _mm512_loadu_si512(codes + i);
    nans |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(line, nan), nan);
    for (int half = 0; half < 2; ++half) {
      const __m512i wide =
          _mm512_cvtepi8_epi16(half == 0 ? _mm512_castsi512_si256(line) : _mm512_extracti64x4_epi64(line, 1));
      const __m512i f16 = _mm512_and_si512(_mm512_slli_epi16(wide, 7), bits);
      for (int q = 0; q < 2; ++q) {
        const int at = 2 * half + q;
        const __m256i part = q == 0 ? _mm512_castsi512_si256(f16) : _mm512_extracti64x4_epi64(f16, 1);
        const __m512 value = _mm512_mul_ps(_mm512_cvtph_ps(part), factor);
        for (int r = 0; r < kRows; ++r)
          sum[r][at] = _mm512_fmadd_ps(_mm512_loadu_ps(x + r * in + i + 16 * at), value, sum[r][at]);
      }
    }
  }
  if (nans) return false;
  for (int r = 0; r < kRows; ++r)
    sums[r] = tree_sum(_mm512_add_ps(_mm512_add_ps(sum[r][0], sum[r][2]), _mm512_add_ps(sum[r][1], sum[r][3])));
  return true;
}

FEWBIT_AVX2_TARGET bool f8_avx2(const uint8_t* codes, float scale, const float* x, int64_t in, float* sum_of) {
  const __m256 factor = _mm256_set1_ps(scale * kOfF16);
  const __m256i bits = _mm256_set1_epi16(kF16Bits);
  const __m128i nan = _mm_set1_epi8(kNan);
  __m128i nans = _mm_setzero_si128();
  __m256 sum[8];
  for (__m256& s : sum) s = _mm256_setzero_ps();
  for (int64_t i = 0; i < in; i += kLanes) {
    _mm_prefetch(reinterpret_cast<const char*>(codes) + i + kPrefetchBytes, _MM_HINT_T0);
    for (int q = 0; q < 4; ++q) {
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i + 16 * q));
      nans = _mm_or_si128(nans, _mm_cmpeq_epi8(_mm_and_si128(some, nan), nan));
      const __m256i f16 = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(some), 7), bits);
      const __m256 lower = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(f16)), factor);
      const __m256 upper = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(f16, 1)), factor);
      sum[2 * q] = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 16 * q), lower, sum[2 * q]);
      sum[2 * q + 1] = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 16 * q + 8), upper, sum[2 * q + 1]);
    }
  }
  if (_mm_movemask_epi8(nans) != 0) return false;
  for (int width = 4; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) sum[l] = _mm256_add_ps(sum[l], sum[l + width]);
  *sum_of = tree_sum(sum[0]);
  return true;
}

template <int kRows>
FEWBIT_AVX512_TARGET void levels_avx512(const LevelRow& w, const float* x, float* sums) {
  __m512 total[kRows];
  for (__m512& t : total) t = _mm512_setzero_ps();
  for (int64_t begin = 0, g = 0; begin < w.in; begin += w.group, ++g) {
    const __m512 zero = _mm512_set1_ps(w.zero_of(g)), scale = _mm512_set1_ps(w.scales[g]);
    __m512 sum[kRows][2];
    for (auto& of_row : sum) of_row[0] = of_row[1] = _mm512_setzero_ps();
    const int64_t end = std::min(w.in, begin + w.group);
    for (int64_t i = begin; i < end; i += 16) {
      if (i % kLanes == 0) _mm_prefetch(reinterpret_cast<const char*>(w.codes) + i + kPrefetchBytes, _MM_HINT_T0);
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.codes + i));
      const __m512 level = _mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(some)), zero);
      for (int r = 0; r < kRows; ++r) {
        __m512& s = sum[r][i / 16 % 2];
        s = _mm512_fmadd_ps(_mm512_loadu_ps(x + r * w.in + i), level, s);
      }
    }
    for (int r = 0; r < kRows; ++r) total[r] = _mm512_fmadd_ps(_mm512_add_ps(sum[r][0], sum[r][1]), scale, total[r]);
  }
  for (int r = 0; r < kRows; ++r) sums[r] = tree_sum(total[r]);
}

FEWBIT_AVX2_TARGET void levels_avx2(const LevelRow& w, const float* x, float* sum_of) {
  __m256 total = _mm256_setzero_ps();
  for (int64_t begin = 0, g = 0; begin < w.in; begin += w.group, ++g) {
    const __m256 zero = _mm256_set1_ps(w.zero_of(g)), scale = _mm256_set1_ps(w.scales[g]);
    __m256 a = _mm256_setzero_ps(), b = _mm256_setzero_ps();
    const int64_t end = std::min(w.in, begin + w.group);
    for (int64_t i = begin; i < end; i += 16) {
      if (i % kLanes == 0) _mm_prefetch(reinterpret_cast<const char*>(w.codes) + i + kPrefetchBytes, _MM_HINT_T0);
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.codes + i));
      const __m256 lower = _mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(some)), zero);
      const __m256 upper = _mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(some, 8))), zero);
      a = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), lower, a);
      b = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 8), upper, b);
    }
    total = _mm256_fmadd_ps(_mm256_add_ps(a, b), scale, total);
  }
  *sum_of = tree_sum(total);
}

#endif

}  // namespace

VectorSet vector_set() {
#ifdef FEWBIT_X86
  static const VectorSet found = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
      return VectorSet::none;
    const bool wide =
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return wide ? VectorSet::avx512 : VectorSet::avx2;
  }();
  return found;
#else
  return VectorSet::none;
#endif
}

bool f8_dots_fit(int64_t in) { return vector_set() != VectorSet::none && in % kLanes == 0; }
bool level_dots_fit(int64_t in, int64_t group) {
  return vector_set() != VectorSet::none && in % kLeastGroup == 0 && (group >= in || group % kLeastGroup == 0);
}

#ifdef FEWBIT_X86

bool f8_dots(VectorSet set, const uint8_t* codes, float scale, const float* x, int64_t rows, int64_t in, float* sums) {
  int64_t r = 0;
  if (set == VectorSet::avx512)
    for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce)
      if (!f8_avx512<kRowsAtOnce>(codes, scale, x + r * in, in, sums + r)) return false;
  for (; r < rows; ++r)
    if (!(set == VectorSet::avx512 ? f8_avx512<1> : f8_avx2)(codes, scale, x + r * in, in, sums + r)) return false;
  return true;
}

void level_dots(VectorSet set, const LevelRow& w, const float* x, int64_t rows, float* sums) {
  int64_t r = 0;
  if (set == VectorSet::avx512)
    for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) levels_avx512<kRowsAtOnce>(w, x + r * w.in, sums + r);
  for (; r < rows; ++r) (set == VectorSet::avx512 ? levels_avx512<1> : levels_avx2)(w, x + r * w.in, sums + r);
}

#else

bool f8_dots(VectorSet, const uint8_t*, float, const float*, int64_t, int64_t, float*) {
  bug("no vector loops on this machine");
}
void level_dots(VectorSet, const LevelRow&, const float*, int64_t, float*) { bug("no vector loops on this machine"); }

#endif

}  // namespace fewbit::cpu

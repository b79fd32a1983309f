#pragma once
// What four_bit_lanes.cpp and four_bit_search.cpp share: sixteen blocks of q4_0 in lanes, and how their vectors are
// taken apart. For these two alone, where the compiler is asked for the instructions by FOUR_BIT_TARGET.
#if defined(__x86_64__)
#include <immintrin.h>

#include "formats/gguf/lanes.h"

namespace fewbit::gguf::four_bit {

#define FOUR_BIT_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512cd,avx512vnni,avx2,fma")))
#define FOUR_BIT_INLINE FOUR_BIT_TARGET __attribute__((always_inline)) inline

inline constexpr int kValues = 32, kWords = kValues / 4;
inline constexpr float kLow = -8, kHigh = 7, kOffset = 8;
struct Blocks {
  alignas(64) float x[kValues][kLanes], size[kValues][kLanes], weight[kValues][kLanes];  // size: |x|
  __mmask16 positive[kValues];
  __m512 largest, extreme, least_weight, most_weight;  // extreme: the first x of the largest magnitude
  __mmask16 regular;
};

// The scale of every lane; false, and none, where the search cannot tell its candidates from each other.
bool search(const Blocks&, __m512& scale);

// 1.5 * 2^23: added to v it leaves v, rounded to even, in the low bits.
FOUR_BIT_INLINE __m512 rounder() { return _mm512_set1_ps(12582912.f); }

// Byte 0 of the lanes of q becomes byte k of those of `word`.
template <int k>
FOUR_BIT_INLINE __m512i with_byte(__m512i word, __m512i q) {
  constexpr int kTo = 8 * k;
  const __m512i moved = _mm512_broadcast_i32x4(_mm_setr_epi32(0 << kTo, 4 << kTo, 8 << kTo, 12 << kTo));
  return _mm512_mask_shuffle_epi8(word, 0x1111111111111111u << k, q, moved);
}

FOUR_BIT_INLINE __m512i word_of(const __m512i* q) {
  return with_byte<3>(with_byte<2>(with_byte<1>(_mm512_and_si512(q[0], _mm512_set1_epi32(255)), q[1]), q[2]), q[3]);
}

struct Wide {  // a double a lane
  __m512d low = {}, high = {};
};

FOUR_BIT_INLINE Wide wide(__m512 v) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1))};
}
FOUR_BIT_INLINE Wide wide(const float* v) {
  return {_mm512_cvtps_pd(_mm256_load_ps(v)), _mm512_cvtps_pd(_mm256_load_ps(v + 8))};
}
FOUR_BIT_INLINE __m512 narrow(const Wide& v) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(v.low)), _mm512_cvtpd_ps(v.high), 1);
}

}  // namespace fewbit::gguf::four_bit
#endif

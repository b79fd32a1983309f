// wide_scales() of block_dot.h: strip_scales() in AVX2 and F16C, eight outputs a register.
#include "kernels/cpu/x86_loops.h"
#include "kernels/products/blocks/block_dot.h"

namespace fewbit::cpu {

#ifdef FEWBIT_X86
namespace {

#define FEWBIT_SCALES_TARGET __attribute__((target("avx2,fma,f16c")))
#define FEWBIT_SCALES_INLINE FEWBIT_SCALES_TARGET __attribute__((always_inline)) inline

constexpr int kEight = 8;

FEWBIT_SCALES_INLINE __m256 halves_at(const uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
FEWBIT_SCALES_INLINE __m128i bytes_at(const uint8_t* at) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
}
FEWBIT_SCALES_INLINE void store_times(__m256i scale, __m256 d, float* to) {
  _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(scale), d));
}

// Groups of a block whose scales are bytes, of eight outputs from `lane` on; `at` is the first group's.
FEWBIT_SCALES_INLINE void group_scales(const BlockForm& f, const uint8_t* at, int lane, __m256 d, __m256 m,
                                       float* scales, float* minima) {
  const int64_t step = f.scale == BlockScale::bytes && f.minima ? 2 * kLanes : kLanes;
  for (int g = 0; g < f.groups(); ++g, at += step, scales += kLanes, minima += kLanes) {
    const __m128i first = bytes_at(at + lane);
    if (f.scale == BlockScale::nibbles) {
      const __m256i both = _mm256_cvtepu8_epi32(first);
      store_times(_mm256_and_si256(both, _mm256_set1_epi32(15)), d, scales + lane);
      store_times(_mm256_srli_epi32(both, 4), m, minima + lane);
      continue;
    }
    store_times(_mm256_cvtepi8_epi32(first), d, scales + lane);
    if (f.minima) store_times(_mm256_cvtepu8_epi32(bytes_at(at + kLanes + lane)), m, minima + lane);
  }
}

FEWBIT_SCALES_TARGET void scales_of(const BlockForm& f, int64_t blocks, const uint8_t* strip, float* scales,
                                    float* minima) {
  const int64_t head = f.head_bytes(), heads = (f.minima ? 4 : 2) * kLanes, each = f.groups() * kLanes;
  for (int64_t t = 0; t < blocks; ++t, strip += head, scales += each, minima += each)
    for (int lane = 0; lane < kLanes; lane += kEight) {
      const __m256 d = halves_at(strip + 2 * lane), m = f.minima ? halves_at(strip + 2 * (kLanes + lane)) : d;
      if (f.scale != BlockScale::alone) {
        group_scales(f, strip + heads, lane, d, m, scales, minima);
        continue;
      }
      _mm256_storeu_ps(scales + lane, d);
      if (f.minima) _mm256_storeu_ps(minima + lane, m);
    }
}

}  // namespace

bool has_wide_scales() { return has_wide_dots(); }  // every processor with AVX2 and FMA has F16C

void wide_scales(const BlockForm& f, int64_t in, const uint8_t* strip, float* scales, float* minima) {
  if (f.scale == BlockScale::power || f.scale == BlockScale::wide) return strip_scales(f, in, strip, scales, minima);
  scales_of(f, 2 * (in / f.columns), strip, scales, minima);
}

#else

bool has_wide_scales() { return false; }
void wide_scales(const BlockForm&, int64_t, const uint8_t*, float*, float*) { bug("no vector loops on this machine"); }

#endif

}  // namespace fewbit::cpu

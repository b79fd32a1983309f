// The loop of int8_dot.h. A register holds four columns of sixteen outputs, a byte each; an instruction multiplies them
// with four codes of x, which stand in all of its lanes, and adds to sixteen sums.
#include "kernels/products/blocks/int8_dot.h"

#include <algorithm>

#include "kernels/cpu/x86_loops.h"
#include "src/core/error.h"

namespace fewbit::cpu {

int plane_order(int bits, int at) {
  const int word = at / 4, byte = at % 4, in_byte = 8 / bits;
  // As column_shift() of block_layout.cpp has it: even columns in the low half of a word, odd ones in the high half.
  return word / in_byte * (32 / bits) + 2 * (in_byte * (byte % 2) + word % in_byte) + byte / 2;
}

#ifdef FEWBIT_X86
namespace {

#define FEWBIT_INT8_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")))
#define FEWBIT_INT8_INLINE FEWBIT_INT8_TARGET __attribute__((always_inline)) inline

// How far ahead codes are asked for, into the second cache: the processor's own reading ahead ends with a page, and a
// strip's scales lie behind the codes of the strip before it.
constexpr int64_t kAheadBytes = 8192;
constexpr int kWords = 8;  // of four codes of x, in 32 columns

// Codes of a plane of kBits bits, less what stands above them: word k of 32 columns.
template <int kBits>
FEWBIT_INT8_INLINE __m512i plane_word(const uint8_t* plane, int k) {
  constexpr int kInByte = 8 / kBits;
  const __m512i words = _mm512_loadu_si512(plane + kNextLine * (k / kInByte));
  const int shift = kBits * (k % kInByte);
  return _mm512_and_si512(shift == 0 ? words : _mm512_srli_epi16(words, shift), _mm512_set1_epi8((1 << kBits) - 1));
}

// Bytes of sign and magnitude as levels + 128, of every output its four columns side by side.
FEWBIT_INT8_INLINE __m512i byte_word(const uint8_t* codes, int k) {
  const __m512i by_output = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  const __m512i code = _mm512_loadu_si512(codes + kNextLine * k), sign = _mm512_set1_epi8(-128);
  // Below zero 128 - m is -code in seven bits, of -128 (0x80) too.
  const __m512i below = _mm512_andnot_si512(sign, _mm512_sub_epi8(_mm512_setzero_si512(), code));
  const __m512i level = _mm512_mask_mov_epi8(_mm512_or_si512(code, sign), _mm512_movepi8_mask(code), below);
  return _mm512_shuffle_epi8(level, by_output);
}

template <int kBits>
constexpr int kLowBits = kBits == 8   ? 8
                         : kBits >= 4 ? 4
                                      : 2;

template <int kBits>
FEWBIT_INT8_INLINE __m512i low_word(const uint8_t* codes, int k) {
  if constexpr (kBits == 8)
    return byte_word(codes, k);
  else
    return plane_word<kLowBits<kBits>>(codes, k);
}

FEWBIT_INT8_INLINE __m512i four_of(const int8_t* x, int word) {
  int four = 0;
  __builtin_memcpy(&four, x + 4 * word, sizeof four);
  return _mm512_set1_epi32(four);
}

// kRows rows of x from `first` on with both halves of a strip.
template <int kBits, int kGroup, int kRows, bool kMinima>
FEWBIT_INT8_TARGET void dots_of(const Int8Strip& w, const CodedRows& x, int64_t first, float* sums) {
  constexpr int kLow = kLowBits<kBits>, kHigh = kBits - kLow, kParts = kChunkCols / kGroup, kOfPart = kWords / kParts;
  constexpr int64_t kChunk = kNextLine * kBits;
  const int64_t groups = x.in / kGroup, of_half = groups * kLanes;
  const int offset = kBits == 8 ? -128 : static_cast<int>(w.form.levels[0]);  // of a level to its code
  const uint8_t* codes = w.bytes + w.form.heads_bytes(x.in);
  const float *scales = w.scales, *minima = w.minima;
  __m512 total[kRows][2];
  for (auto& of_row : total) of_row[0] = of_row[1] = _mm512_setzero_ps();
  for (int64_t c = 0; c < x.in / kChunkCols; ++c, codes += kChunk) {
    for (int line = 0; line < 2 * kBits; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(codes) + kAheadBytes + kLineBytes * line, _MM_HINT_T1);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part, scales += kLanes, minima += kMinima ? kLanes : 0) {
      const int64_t g = c * kParts + part;
      __m512i sum[kRows][2], high[kRows][2];
      for (int r = 0; r < kRows; ++r) {
        sum[r][0] = sum[r][1] = _mm512_set1_epi32(offset * x.sums[(first + r) * groups + g]);
        high[r][0] = high[r][1] = _mm512_setzero_si512();
      }
#pragma GCC unroll 8
      for (int k = part * kOfPart; k < (part + 1) * kOfPart; ++k) {
        const __m512i a = low_word<kBits>(codes, k), b = low_word<kBits>(codes + kLineBytes, k);
        for (int r = 0; r < kRows; ++r) {
          const __m512i four = four_of(x.low + (first + r) * x.in + c * kChunkCols, k);
          sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], a, four);
          sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], b, four);
        }
      }
      if constexpr (kHigh > 0) {
#pragma GCC unroll 8
        for (int k = part * kOfPart; k < (part + 1) * kOfPart; ++k) {
          const __m512i a = plane_word<kHigh>(codes + kNextLine * kLow, k);
          const __m512i b = plane_word<kHigh>(codes + kNextLine * kLow + kLineBytes, k);
          for (int r = 0; r < kRows; ++r) {
            const __m512i four = four_of(x.high + (first + r) * x.in + c * kChunkCols, k);
            high[r][0] = _mm512_dpbusd_epi32(high[r][0], a, four);
            high[r][1] = _mm512_dpbusd_epi32(high[r][1], b, four);
          }
        }
        for (int r = 0; r < kRows; ++r)
          for (int i = 0; i < 2; ++i) sum[r][i] = _mm512_add_epi32(sum[r][i], _mm512_slli_epi32(high[r][i], kLow));
      }
      for (int r = 0; r < kRows; ++r) {
        const __m512 of_x = _mm512_set1_ps(x.scales[(first + r) * (x.in / kChunkCols) + c]);
        for (int i = 0; i < 2; ++i) {
          const __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(scales + i * of_half), of_x);
          total[r][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][i]), scale, total[r][i]);
          if constexpr (kMinima)
            total[r][i] = _mm512_fmadd_ps(_mm512_loadu_ps(minima + i * of_half),
                                          _mm512_set1_ps(x.scaled[(first + r) * groups + g]), total[r][i]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < 2; ++i) _mm512_storeu_ps(sums + ((first + r) * 2 + i) * kLanes, total[r][i]);
}

template <int kBits, int kGroup, bool kMinima>
void all_dots(const Int8Strip& w, const CodedRows& x, float* sums) {
  int64_t r = 0;
  for (; r + 4 <= x.rows; r += 4) dots_of<kBits, kGroup, 4, kMinima>(w, x, r, sums);
  for (; r + 2 <= x.rows; r += 2) dots_of<kBits, kGroup, 2, kMinima>(w, x, r, sums);
  for (; r < x.rows; ++r) dots_of<kBits, kGroup, 1, kMinima>(w, x, r, sums);
}

template <int kBits, int kGroup>
void all_dots(const Int8Strip& w, const CodedRows& x, float* sums) {
  (w.form.minima ? all_dots<kBits, kGroup, true> : all_dots<kBits, kGroup, false>)(w, x, sums);
}

}  // namespace

bool has_int8_dots() {
  static const bool has = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has;
}

void int8_dots(const Int8Strip& w, const CodedRows& x, float* sums) {
  const bool half_groups = w.form.group == 16;
  switch (w.form.bits) {
    case 2:
      return (half_groups ? all_dots<2, 16> : all_dots<2, 32>)(w, x, sums);
    case 4:
      return (half_groups ? all_dots<4, 16> : all_dots<4, 32>)(w, x, sums);
    case 5:
      FEWBIT_ASSERT(!half_groups);  // a word of the one-bit plane has columns of two groups
      return all_dots<5, 32>(w, x, sums);
    case 6:
      return (half_groups ? all_dots<6, 16> : all_dots<6, 32>)(w, x, sums);
    default:
      return (half_groups ? all_dots<8, 16> : all_dots<8, 32>)(w, x, sums);
  }
}

#else

bool has_int8_dots() { return false; }
void int8_dots(const Int8Strip&, const CodedRows&, float*) { bug("no vector loops on this machine"); }

#endif

}  // namespace fewbit::cpu

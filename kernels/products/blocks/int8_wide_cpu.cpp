// wide_int8_dots() of int8_dot.h in AVX2. A register holds four columns of eight outputs, a byte each. Products of
// neighbours are added in 16 bits, of codes of up to 4 bits over a whole group: 8 words x 2 products x 15 x 127 fit.
#include <algorithm>

#include "kernels/cpu/x86_loops.h"
#include "kernels/products/blocks/int8_dot.h"
#include "src/core/error.h"

namespace fewbit::cpu {

#ifdef FEWBIT_X86
namespace {

#define FEWBIT_WIDE_TARGET __attribute__((target("avx2,fma")))
#define FEWBIT_WIDE_INLINE FEWBIT_WIDE_TARGET __attribute__((always_inline)) inline

constexpr int kEight = 8, kParts = kLanes / kEight;  // outputs of a register, registers of a half
constexpr int64_t kAheadBytes = 4096;                // as wide_dot_cpu.cpp has it

FEWBIT_WIDE_INLINE __m256i eight_at(const uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// Codes of a plane of kBits bits, less what stands above them: word k of those in a line.
template <int kBits>
FEWBIT_WIDE_INLINE __m256i plane_word(const uint8_t* line, int k) {
  const __m256i words = eight_at(line);
  const int shift = kBits * k;
  return _mm256_and_si256(shift == 0 ? words : _mm256_srli_epi16(words, shift), _mm256_set1_epi8((1 << kBits) - 1));
}

// Bytes of sign and magnitude, of every output its four columns side by side.
FEWBIT_WIDE_INLINE __m256i byte_word(const uint8_t* codes, int k) {
  const __m256i by_output =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  return _mm256_shuffle_epi8(eight_at(codes + kNextLine * k), by_output);
}

FEWBIT_WIDE_INLINE __m256i four_of(const int8_t* x, int word) {
  int four = 0;
  __builtin_memcpy(&four, x + 4 * word, sizeof four);
  return _mm256_set1_epi32(four);
}

FEWBIT_WIDE_INLINE __m256i in_pairs(__m256i words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

// A register's magnitudes (0x80 is 128 of them) times x, whose signs turn where the code has one.
FEWBIT_WIDE_INLINE __m256i signed_products(__m256i code, __m256i magnitude, __m256i four) {
  return in_pairs(_mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four, code)));
}
FEWBIT_WIDE_INLINE __m256i magnitude_of(__m256i code) {
  const __m256i least = _mm256_set1_epi8(-128);
  return _mm256_or_si256(_mm256_andnot_si256(least, code), _mm256_and_si256(_mm256_cmpeq_epi8(code, least), least));
}

// The sums of a group of kGroup columns from word `begin` on: kRows rows with kRegisters registers of outputs.
template <int kBits, int kGroup, int kRows, int kRegisters>
struct GroupSums {
  static constexpr int kLow = kBits == 8 ? 8 : kBits >= 4 ? 4 : 2, kHigh = kBits - kLow, kCount = kGroup / 4;
  __m256i sum[kRows][kRegisters];

  FEWBIT_WIDE_INLINE static const uint8_t* lane(const uint8_t* codes, int i) {
    return codes + i / kParts * kLineBytes + i % kParts * 32;
  }
  // Of one plane; x [rows] at `x`, `in` bytes apart.
  template <int kPlane>
  FEWBIT_WIDE_INLINE static void plane(const uint8_t* codes, const int8_t* x, int64_t in, int begin,
                                       __m256i (&to)[kRows][kRegisters]) {
    for (auto& of_row : to)
      for (__m256i& s : of_row) s = _mm256_setzero_si256();
    // Line by line of codes: with all of them unrolled the compiler holds more words than there are registers.
    constexpr int kOfLine = std::min(8 / kPlane, kCount);
#pragma GCC unroll 1
    for (int line = begin; line < begin + kCount; line += kOfLine)
#pragma GCC unroll 8
      for (int k = 0; k < kOfLine; ++k) {
        __m256i four[kRows];
        for (int r = 0; r < kRows; ++r) four[r] = four_of(x + r * in, line + k);
        for (int i = 0; i < kRegisters; ++i) {
          const __m256i word = plane_word<kPlane>(lane(codes, i) + kNextLine * (line / kOfLine), k);
          for (int r = 0; r < kRows; ++r) to[r][i] = _mm256_add_epi16(to[r][i], _mm256_maddubs_epi16(word, four[r]));
        }
      }
    for (auto& of_row : to)
      for (__m256i& s : of_row) s = in_pairs(s);
  }
  FEWBIT_WIDE_INLINE void bytes(const uint8_t* codes, const int8_t* x, int64_t in, int begin) {
    for (auto& of_row : sum)
      for (__m256i& s : of_row) s = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int k = begin; k < begin + kCount; ++k)
      for (int i = 0; i < kRegisters; ++i) {
        const __m256i code = byte_word(lane(codes, i), k), magnitude = magnitude_of(code);
        for (int r = 0; r < kRows; ++r)
          sum[r][i] = _mm256_add_epi32(sum[r][i], signed_products(code, magnitude, four_of(x + r * in, k)));
      }
  }
  FEWBIT_WIDE_INLINE void make(const uint8_t* codes, const int8_t* low, const int8_t* high, int64_t in, int begin) {
    if constexpr (kBits == 8) {
      bytes(codes, low, in, begin);
    } else {
      plane<kLow>(codes, low, in, begin, sum);
      if constexpr (kHigh > 0) {
        __m256i upper[kRows][kRegisters];
        plane<kHigh>(codes + kNextLine * kLow, high, in, begin, upper);
        for (int r = 0; r < kRows; ++r)
          for (int i = 0; i < kRegisters; ++i)
            sum[r][i] = _mm256_add_epi32(sum[r][i], _mm256_slli_epi32(upper[r][i], kLow));
      }
    }
  }
};

// Rows `first` to first + kRows with kHalves halves from `half` on.
template <int kBits, int kGroup, int kRows, int kHalves, bool kMinima, bool kWide>
FEWBIT_WIDE_TARGET void dots_of(const Int8Strip& w, int half, const CodedRows& x, int64_t first, float* sums) {
  constexpr int kRegisters = kHalves * kParts;
  const int64_t groups = x.in / kGroup, spans = x.in / x.span, chunk = w.form.chunk_bytes();
  const uint8_t* codes = w.bytes + w.form.heads_bytes(x.in) + half * kLineBytes;
  __m256 total[kRows][kRegisters], block[kRows][kRegisters];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kRegisters; ++i) total[r][i] = block[r][i] = _mm256_setzero_ps();
  int64_t g = 0;  // the span
  const auto scale_at = [&](const float* scales, int i) FEWBIT_WIDE_TARGET __attribute__((always_inline)) {
    return _mm256_loadu_ps(scales + ((half + i / kParts) * spans + g) * w.step + i % kParts * kEight);
  };
  const auto add_minimum = [&](int r, int i) FEWBIT_WIDE_TARGET __attribute__((always_inline)) {
    if constexpr (kMinima)
      total[r][i] =
          _mm256_fmadd_ps(scale_at(w.minima, i), _mm256_broadcast_ss(x.scaled + (first + r) * spans + g), total[r][i]);
  };
  for (int64_t c = 0, of_block = 0; c < x.in / kChunkCols; ++c, codes += chunk) {
    for (int64_t line = 0; line < chunk; line += kLineBytes)
      _mm_prefetch(reinterpret_cast<const char*>(codes) + kAheadBytes + line, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int part = 0; part < kChunkCols / kGroup; ++part) {
      GroupSums<kBits, kGroup, kRows, kRegisters> group;
      group.make(codes, x.low + first * x.in + c * kChunkCols, x.high + first * x.in + c * kChunkCols, x.in,
                 part * kGroup / 4);
      for (int r = 0; r < kRows; ++r) {
        const __m256i start = _mm256_set1_epi32(x.starts[(first + r) * groups + c * (kChunkCols / kGroup) + part]);
        const __m256 of_x = _mm256_broadcast_ss(x.scales + (first + r) * (x.in / kChunkCols) + c);
        for (int i = 0; i < kRegisters; ++i) {
          const __m256 sum = _mm256_cvtepi32_ps(_mm256_add_epi32(group.sum[r][i], start));
          if constexpr (kWide) {
            block[r][i] = _mm256_fmadd_ps(sum, of_x, block[r][i]);
          } else {
            total[r][i] = _mm256_fmadd_ps(sum, _mm256_mul_ps(scale_at(w.scales, i), of_x), total[r][i]);
            add_minimum(r, i);
          }
        }
      }
      if constexpr (!kWide) ++g;
    }
    if (!kWide || ++of_block < x.span / kChunkCols) continue;
    for (int r = 0; r < kRows; ++r)
      for (int i = 0; i < kRegisters; ++i) {
        total[r][i] = _mm256_fmadd_ps(block[r][i], scale_at(w.scales, i), total[r][i]);
        block[r][i] = _mm256_setzero_ps();
        add_minimum(r, i);
      }
    ++g;
    of_block = 0;
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kRegisters; ++i)
      _mm256_storeu_ps(sums + (first + r) * kStripOuts + half * kLanes + i * kEight, total[r][i]);
}

template <int kBits, int kGroup, bool kMinima, bool kWide>
void all_dots(const Int8Strip& w, const CodedRows& x, float* sums) {
  int64_t r = 0;
  const auto by_halves = [&]<int kRows>() {
    for (; r + kRows <= x.rows; r += kRows)
      for (int half = 0; half < 2; ++half) dots_of<kBits, kGroup, kRows, 1, kMinima, kWide>(w, half, x, r, sums);
  };
  by_halves.template operator()<4>();
  by_halves.template operator()<2>();
  if (r < x.rows) dots_of<kBits, kGroup, 1, 2, kMinima, kWide>(w, 0, x, r, sums);
}

template <int kBits, int kGroup>
void all_dots(const Int8Strip& w, const CodedRows& x, float* sums) {
  with_scales<kBits, kGroup>(w.form,
                             [&]<bool kMinima, bool kWide>() { all_dots<kBits, kGroup, kMinima, kWide>(w, x, sums); });
}

template <int kBits>
void all_dots(const Int8Strip& w, const CodedRows& x, float* sums) {
  (w.form.group == 16 ? all_dots<kBits, 16> : all_dots<kBits, 32>)(w, x, sums);
}

}  // namespace

bool has_wide_int8_dots() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}

void wide_int8_dots(const Int8Strip& w, const CodedRows& x, float* sums) {
  switch (w.form.bits) {
    case 2:
      return all_dots<2>(w, x, sums);
    case 4:
      return all_dots<4>(w, x, sums);
    case 5:
      FEWBIT_ASSERT(w.form.group == 32);  // a word of the one-bit plane has columns of two groups
      return all_dots<5, 32>(w, x, sums);
    case 6:
      return all_dots<6>(w, x, sums);
    default:
      return all_dots<8>(w, x, sums);
  }
}

#else

bool has_wide_int8_dots() { return false; }
void wide_int8_dots(const Int8Strip&, const CodedRows&, float*) { bug("no vector loops on this machine"); }

#endif

}  // namespace fewbit::cpu

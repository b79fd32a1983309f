// The loop of int8_dot.h. A register holds four columns of sixteen outputs, a byte each; an instruction multiplies them
// with four codes of x, which stand in all of its lanes, and adds to sixteen sums.
#include "kernels/products/blocks/int8_dot.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/x86_loops.h"
#include "kernels/grids/row_grid.h"
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
constexpr int64_t kAheadBytes = 16384;

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

// Chunks of 32 columns that every tile of rows takes in turn, so that codes come out of the first cache for all but
// the first: whole blocks of wide scales.
constexpr int64_t kChunksAtOnce = 32;

// kRows rows of 32 columns of x with the words of a plane in a group of kGroup columns, the part'th of the 32.
template <int kRows>
using Sums = __m512i[kRows][2];
template <int kGroup, int kRows, class Word>
FEWBIT_INT8_INLINE void add_plane(const int8_t* x, int part, const Word& word, Sums<kRows>& sum) {
  constexpr int kOfPart = kGroup / 4;
#pragma GCC unroll 8
  for (int k = part * kOfPart; k < (part + 1) * kOfPart; ++k) {
    const __m512i a = word(k, 0), b = word(k, kLineBytes);
    for (int r = 0; r < kRows; ++r) {
      const __m512i four = four_of(x + r * kChunkCols, k);
      sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], a, four);
      sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], b, four);
    }
  }
}

// The sums of such a group, all planes; `chunk` numbers the 32 columns.
template <int kBits, int kGroup, int kRows>
FEWBIT_INT8_INLINE void add_group(const uint8_t* codes, const CodedRows& x, int64_t chunk, int part, Sums<kRows>& sum) {
  constexpr int kLow = kLowBits<kBits>, kHigh = kBits - kLow;
  const int64_t at = chunk * kRows * kChunkCols;
  add_plane<kGroup, kRows>(
      x.low + at, part, [&](int k, int64_t half) FEWBIT_INT8_TARGET { return low_word<kBits>(codes + half, k); }, sum);
  if constexpr (kHigh > 0) {
    Sums<kRows> upper;
    for (auto& of_row : upper) of_row[0] = of_row[1] = _mm512_setzero_si512();
    const uint8_t* lines = codes + kNextLine * kLow;
    add_plane<kGroup, kRows>(
        x.high + at, part, [&](int k, int64_t half) FEWBIT_INT8_TARGET { return plane_word<kHigh>(lines + half, k); },
        upper);
    for (int r = 0; r < kRows; ++r)
      for (int i = 0; i < 2; ++i) sum[r][i] = _mm512_add_epi32(sum[r][i], _mm512_slli_epi32(upper[r][i], kLow));
  }
}

// The scales and minima of span g.
template <int kRows, bool kMinima>
struct TileScales {
  const Int8Strip& w;
  const CodedRows& x;
  int64_t of_half;

  FEWBIT_INT8_INLINE __m512 scale(int64_t g, int half) const {
    return _mm512_loadu_ps(w.scales + half * of_half + g * w.step);
  }
  FEWBIT_INT8_INLINE void add_minima(int64_t g, int half, __m512 (&total)[kRows][2]) const {
    if constexpr (kMinima) {
      const __m512 minima = _mm512_loadu_ps(w.minima + half * of_half + g * w.step);
      for (int r = 0; r < kRows; ++r)
        total[r][half] = _mm512_fmadd_ps(minima, _mm512_set1_ps(x.scaled[g * kRows + r]), total[r][half]);
    }
  }
};

// A tile of kRows rows of x with chunks [begin, end) of a strip: on from the sums that are there, from none at first.
template <int kBits, int kGroup, int kRows, bool kMinima, bool kWide>
FEWBIT_INT8_TARGET void dots_of(const Int8Strip& w, const CodedRows& x, int64_t begin, int64_t end, float* sums) {
  constexpr int kParts = kChunkCols / kGroup;
  constexpr int64_t kChunk = kNextLine * kBits;
  const int64_t per_block = x.span / kChunkCols;
  const TileScales<kRows, kMinima> scales{w, x, x.in / x.span * w.step};
  const uint8_t* codes = w.bytes + w.form.heads_bytes(x.in) + begin * kChunk;
  int64_t g = kWide ? begin / per_block : begin * kParts, left = per_block;  // chunks of the block
  const int32_t* starts = x.starts + begin * kParts * kRows;
  __m512 total[kRows][2], block[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < 2; ++i) {
      total[r][i] = begin == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + (r * 2 + i) * kLanes);
      block[r][i] = _mm512_setzero_ps();
    }
  for (int64_t c = begin; c < end; ++c, codes += kChunk) {
    const float* of_x = x.scales + c * kRows;
    for (int line = 0; line < 2 * kBits; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(codes) + kAheadBytes + kLineBytes * line, _MM_HINT_T1);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part, starts += kRows) {
      Sums<kRows> sum;
      for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_set1_epi32(starts[r]);
      add_group<kBits, kGroup, kRows>(codes, x, c, part, sum);
      for (int i = 0; i < 2; ++i) {
        const __m512 scale = kWide ? _mm512_setzero_ps() : scales.scale(g, i);
        for (int r = 0; r < kRows; ++r) {
          const __m512 whole = _mm512_cvtepi32_ps(sum[r][i]), factor = _mm512_set1_ps(of_x[r]);
          if constexpr (kWide)
            block[r][i] = _mm512_fmadd_ps(whole, factor, block[r][i]);
          else
            total[r][i] = _mm512_fmadd_ps(whole, _mm512_mul_ps(scale, factor), total[r][i]);
        }
        if constexpr (!kWide) scales.add_minima(g, i, total);
      }
      if constexpr (!kWide) ++g;
    }
    if (!kWide || --left > 0) continue;
    left = per_block;
    for (int i = 0; i < 2; ++i) {
      for (int r = 0; r < kRows; ++r) {
        total[r][i] = _mm512_fmadd_ps(block[r][i], scales.scale(g, i), total[r][i]);
        block[r][i] = _mm512_setzero_ps();
      }
      scales.add_minima(g, i, total);
    }
    ++g;
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < 2; ++i) _mm512_storeu_ps(sums + (r * 2 + i) * kLanes, total[r][i]);
}

template <int kBits, int kGroup, bool kMinima, bool kWide>
void all_dots(const Int8Strip& w, const CodedRows& x, float* sums) {
  const int64_t chunks = x.in / kChunkCols, per_block = kWide ? x.span / kChunkCols : 1;
  const int64_t at_once = x.rows <= kInt8Tile ? chunks : std::max(per_block, kChunksAtOnce / per_block * per_block);
  for (int64_t c = 0; c < chunks; c += at_once)
    for (int64_t r = 0, count = 0; r < x.rows; r += count) {
      count = int8_tile(x.rows - r);
      (count == kInt8Tile ? dots_of<kBits, kGroup, kInt8Tile, kMinima, kWide>
       : count == 2       ? dots_of<kBits, kGroup, 2, kMinima, kWide>
                          : dots_of<kBits, kGroup, 1, kMinima, kWide>)(w, x.from(r), c, std::min(chunks, c + at_once),
                                                                 sums + r * kStripOuts);
    }
}

template <int kBits, int kGroup>
void all_dots(const Int8Strip& w, const CodedRows& x, float* sums) {
  with_scales<kBits, kGroup>(w.form,
                             [&]<bool kMinima, bool kWide>() { all_dots<kBits, kGroup, kMinima, kWide>(w, x, sums); });
}

FEWBIT_INT8_INLINE __m512 sixteen_of(const bf16* x) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

// Bytes of `codes` in an order.
FEWBIT_INT8_INLINE void put_in_order(__m256i codes, const PlaneOrder& order, int8_t* to) {
  const __m256i at = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(order.data()));
  const __m256i low = _mm256_permute4x64_epi64(codes, 0x44), high = _mm256_permute4x64_epi64(codes, 0xee);
  const __m256i in_order = _mm256_mask_shuffle_epi8(_mm256_shuffle_epi8(low, at),
                                                    _mm256_cmpgt_epi8_mask(at, _mm256_set1_epi8(15)), high, at);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), in_order);
}

}  // namespace

bool has_int8_dots() {
  static const bool has = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has;
}

FEWBIT_INT8_TARGET CodedPart code_part(const bf16* x, const PlaneOrder& low, int8_t* to_low, const PlaneOrder& high,
                                       int8_t* to_high) {
  const __m512 a = sixteen_of(x), b = sixteen_of(x + kLanes);
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
  const __m512i most = _mm512_max_epu32(_mm512_andnot_si512(sign, _mm512_castps_si512(a)),
                                        _mm512_andnot_si512(sign, _mm512_castps_si512(b)));
  const uint32_t bits = _mm512_reduce_max_epu32(most);  // as integers a NaN is the largest
  CodedPart part{.scale = row_scale(std::bit_cast<float>(bits), 0, 127.f)};
  __m256i codes = _mm256_setzero_si256();
  if (bits < 0x7f800000u) {
    const __m512 inverse = _mm512_set1_ps(1.f / part.scale);
    codes = _mm256_set_m128i(_mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(b, inverse))),
                             _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(a, inverse))));
  }
  put_in_order(codes, low, to_low);
  if (to_high) put_in_order(codes, high, to_high);
  // Sums of eight bytes without a sign, from which 128 of each is taken.
  alignas(32) int64_t eights[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(eights),
                     _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), _mm256_setzero_si256()));
  for (int i = 0; i < 2; ++i) part.sums[i] = static_cast<int32_t>(eights[2 * i] + eights[2 * i + 1]) - 16 * 128;
  return part;
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
CodedPart code_part(const bf16*, const PlaneOrder&, int8_t*, const PlaneOrder&, int8_t*) {
  bug("no vector loops on this machine");
}
void int8_dots(const Int8Strip&, const CodedRows&, float*) { bug("no vector loops on this machine"); }

#endif

}  // namespace fewbit::cpu

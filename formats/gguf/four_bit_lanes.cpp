// Loading, codes and bytes of the blocks whose scales four_bit_search.cpp finds. Compiled without fused multiply-adds,
// as all encoders are.
#include "formats/gguf/four_bit_lanes.h"

#include <algorithm>
#include <cstring>

#include "formats/gguf/block_type.h"
#include "formats/gguf/four_bit_vectors.h"

namespace fewbit::gguf {

#if !defined(__x86_64__)
bool has_four_bit_lanes() { return false; }
bool encode_four_bit_lanes(const float*, const float*, int, uint8_t*) { return false; }
#else
namespace four_bit {
namespace {

// What a regular block's largest magnitude and its weights stay between: far from the ends of f32.
constexpr float kLeastRange = 0x1p-40f, kMostValue = 0x1p16f, kLeastWeight = 0x1p-60f, kMostWeight = 0x1p60f;

// Rows of `at` become columns: to[i] has value i of sixteen blocks that lie kValues apart.
FOUR_BIT_INLINE void turn(const float* const* at, int from, float (*to)[kLanes]) {
  __m512 r[16], s[16];
  for (int l = 0; l < 16; ++l) r[l] = _mm512_loadu_ps(at[l] + from);
  for (int l = 0; l < 16; l += 2) {
    s[l] = _mm512_unpacklo_ps(r[l], r[l + 1]);
    s[l + 1] = _mm512_unpackhi_ps(r[l], r[l + 1]);
  }
  for (int l = 0; l < 16; l += 4)
    for (int k = 0; k < 2; ++k) {
      const __m512d a = _mm512_castps_pd(s[l + k]), b = _mm512_castps_pd(s[l + k + 2]);
      r[l + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[l + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  for (int k = 0; k < 4; ++k) {
    const __m512 a = _mm512_shuffle_f32x4(r[k], r[4 + k], 0x88), b = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0x88);
    const __m512 c = _mm512_shuffle_f32x4(r[k], r[4 + k], 0xdd), d = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0xdd);
    _mm512_store_ps(to[k], _mm512_shuffle_f32x4(a, b, 0x88));
    _mm512_store_ps(to[8 + k], _mm512_shuffle_f32x4(a, b, 0xdd));
    _mm512_store_ps(to[4 + k], _mm512_shuffle_f32x4(c, d, 0x88));
    _mm512_store_ps(to[12 + k], _mm512_shuffle_f32x4(c, d, 0xdd));
  }
}

FOUR_BIT_TARGET void load(const float* x, const float* weight, int count, Blocks& s) {
  const float *of_x[kLanes], *of_weight[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    of_x[l] = x + std::min(l, count - 1) * kValues;
    of_weight[l] = weight + std::min(l, count - 1) * kValues;
  }
  for (int from = 0; from < kValues; from += 16) {
    turn(of_x, from, s.x + from);
    turn(of_weight, from, s.weight + from);
  }
  s.largest = _mm512_setzero_ps();
  s.least_weight = s.most_weight = _mm512_load_ps(s.weight[0]);
  for (int i = 0; i < kValues; ++i) {
    const __m512 v = _mm512_load_ps(s.x[i]), size = _mm512_abs_ps(v), w = _mm512_load_ps(s.weight[i]);
    _mm512_store_ps(s.size[i], size);
    s.positive[i] = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GT_OQ);
    s.largest = _mm512_max_ps(s.largest, size);
    s.least_weight = _mm512_min_ps(s.least_weight, w);
    s.most_weight = _mm512_max_ps(s.most_weight, w);
  }
  s.extreme = s.largest;
  for (int i = kValues - 1; i >= 0; --i) {
    const __mmask16 largest = _mm512_cmp_ps_mask(_mm512_load_ps(s.size[i]), s.largest, _CMP_EQ_OQ);
    s.extreme = _mm512_mask_mov_ps(s.extreme, largest, _mm512_load_ps(s.x[i]));
  }
  s.regular = _mm512_cmp_ps_mask(s.largest, _mm512_set1_ps(kLeastRange), _CMP_GE_OQ) &
              _mm512_cmp_ps_mask(s.largest, _mm512_set1_ps(kMostValue), _CMP_LE_OQ) &
              _mm512_cmp_ps_mask(s.least_weight, _mm512_set1_ps(kLeastWeight), _CMP_GE_OQ) &
              _mm512_cmp_ps_mask(s.most_weight, _mm512_set1_ps(kMostWeight), _CMP_LE_OQ);
}

// --- codes

// decoded = d times a code less 8; `half`: d as f16. `error`: sum w (x - decoded)^2.
struct Grid {
  __m256i half;
  __m512 d;
  Wide error;
  alignas(64) float codes[kValues][kLanes];
};

FOUR_BIT_INLINE void store_scale(__m512 d, Grid& g) {
  g.half = _mm512_cvtps_ph(d, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  g.d = _mm512_cvtph_ps(g.half);
}

FOUR_BIT_INLINE __m512 inverse_of(__m512 d) {
  return _mm512_maskz_div_ps(_mm512_cmp_ps_mask(d, _mm512_setzero_ps(), _CMP_NEQ_UQ), _mm512_set1_ps(1), d);
}

FOUR_BIT_INLINE void add_error(const Blocks& s, int i, __m512 code, Grid& g) {
  const Wide w = wide(s.weight[i]), x = wide(s.x[i]), decoded = wide(_mm512_mul_ps(g.d, code));
  const __m512d low = _mm512_sub_pd(x.low, decoded.low), high = _mm512_sub_pd(x.high, decoded.high);
  g.error = {_mm512_add_pd(g.error.low, _mm512_mul_pd(_mm512_mul_pd(w.low, low), low)),
             _mm512_add_pd(g.error.high, _mm512_mul_pd(_mm512_mul_pd(w.high, high), high))};
  _mm512_store_ps(g.codes[i], code);
}

// The nearest codes of a scale that was found.
FOUR_BIT_INLINE void nearest_codes(const Blocks& s, __m512 scale, Grid& g) {
  store_scale(scale, g);
  const __m512 inverse = inverse_of(g.d);
  for (int i = 0; i < kValues; ++i) {
    const __m512 v = _mm512_min_ps(_mm512_mul_ps(_mm512_load_ps(s.x[i]), inverse), _mm512_set1_ps(kHigh));
    add_error(s, i, _mm512_sub_ps(_mm512_add_ps(_mm512_max_ps(v, _mm512_set1_ps(kLow)), rounder()), rounder()), g);
  }
}

// The plain rule: half a step up, then down to the integer, by the scale as it is before it becomes f16.
FOUR_BIT_INLINE void plain_codes(const Blocks& s, Grid& g) {
  const __m512 d = _mm512_div_ps(s.extreme, _mm512_set1_ps(kLow)), inverse = inverse_of(d);
  store_scale(d, g);
  for (int i = 0; i < kValues; ++i) {
    const __m512 up = _mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(s.x[i]), inverse), _mm512_set1_ps(kOffset + 0.5f));
    const __m512 cut = _mm512_cvtepi32_ps(_mm512_cvttps_epi32(up));
    add_error(s, i, _mm512_sub_ps(_mm512_min_ps(cut, _mm512_set1_ps(kHigh + kOffset)), _mm512_set1_ps(kOffset)), g);
  }
}

// The better grid of every lane as blocks: a scale of f16, then value i and value i + 16 in a byte.
FOUR_BIT_INLINE void store_blocks(const Blocks& s, const Grid& found, const Grid& plain, int count, uint8_t* to) {
  const __mmask8 low = _mm512_cmp_pd_mask(found.error.low, plain.error.low, _CMP_LT_OQ);
  const __mmask8 high = _mm512_cmp_pd_mask(found.error.high, plain.error.high, _CMP_LT_OQ);
  const __mmask16 better = static_cast<__mmask16>(low | high << 8);
  const auto code = [&](int i) FOUR_BIT_TARGET {
    const __m512 c = _mm512_mask_mov_ps(_mm512_load_ps(plain.codes[i]), better, _mm512_load_ps(found.codes[i]));
    return _mm512_cvtps_epi32(_mm512_add_ps(c, _mm512_set1_ps(kOffset)));
  };
  alignas(64) uint32_t words[4][kLanes];
  for (int word = 0; word < 4; ++word) {
    __m512i pairs[4];
    for (int k = 0; k < 4; ++k)
      pairs[k] = _mm512_or_si512(code(4 * word + k), _mm512_slli_epi32(code(4 * word + k + 16), 4));
    _mm512_store_si512(words[word], word_of(pairs));
  }
  alignas(32) uint16_t scales[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(scales), _mm256_mask_mov_epi16(plain.half, better, found.half));
  for (int l = 0; l < count; ++l, to += type_q4_0.bytes) {
    if (!(s.regular >> l & 1)) continue;
    std::memcpy(to, &scales[l], sizeof scales[l]);
    for (int word = 0; word < 4; ++word) std::memcpy(to + 2 + 4 * word, &words[word][l], sizeof words[word][l]);
  }
}

}  // namespace
}  // namespace four_bit

bool has_four_bit_lanes() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vnni");
  return has;
}

FOUR_BIT_TARGET bool encode_four_bit_lanes(const float* x, const float* weight, int count, uint8_t* to) {
  four_bit::Blocks s;
  four_bit::load(x, weight, count, s);
  __m512 scale;
  if (!four_bit::search(s, scale)) return false;
  four_bit::Grid found, plain;
  four_bit::nearest_codes(s, scale, found);
  four_bit::plain_codes(s, plain);
  four_bit::store_blocks(s, found, plain, count, to);
  for (int l = 0; l < count; ++l)
    if (!(s.regular >> l & 1))
      type_q4_0.encode(x + l * four_bit::kValues, weight + l * four_bit::kValues, to + l * type_q4_0.bytes);
  return true;
}
#endif

}  // namespace fewbit::gguf

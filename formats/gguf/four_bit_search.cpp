// The search of lanes.cpp for codes of four bits. It chooses by integers in place of f32: sixteen lanes hold four codes
// each, which one instruction multiplies with a byte of four weights. What lies near the best is summed again in
// doubles, as the rule has it. Compiled without fused multiply-adds, as all encoders are; those written here have exact
// products.
#include "formats/gguf/block_search.h"
#include "formats/gguf/four_bit_vectors.h"

#if defined(__x86_64__)
namespace fewbit::gguf::four_bit {
namespace {

constexpr int kCount = kCandidates + 1;
constexpr float kMostInteger = 32512 * 256.f;  // whose upper byte, rounded, is 127
// Gains that may be wrong by more of themselves tell nothing; the weights of the block lie too far apart.
constexpr float kWidest = 0x1p-10f;

// --- the first look, by integers

// Numbers below 2^23 as three signed bytes, four numbers a lane: 2^16 high + 2^8 middle + low.
struct Bytes {
  __m512i high, middle, low;
};

FOUR_BIT_INLINE Bytes bytes_of(const __m512i* numbers) {
  __m512i middle[4], high[4];
  for (int k = 0; k < 4; ++k) {
    middle[k] = _mm512_srai_epi32(_mm512_add_epi32(numbers[k], _mm512_set1_epi32(128)), 8);
    high[k] = _mm512_srai_epi32(_mm512_add_epi32(middle[k], _mm512_set1_epi32(128)), 8);
  }
  return {word_of(high), word_of(middle), word_of(numbers)};
}

// w |x| and w in units of their own for every lane; and how large a code may become under a positive scale and under a
// negative one.
struct Integers {
  Bytes wx[kWords], w[kWords];
  __m512i most[kWords], other[kWords];
  __mmask16 sound;  // lanes in which no weight became 0 in its upper two bytes
};

FOUR_BIT_TARGET void take_integers(const Blocks& s, Integers& n) {
  __m512 most = _mm512_setzero_ps();
  for (int i = 0; i < kValues; ++i)
    most = _mm512_max_ps(most, _mm512_mul_ps(_mm512_load_ps(s.weight[i]), _mm512_load_ps(s.size[i])));
  const __m512 unit_x = _mm512_div_ps(_mm512_set1_ps(kMostInteger), most);
  const __m512 unit_w = _mm512_div_ps(_mm512_set1_ps(kMostInteger), s.most_weight);
  for (int word = 0; word < kWords; ++word) {
    __m512i x[4], w[4], bound[4];
    for (int k = 0; k < 4; ++k) {
      const int i = 4 * word + k;
      const __m512 weight = _mm512_load_ps(s.weight[i]), size = _mm512_load_ps(s.size[i]);
      x[k] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_mul_ps(weight, size), unit_x));
      w[k] = _mm512_cvtps_epi32(_mm512_mul_ps(weight, unit_w));
      bound[k] = _mm512_mask_mov_epi32(_mm512_set1_epi32(8), s.positive[i], _mm512_set1_epi32(7));
    }
    n.wx[word] = bytes_of(x);
    n.w[word] = bytes_of(w);
    n.most[word] = word_of(bound);
    n.other[word] = _mm512_sub_epi8(_mm512_set1_epi8(15), n.most[word]);
  }
  n.sound = _mm512_cmp_ps_mask(_mm512_mul_ps(s.least_weight, unit_w), _mm512_set1_ps(0.75f * 256), _CMP_GE_OQ);
}

// Magnitudes of four values by the factor of their lanes, as bytes: round_even(size factor).
FOUR_BIT_INLINE __m512i four_codes(const float (*size)[kLanes], __m512 factor) {
  __m512i c[4];
  for (int k = 0; k < 4; ++k)
    c[k] = _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(_mm512_load_ps(size[k]), factor), rounder()));
  return with_byte<3>(with_byte<2>(with_byte<1>(c[0], c[1]), c[2]), c[3]);
}

// sum w |x| c and sum w c^2 in the units of Integers.
struct Sum {
  Bytes x = {}, c = {};
};

FOUR_BIT_INLINE __m512i squares_of(__m512i codes) {
  const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 9, 16, 25, 36, 49, 64, 0, 0, 0, 0, 0, 0, 0));
  return _mm512_shuffle_epi8(table, codes);
}

FOUR_BIT_INLINE void add_products(__m512i codes, const Bytes& weights, Bytes& sum) {
  sum.high = _mm512_dpbusd_epi32(sum.high, codes, weights.high);
  sum.middle = _mm512_dpbusd_epi32(sum.middle, codes, weights.middle);
  sum.low = _mm512_dpbusd_epi32(sum.low, codes, weights.low);
}

FOUR_BIT_INLINE void add_codes(__m512i codes, const Integers& n, int word, Sum& sum) {
  add_products(codes, n.wx[word], sum.x);
  add_products(squares_of(codes), n.w[word], sum.c);
}

// Sums of one candidate under a positive scale and, where that has `other` codes, under a negative one.
template <bool other>
FOUR_BIT_INLINE void add_candidate(const Blocks& s, const Integers& n, __m512 factor, Sum& positive, Sum& negative) {
  for (int word = 0; word < kWords; ++word) {
    const __m512i codes = four_codes(s.size + 4 * word, factor);
    add_codes(_mm512_min_epu8(codes, n.most[word]), n, word, positive);
    if constexpr (other) add_codes(_mm512_min_epu8(codes, n.other[word]), n, word, negative);
  }
  if constexpr (!other) negative = positive;
}

// The sum without its low bytes, in units of 2^8, exact; and all of it.
FOUR_BIT_INLINE __m512i upper(const Bytes& b) { return _mm512_add_epi32(_mm512_slli_epi32(b.high, 8), b.middle); }
FOUR_BIT_INLINE __m512 whole(__m512i upper, __m512i low) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper), _mm512_set1_ps(256), _mm512_cvtepi32_ps(low));
}

// Of one sign, for every candidate: gains in a unit of the lane's own, and the lanes in which it has other codes than
// candidates that are tried before it. `x` and `c`: the least sums.
struct Looks {
  alignas(64) float gain[kCount][kLanes];
  __mmask16 own[kCount];
  __m512i last, x, c;  // without low bytes
};

FOUR_BIT_INLINE void keep_look(const Sum& sum, int t, Looks& looks, __m512& best) {
  const __m512i xc = upper(sum.x), cc = upper(sum.c);
  const __m512 x = whole(xc, sum.x.low), c = whole(cc, sum.c.low), gain = _mm512_mul_ps(_mm512_div_ps(x, c), x);
  _mm512_store_ps(looks.gain[t], gain);
  best = _mm512_max_ps(gain, best);
  // From one candidate to the next no code grows, so equal sums of w c^2 have equal codes; w without its low byte does.
  looks.own[t] = t == 0 ? 0xffff : _mm512_cmpneq_epi32_mask(cc, looks.last);
  looks.last = cc;
  looks.x = t == 0 ? xc : _mm512_min_epi32(looks.x, xc);
  looks.c = t == 0 ? cc : _mm512_min_epi32(looks.c, cc);
}

// By how much of itself a gain may be wrong: a number by 1.5 of its unit (half a unit and two roundings of f32 below
// 2^23), so sum w |x| c by 1.5 sum c, and sum w c^2 by 1.5 sum c^2; the sums of codes are largest for the first
// candidate, which has the largest factor. 1.9 pays for the low bytes that the least sums lack.
FOUR_BIT_INLINE __m512 relative_error(const Blocks& s, __m512 factor, const Looks& a, const Looks& b) {
  __m512i c = _mm512_setzero_si512(), cc = c;
  const __m512i ones = _mm512_set1_epi8(1);
  for (int word = 0; word < kWords; ++word) {
    const __m512i codes = _mm512_min_epu8(four_codes(s.size + 4 * word, factor), _mm512_set1_epi8(8));
    c = _mm512_dpbusd_epi32(c, codes, ones);
    cc = _mm512_dpbusd_epi32(cc, squares_of(codes), ones);
  }
  const __m512 of_x = _mm512_div_ps(_mm512_cvtepi32_ps(c), _mm512_cvtepi32_ps(_mm512_min_epi32(a.x, b.x)));
  const __m512 of_c = _mm512_div_ps(_mm512_cvtepi32_ps(cc), _mm512_cvtepi32_ps(_mm512_min_epi32(a.c, b.c)));
  const __m512 integers = _mm512_mul_ps(_mm512_add_ps(_mm512_add_ps(of_x, of_x), of_c), _mm512_set1_ps(1.9f / 256));
  return _mm512_add_ps(integers, _mm512_set1_ps(0x1p-20f));  // what f32 rounds: six times at most
}

// Bit t of a lane: that candidate t may be its best; of the last candidate a mask of lanes.
struct Marks {
  __m512i bits = {};
  __mmask16 last = 0;
};

FOUR_BIT_INLINE Marks marks_of(const Looks& looks, __m512 bound) {
  Marks m;
  for (int t = 0; t < kCount; ++t) {
    const __mmask16 near = _mm512_cmp_ps_mask(_mm512_load_ps(looks.gain[t]), bound, _CMP_NLT_UQ) & looks.own[t];
    if (t < kCandidates)
      m.bits = _mm512_mask_or_epi32(m.bits, near, m.bits, _mm512_set1_epi32(static_cast<int>(1u << t)));
    else
      m.last = near;
  }
  return m;
}

using Factors = float[kCount][kLanes];

struct Survivors {
  Marks negative, positive;
};

// A candidate that is best in exact sums lies within twice the error of the best that is seen; a tenth more pays for
// the terms of second order. False where the error is too large to tell anything.
FOUR_BIT_TARGET bool look(const Blocks& s, const Factors& factors, Survivors& found) {
  Integers n;
  take_integers(s, n);
  Looks positive, negative;
  __m512 best = _mm512_setzero_ps();
  for (int t = 0; t < kCount; ++t) {
    const __m512 factor = _mm512_load_ps(factors[t]);
    // Where no magnitude reaches 8 both signs have the same codes, and the negative one is tried first.
    const __m512 top = _mm512_add_ps(_mm512_mul_ps(s.largest, factor), rounder());
    const __mmask16 differ = _mm512_cmp_ps_mask(top, _mm512_add_ps(rounder(), _mm512_set1_ps(kHigh)), _CMP_GT_OQ);
    Sum p, m;
    if (differ)
      add_candidate<true>(s, n, factor, p, m);
    else
      add_candidate<false>(s, n, factor, p, m);
    keep_look(p, t, positive, best);
    keep_look(m, t, negative, best);
    positive.own[t] &= differ;
  }
  const __m512 error = relative_error(s, _mm512_load_ps(factors[0]), positive, negative);
  const __mmask16 told = _mm512_cmp_ps_mask(error, _mm512_set1_ps(kWidest), _CMP_LE_OQ) & n.sound;
  if (s.regular & ~told) return false;
  const __m512 bound =
      _mm512_mul_ps(best, _mm512_sub_ps(_mm512_set1_ps(1), _mm512_mul_ps(error, _mm512_set1_ps(2.2f))));
  found.negative = marks_of(negative, bound);
  found.positive = marks_of(positive, bound);
  return true;
}

// --- the second look, in doubles

struct Candidate {
  __m512i index = {};
  __mmask16 negative = 0;
};

// The next survivor of every lane, negative scales first. Lanes without one repeat their last, which changes nothing.
// False when no lane has one.
FOUR_BIT_INLINE bool next_survivors(Survivors& left, Candidate& c) {
  Marks &n = left.negative, &p = left.positive;
  const __mmask16 in_n = _mm512_test_epi32_mask(n.bits, n.bits), last_n = n.last & ~in_n;
  const __mmask16 of_p = static_cast<__mmask16>(~(in_n | last_n));
  const __mmask16 in_p = _mm512_mask_test_epi32_mask(of_p, p.bits, p.bits), last_p = p.last & of_p & ~in_p;
  if (!(in_n | last_n | in_p | last_p)) return false;
  const __m512i bits = _mm512_mask_mov_epi32(p.bits, in_n, n.bits);
  const __m512i lowest = _mm512_and_si512(bits, _mm512_sub_epi32(_mm512_setzero_si512(), bits));
  const __m512i number = _mm512_sub_epi32(_mm512_set1_epi32(31), _mm512_lzcnt_epi32(lowest));
  c.index = _mm512_mask_mov_epi32(c.index, in_n | in_p, number);
  c.index = _mm512_mask_mov_epi32(c.index, last_n | last_p, _mm512_set1_epi32(kCandidates));
  c.negative = static_cast<__mmask16>((c.negative & ~(in_p | last_p)) | in_n | last_n);
  n.bits = _mm512_mask_xor_epi32(n.bits, in_n, n.bits, lowest);
  p.bits = _mm512_mask_xor_epi32(p.bits, in_p, p.bits, lowest);
  n.last = static_cast<__mmask16>(n.last & ~last_n);
  p.last = static_cast<__mmask16>(p.last & ~last_p);
  return true;
}

struct Best {
  Wide gain, xc, cc;  // gain: -1, or above
  __mmask16 negative = 0;
};

FOUR_BIT_INLINE __mmask8 keep_better(__m512d xc, __m512d cc, __m512d& best, __m512d& best_xc, __m512d& best_cc) {
  const __m512d gain = _mm512_div_pd(_mm512_mul_pd(xc, xc), cc);
  const __mmask8 better = _mm512_cmp_pd_mask(gain, best, _CMP_GT_OQ);
  best = _mm512_mask_mov_pd(best, better, gain);
  best_xc = _mm512_mask_mov_pd(best_xc, better, xc);
  best_cc = _mm512_mask_mov_pd(best_cc, better, cc);
  return better;
}

// Sums of doubles in the order of the values; w (24 bits) times c (4) times x (24) fits the 53 of a double.
FOUR_BIT_INLINE void try_candidate(const Blocks& s, const Factors& factors, const Candidate& c, Best& best) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512 factor = _mm512_i32gather_ps(_mm512_add_epi32(_mm512_slli_epi32(c.index, 4), lanes), factors, 4);
  Wide xc, cc;
  for (int i = 0; i < kValues; ++i) {
    const __m512 x = _mm512_load_ps(s.size[i]);
    const __m512 rounded = _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(x, factor), rounder()), rounder());
    const __m512 most =
        _mm512_mask_mov_ps(_mm512_set1_ps(kHigh), _kxnor_mask16(s.positive[i], c.negative), _mm512_set1_ps(-kLow));
    const Wide code = wide(_mm512_min_ps(rounded, most)), w = wide(s.weight[i]), of_x = wide(x);
    const __m512d low = _mm512_mul_pd(w.low, code.low), high = _mm512_mul_pd(w.high, code.high);
    xc = {_mm512_fmadd_pd(low, of_x.low, xc.low), _mm512_fmadd_pd(high, of_x.high, xc.high)};
    cc = {_mm512_fmadd_pd(low, code.low, cc.low), _mm512_fmadd_pd(high, code.high, cc.high)};
  }
  const __mmask8 low = keep_better(xc.low, cc.low, best.gain.low, best.xc.low, best.cc.low);
  const __mmask8 high = keep_better(xc.high, cc.high, best.gain.high, best.xc.high, best.cc.high);
  const __mmask16 better = static_cast<__mmask16>(low | high << 8);
  best.negative = static_cast<__mmask16>((best.negative & ~better) | (c.negative & better));
}

}  // namespace

FOUR_BIT_TARGET bool search(const Blocks& s, __m512& scale) {
  alignas(64) Factors factors;
  const __m512 first = _mm512_div_ps(s.largest, _mm512_set1_ps(-kLow)), one = _mm512_set1_ps(1);
  for (int t = 0; t < kCount; ++t)
    _mm512_store_ps(factors[t], _mm512_div_ps(one, _mm512_mul_ps(first, _mm512_set1_ps(candidate(t)))));
  Survivors left;
  if (!look(s, factors, left)) return false;
  Candidate c;
  Best best;
  best.gain.low = best.gain.high = _mm512_set1_pd(-1);
  while (next_survivors(left, c)) try_candidate(s, factors, c, best);
  const __m512 found = narrow({_mm512_div_pd(best.xc.low, best.cc.low), _mm512_div_pd(best.xc.high, best.cc.high)});
  const __m512 turned = _mm512_mask_sub_ps(found, best.negative, _mm512_set1_ps(-0.f), found);
  const __mmask8 none_low = _mm512_cmp_pd_mask(best.gain.low, _mm512_setzero_pd(), _CMP_LT_OQ);
  const __mmask8 none_high = _mm512_cmp_pd_mask(best.gain.high, _mm512_setzero_pd(), _CMP_LT_OQ);
  scale = _mm512_mask_mov_ps(turned, static_cast<__mmask16>(none_low | none_high << 8), first);
  return true;
}

}  // namespace fewbit::gguf::four_bit
#endif

// Levels of codes as quads of bf16 (kernels/cpu/quad_loops.h).
#include "kernels/cpu/quad_loops.h"
#include "kernels/products/tile_weights.h"

namespace fewbit::cpu {

#ifdef FEWBIT_TILES
namespace {

// The levels of codes less their zeros, -16 to 15, at the index of their low five bits. A zero of 16 exists: GPTQ v1
// stores zero - 1.
struct LevelWords {
  alignas(64) uint16_t by_difference[32];
  alignas(64) uint16_t by_code[32];  // where every zero is 8: the low four bits alone count
};
const LevelWords& level_words() {
  static const LevelWords words = [] {
    LevelWords w{};
    for (int i = 0; i < 32; ++i) {
      w.by_difference[i] = bf16(static_cast<float>(i < 16 ? i : i - 32)).bits;
      w.by_code[i] = bf16(static_cast<float>(i % 16 - 8)).bits;
    }
    return w;
  }();
  return words;
}

struct CodesOf {
  const uint8_t* codes;
  const float* scales;
  const uint8_t* zeros;  // null: `zero` everywhere
  int zero;
  int64_t out, in, bytes, groups, segment;
};

// Four rows of codes with their scales and zeros.
class CodeQuad : protected QuadRows {
 public:
  int64_t in, segment;
  FEWBIT_QUAD_INLINE CodeQuad(const CodesOf& w, int64_t o)
      : QuadRows(w.codes, o, w.out, w.bytes), in(w.in), segment(w.segment), w_(&w) {
    for (int64_t i = 0; i < 4; ++i) at_[i] = std::min(o + i, w.out - 1) * w.groups;
  }
  FEWBIT_QUAD_INLINE __m512 scale(int64_t g) const {
    const float* s = w_->scales + g;
    __m512 all = _mm512_set1_ps(s[at_[0]]);
    all = _mm512_mask_mov_ps(all, 0x00f0, _mm512_set1_ps(s[at_[1]]));
    all = _mm512_mask_mov_ps(all, 0x0f00, _mm512_set1_ps(s[at_[2]]));
    return _mm512_mask_mov_ps(all, 0xf000, _mm512_set1_ps(s[at_[3]]));
  }

 protected:
  // The zeros of group g: each output's in eight words.
  FEWBIT_QUAD_INLINE __m512i zeros(int64_t g) const {
    if (!w_->zeros) return _mm512_set1_epi16(static_cast<int16_t>(w_->zero));
    const auto words = [&](int i) FEWBIT_QUAD_TARGET { return _mm512_set1_epi16(w_->zeros[at_[i] + g]); };
    __m512i all = words(0);
    all = _mm512_mask_mov_epi16(all, 0x0000ff00, words(1));
    all = _mm512_mask_mov_epi16(all, 0x00ff0000, words(2));
    return _mm512_mask_mov_epi16(all, 0xff000000, words(3));
  }
  FEWBIT_QUAD_INLINE int zero_of(int i, int64_t g) const { return w_->zeros ? w_->zeros[at_[i] + g] : w_->zero; }

 private:
  int64_t at_[4];  // of the outputs' scales and zeros
  const CodesOf* w_;
};

// Codes of four bits. kZeros: with zeros of their own, or one other than 8.
template <bool kZeros>
class NibbleQuad : public CodeQuad {
 public:
  FEWBIT_QUAD_INLINE NibbleQuad(const CodesOf& w, int64_t o)
      : CodeQuad(w, o), lookup_(_mm512_load_si512(kZeros ? level_words().by_difference : level_words().by_code)) {}

 protected:
  // The levels of the codes of words, a register for each of their four.
  FEWBIT_QUAD_INLINE void of_words(__m512i words, __m512i* to) const {
    for (int j = 0; j < 4; ++j) to[j] = levels(j == 0 ? words : _mm512_srli_epi16(words, 4 * j));
  }
  __m512i zero_{};

 private:
  // The low nibbles of words.
  FEWBIT_QUAD_INLINE __m512i levels(__m512i words) const {
    if constexpr (kZeros) words = _mm512_sub_epi16(_mm512_and_si512(words, _mm512_set1_epi16(15)), zero_);
    return _mm512_permutexvar_epi16(words, lookup_);
  }
  __m512i lookup_;
};

// The levels of 32 columns of four rows, whose words of 16 bits hold four codes each.
template <bool kZeros>
class NibbleTileQuad : public NibbleQuad<kZeros> {
 public:
  static constexpr int kTiles = 1;
  FEWBIT_QUAD_INLINE NibbleTileQuad(const CodesOf& w, int64_t o) : NibbleQuad<kZeros>(w, o) {}
  FEWBIT_QUAD_INLINE void load(int64_t c, int64_t g, int quads) {
    const auto at = [&](int i) FEWBIT_QUAD_TARGET {
      if (c % 128 == 0) this->prefetch(i, c / 2, quads);
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(this->row[i] + c / 2));
    };
    words_ = _mm512_broadcast_i32x4(at(0));
    words_ = _mm512_mask_broadcast_i32x4(words_, 0x00f0, at(1));
    words_ = _mm512_mask_broadcast_i32x4(words_, 0x0f00, at(2));
    words_ = _mm512_mask_broadcast_i32x4(words_, 0xf000, at(3));
    if constexpr (kZeros) this->zero_ = this->zeros(g);
  }
  FEWBIT_QUAD_INLINE void tile(int, __m512i* to) const { this->of_words(words_, to); }

 private:
  __m512i words_;
};

// The same where whole 128 columns share a zero: out of a cache line of each row.
template <bool kZeros>
class NibbleLineQuad : public NibbleQuad<kZeros> {
 public:
  static constexpr int kTiles = 4;
  FEWBIT_QUAD_INLINE NibbleLineQuad(const CodesOf& w, int64_t o) : NibbleQuad<kZeros>(w, o) {}
  FEWBIT_QUAD_INLINE void load(int64_t c, int64_t g, int quads) {
    __m512i r[4];
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm512_loadu_si512(this->row[i] + c / 2);
      this->prefetch(i, c / 2, quads);
    }
    by_quarters(r, words_);
    if constexpr (kZeros) this->zero_ = this->zeros(g);
  }
  FEWBIT_QUAD_INLINE void tile(int t, __m512i* to) const { this->of_words(words_[t], to); }

 private:
  __m512i words_[4];
};

// Bytes less their zero: at most 8 bits and a sign, which bf16 holds.
class ByteQuad : public CodeQuad {
 public:
  static constexpr int kTiles = 1;
  FEWBIT_QUAD_INLINE ByteQuad(const CodesOf& w, int64_t o) : CodeQuad(w, o) {}
  FEWBIT_QUAD_INLINE void load(int64_t c, int64_t g, int quads) {
    for (int i = 0; i < 4; ++i) {
      const __m512i z = _mm512_set1_epi32(zero_of(i, g));
      levels_[i] = (__m512i)_mm512_cvtne2ps_pbh(floats(row[i] + c + 16, z), floats(row[i] + c, z));
      if (c % 64 == 0) prefetch(i, c, quads);
    }
  }
  FEWBIT_QUAD_INLINE void tile(int, __m512i* to) const { by_quarters(levels_, to); }

 private:
  FEWBIT_QUAD_INLINE static __m512 floats(const uint8_t* at, __m512i zero) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(some), zero));
  }
  __m512i levels_[4];
};

// E4M3: exponent and mantissa of a code in the place of a bf16's, with its bias; the eight subnormal ones from a table.
class F8Quad : public CodeQuad {
 public:
  static constexpr int kTiles = 1;
  FEWBIT_QUAD_INLINE F8Quad(const CodesOf& w, int64_t o) : CodeQuad(w, o) {}
  FEWBIT_QUAD_INLINE void load(int64_t c, int64_t, int quads) {
    for (int i = 0; i < 4; ++i) {
      levels_[i] = levels(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row[i] + c)));
      if (c % 64 == 0) prefetch(i, c, quads);
    }
  }
  FEWBIT_QUAD_INLINE void tile(int, __m512i* to) const { by_quarters(levels_, to); }

 private:
  FEWBIT_QUAD_INLINE static __m512i levels(__m256i bytes) {
    alignas(64) static constexpr uint16_t kSubnormal[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    const __m512i bias = _mm512_set1_epi16((127 - 7) << 7), magnitude = _mm512_set1_epi16(0x07f0);
    const __m512i codes = _mm512_cvtepi8_epi16(bytes), bits = _mm512_and_si512(_mm512_slli_epi16(codes, 4), magnitude);
    const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000)), quiet = _mm512_set1_epi16(0x7fc0);
    __m512i value = _mm512_add_epi16(bits, bias);
    value = _mm512_mask_permutexvar_epi16(value, _mm512_testn_epi16_mask(bits, _mm512_set1_epi16(0x0780)), codes,
                                          _mm512_load_si512(kSubnormal));
    value = _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(bits, magnitude), quiet);
    return _mm512_ternarylogic_epi64(value, codes, sign, 0xf8);
  }
  __m512i levels_[4];
};

template <class Quad>
QuadLoops loops_of(const CodesOf& w) {
  return quad_loops([w](int64_t o) FEWBIT_QUAD_TARGET { return Quad(w, o); });
}

}  // namespace

QuadLoops quad_loops(const RowPackedView& w) {
  const int64_t groups = w.scales.cols();
  const CodesOf codes{.codes = w.codes.as<uint8_t>(),
                      .scales = w.scales.as<float>(),
                      .zeros = w.zeros.data ? w.zeros.as<uint8_t>() : nullptr,
                      .zero = 1 << (w.bits - 1),
                      .out = w.out(),
                      .in = w.in,
                      .bytes = w.codes.cols(),
                      .groups = groups,
                      .segment = groups == 1 ? w.in : w.group};
  const bool zeros = codes.zeros || codes.zero != 8;
  if (w.bits > 4) return loops_of<ByteQuad>(codes);
  if (codes.segment % 128 == 0 && codes.in % 128 == 0)
    return (zeros ? loops_of<NibbleLineQuad<true>> : loops_of<NibbleLineQuad<false>>)(codes);
  return (zeros ? loops_of<NibbleTileQuad<true>> : loops_of<NibbleTileQuad<false>>)(codes);
}

QuadLoops quad_loops(const ByteWeightView& w) {
  const int64_t out = w.codes.rows(), in = w.codes.cols();
  return loops_of<F8Quad>({.codes = w.codes.as<uint8_t>(),
                           .scales = w.scales.as<float>(),
                           .zeros = nullptr,
                           .zero = 0,
                           .out = out,
                           .in = in,
                           .bytes = in,
                           .groups = 1,
                           .segment = in});
}

#else

QuadLoops quad_loops(const RowPackedView&) { return {}; }
QuadLoops quad_loops(const ByteWeightView&) { return {}; }

#endif

}  // namespace fewbit::cpu

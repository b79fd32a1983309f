// The dot products of nibble_dot.h in AVX2 and AVX512-BF16.
#include "kernels/products/nibble_dot.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/x86_loops.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kChunk = 64;         // columns of a step: 32 bytes of codes
constexpr int64_t kHalf = kChunk / 2;  // columns of half a step; a group has at least as many
constexpr int64_t kWide = 128;         // columns of a step of wide_products(): 64 bytes of codes, a register

int64_t chunks_of(int64_t in) { return (in + kChunk - 1) / kChunk; }

bool has_bf16_products() {
#ifdef FEWBIT_X86
  static const bool has =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return has;
#else
  return false;
#endif
}

bool has_avx2() {
#ifdef FEWBIT_X86
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
#else
  return false;
#endif
}

// Within every kStep columns those that are 0 modulo kPlanes, then those that are 1, and so on; zeros past the last
// one.
template <int64_t kStep, int64_t kPlanes, class From, class To>
void split_columns(const From* x, int64_t in, To* to) {
  for (int64_t start = 0; start < in; start += kStep)
    for (int64_t plane = 0; plane < kPlanes; ++plane)
      for (int64_t c = start + plane; c < start + kStep; c += kPlanes) *to++ = c < in ? static_cast<To>(x[c]) : To{};
}

// One row of the linear.
struct CodeRow {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;   // [G]
  const uint8_t* zeros = nullptr;  // [G] or null
  int zero = 8;                    // where zeros is null
  int64_t bytes = 0, chunks = 0;
  int64_t halves = 0;  // half steps in a group

  int zero_of(int64_t g) const { return zeros ? zeros[g] : zero; }
};

// Gives the group of one half step after the other, without a division in the loop.
class GroupCounter {
 public:
  explicit GroupCounter(const CodeRow& w) : halves_(w.halves), left_(w.halves) {}
  int64_t next() {
    if (left_ == 0) {
      ++group_;
      left_ = halves_;
    }
    --left_;
    return group_;
  }

 private:
  int64_t halves_, left_, group_ = 0;
};

#ifdef FEWBIT_X86

// The levels of codes 0 to 15 for every zero, as bf16 words and as bytes. A zero of 16 exists: GPTQ v1 stores zero - 1.
struct Levels {
  alignas(32) uint16_t words[17][16];
  alignas(16) int8_t bytes[17][16];
};
const Levels& levels() {
  static const Levels table = [] {
    Levels t{};
    for (int zero = 0; zero <= 16; ++zero)
      for (int code = 0; code < 16; ++code) {
        t.words[zero][code] = bf16(static_cast<float>(code - zero)).bits;
        t.bytes[zero][code] = static_cast<int8_t>(code - zero);
      }
    return t;
  }();
  return table;
}

#define FEWBIT_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define FEWBIT_AVX2_TARGET __attribute__((target("avx2,fma")))

FEWBIT_BF16_TARGET inline __m512i two_halves(const uint16_t* first, const uint16_t* second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_load_si256(reinterpret_cast<const __m256i*>(first))),
                            _mm256_load_si256(reinterpret_cast<const __m256i*>(second)), 1);
}

// kRows rows of x from `first` on, and the sums of their products.
template <int kRows>
struct RowSums {
  const uint16_t* x[kRows];
  __m512 total[kRows];
  FEWBIT_BF16_TARGET RowSums(const NibbleInput& input, int64_t first) {
    for (int r = 0; r < kRows; ++r) {
      x[r] = static_cast<const uint16_t*>(input.row(first + r));
      total[r] = _mm512_setzero_ps();
    }
  }
  FEWBIT_BF16_TARGET void store(float* sums) const {
    for (int r = 0; r < kRows; ++r) sums[r] = _mm512_reduce_add_ps(total[r]);
  }
};

// The loop of most checkpoints: groups of whole 128 columns. A 16-bit word of a register holds four codes. The
// permutation that looks levels up reads only the low five bits of an index: shifts and a mask are all there is between
// memory and levels.
template <int kRows>
FEWBIT_BF16_TARGET void wide_products(const CodeRow& w, const NibbleInput& x, int64_t first, float* sums) {
  const __m512i low = _mm512_set1_epi16(15);
  const auto& table = levels().words;
  RowSums<kRows> rows(x, first);
  __m512i lookup = two_halves(table[w.zero], table[w.zero]);
  const int64_t steps = w.bytes / 64, of_group = w.halves / 4;
  for (int64_t c = 0, g = 0; c < steps; ++g) {
    if (w.zeros) lookup = two_halves(table[w.zeros[g]], table[w.zeros[g]]);
    __m512 a[kRows], b[kRows];
    for (int r = 0; r < kRows; ++r) a[r] = b[r] = _mm512_setzero_ps();
    for (const int64_t end = c + of_group; c < end; ++c) {
      _mm_prefetch(reinterpret_cast<const char*>(w.codes) + c * 64 + kPrefetchBytes, _MM_HINT_T0);
      const __m512i codes = _mm512_loadu_si512(w.codes + c * 64);
      const __m512i level0 = _mm512_permutexvar_epi16(_mm512_and_si512(codes, low), lookup);
      const __m512i level1 = _mm512_permutexvar_epi16(_mm512_and_si512(_mm512_srli_epi16(codes, 4), low), lookup);
      const __m512i level2 = _mm512_permutexvar_epi16(_mm512_and_si512(_mm512_srli_epi16(codes, 8), low), lookup);
      const __m512i level3 = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), lookup);
      for (int r = 0; r < kRows; ++r) {
        const uint16_t* at = rows.x[r] + c * kWide;
        a[r] = _mm512_dpbf16_ps(a[r], (__m512bh)level0, (__m512bh)_mm512_loadu_si512(at));
        b[r] = _mm512_dpbf16_ps(b[r], (__m512bh)level1, (__m512bh)_mm512_loadu_si512(at + 32));
        a[r] = _mm512_dpbf16_ps(a[r], (__m512bh)level2, (__m512bh)_mm512_loadu_si512(at + 64));
        b[r] = _mm512_dpbf16_ps(b[r], (__m512bh)level3, (__m512bh)_mm512_loadu_si512(at + 96));
      }
    }
    const __m512 scale = _mm512_set1_ps(w.scales[g]);
    for (int r = 0; r < kRows; ++r) rows.total[r] = _mm512_fmadd_ps(_mm512_add_ps(a[r], b[r]), scale, rows.total[r]);
  }
  rows.store(sums);
}

// Any groups of whole 32 columns. A permutation of words looks up 32 levels at once; one instruction multiplies 32 of
// them with bf16 values of x and adds pairs in f32. The two halves of a step may belong to two groups: the levels of
// each lie in one half of the lookup register.
template <int kRows>
FEWBIT_BF16_TARGET void bf16_products(const CodeRow& w, const NibbleInput& x, int64_t first, float* sums) {
  const __m512i second_half = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  const __m512i low = _mm512_set1_epi16(15);
  const auto& table = levels().words;
  RowSums<kRows> rows(x, first);
  GroupCounter group(w);
  __m512i lookup = two_halves(table[w.zero], table[w.zero]);
  for (int64_t c = 0; c < w.chunks; ++c) {
    const int64_t left = w.bytes - c * 32;
    if (c % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(w.codes) + c * 32 + kPrefetchBytes, _MM_HINT_T0);
    const auto* at = reinterpret_cast<const __m256i*>(w.codes + c * 32);
    const __m512i words =
        _mm512_cvtepu8_epi16(left >= 32 ? _mm256_loadu_si256(at) : _mm256_maskz_loadu_epi8((1u << left) - 1, at));
    // Past the last column codes and x are zeros: their group does not matter.
    const int64_t g0 = group.next(), g1 = left > 16 ? group.next() : g0;
    if (w.zeros) lookup = two_halves(table[w.zeros[g0]], table[w.zeros[g1]]);
    __m512 scale = _mm512_set1_ps(w.scales[g0]);
    if (g0 != g1) scale = _mm512_insertf32x8(scale, _mm256_set1_ps(w.scales[g1]), 1);
    const __m512i even = _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_and_si512(words, low), second_half), lookup);
    const __m512i odd = _mm512_permutexvar_epi16(_mm512_or_si512(_mm512_srli_epi16(words, 4), second_half), lookup);
    for (int r = 0; r < kRows; ++r) {
      const uint16_t* x_at = rows.x[r] + c * kChunk;
      __m512 both = _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)even, (__m512bh)_mm512_loadu_si512(x_at));
      both = _mm512_dpbf16_ps(both, (__m512bh)odd, (__m512bh)_mm512_loadu_si512(x_at + kHalf));
      rows.total[r] = _mm512_fmadd_ps(both, scale, rows.total[r]);
    }
  }
  rows.store(sums);
}

// Adds 16 levels (bytes) times 16 values of x: the first eight products to a, the others to b.
FEWBIT_AVX2_TARGET inline void add_sixteen(__m128i level, const float* x, __m256& a, __m256& b) {
  a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(level)), _mm256_loadu_ps(x), a);
  b = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(level, 8))), _mm256_loadu_ps(x + 8), b);
}

FEWBIT_AVX2_TARGET void avx2_products(const CodeRow& w, const NibbleInput& x, int64_t row, float* sum) {
  const __m128i low = _mm_set1_epi8(15);
  const auto& table = levels().bytes;
  const auto* xs = static_cast<const float*>(x.row(row));
  __m256 total = _mm256_setzero_ps();
  GroupCounter group(w);
  for (int64_t c = 0; c < w.chunks; ++c)
    for (int half = 0; half < 2; ++half) {
      const int64_t byte = c * 32 + half * 16, left = w.bytes - byte;
      if (left <= 0) break;
      alignas(16) uint8_t tail[16] = {};
      if (left < 16) std::copy_n(w.codes + byte, left, tail);
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(left < 16 ? tail : w.codes + byte));
      const int64_t g = group.next();
      const __m128i lookup = _mm_load_si128(reinterpret_cast<const __m128i*>(table[w.zero_of(g)]));
      const float* at = xs + c * kChunk + half * (kHalf / 2);
      __m256 a = _mm256_setzero_ps(), b = _mm256_setzero_ps();
      add_sixteen(_mm_shuffle_epi8(lookup, _mm_and_si128(bytes, low)), at, a, b);
      add_sixteen(_mm_shuffle_epi8(lookup, _mm_and_si128(_mm_srli_epi16(bytes, 4), low)), at + kHalf, a, b);
      total = _mm256_fmadd_ps(_mm256_add_ps(a, b), _mm256_set1_ps(w.scales[g]), total);
    }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, total);
  *sum = ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

#endif

}  // namespace

NibbleInput::NibbleInput(const RowPackedView& w, ConstTensorView x)
    : rows_(x.rows()), words_(x.dtype == DType::bf16 && has_bf16_products()) {
  const int64_t in = x.cols(), padded = chunks_of(in) * kChunk;
  by_four_ = words_ && in % kWide == 0 && (w.scales.cols() == 1 || w.group % kWide == 0);
  row_bytes_ = padded * (words_ ? 2 : 4);
  auto* to = reinterpret_cast<char*>(scratch(Scratch::x, rows_ * padded));
  data_ = to;
  for (int64_t r = 0; r < rows_; ++r, to += row_bytes_) {
    if (words_)
      (by_four_ ? split_columns<kWide, 4, uint16_t, uint16_t>
                : split_columns<kChunk, 2, uint16_t, uint16_t>)(static_cast<const uint16_t*>(x.data) + r * in, in,
                                                                reinterpret_cast<uint16_t*>(to));
    else
      for_float_type(x.dtype, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        split_columns<kChunk, 2>(static_cast<const T*>(x.data) + r * in, in, reinterpret_cast<float*>(to));
      });
  }
}

bool nibble_dots_fit(const RowPackedView& w) {
  const int64_t groups = w.scales.cols();
  return has_avx2() && w.bits <= 4 && !w.group_of.data && (groups == 1 || w.group % kHalf == 0);
}

void nibble_dots(const RowPackedView& w, const NibbleInput& x, int64_t o, float* sums) {
  const int64_t groups = w.scales.cols();
  [[maybe_unused]] const CodeRow row{.codes = w.codes.as<uint8_t>() + o * w.codes.cols(),
                                     .scales = w.scales.as<float>() + o * groups,
                                     .zeros = w.zeros.data ? w.zeros.as<uint8_t>() + o * groups : nullptr,
                                     .zero = 1 << (w.bits - 1),
                                     .bytes = w.codes.cols(),
                                     .chunks = chunks_of(w.in),
                                     .halves = groups == 1 ? 2 * chunks_of(w.in) : w.group / kHalf};
#ifdef FEWBIT_X86
  int64_t r = 0;
  if (!x.bf16_words()) {
    for (; r < x.rows(); ++r) avx2_products(row, x, r, sums + r);
    return;
  }
  for (; r + kRowsAtOnce <= x.rows(); r += kRowsAtOnce)
    (x.by_four() ? wide_products<kRowsAtOnce> : bf16_products<kRowsAtOnce>)(row, x, r, sums + r);
  for (; r < x.rows(); ++r) (x.by_four() ? wide_products<1> : bf16_products<1>)(row, x, r, sums + r);
#else
  bug("no vector loops on this machine");
#endif
}

}  // namespace fewbit::cpu

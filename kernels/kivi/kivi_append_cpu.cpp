// Rows first, then the groups of keys that they complete, read back from the recent rows.
#include "kernels/kivi/kivi_append.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

// The scale and zero of a group that goes from `low` to `high`.
struct Numbers {
  bf16 scale, zero;
};

// Of n values, `step` apart.
Numbers numbers_of(const float* x, int64_t step, int bits) {
  float low = x[0], high = x[0];
  bool finite = true;
  for (int i = 0; i < kKiviGroup; ++i) {
    const float value = x[i * step];
    finite = finite && std::isfinite(value);
    low = std::min(low, value), high = std::max(high, value);
  }
  const bf16 nan(std::numeric_limits<float>::quiet_NaN());
  if (!finite) return {nan, nan};
  const bf16 zero(kivi_low(low));
  return {bf16(kivi_step(zero, high, bits)), zero};
}

// Where a token and kv head lie in the cache.
struct Place {
  int64_t head, position;  // head: of all sequences, [batch * kv_heads]
};

struct Cache {
  const KiviCache& c;
  int64_t d = 0, capacity = 0, ring = 0, row_bytes = 0;

  explicit Cache(const KiviCache& cache)
      : c(cache),
        d(cache.k_recent.shape[3]),
        capacity(cache.k.shape[2]),
        ring(cache.k_recent.shape[2]),
        row_bytes(cache.k.shape[3]) {}
  int64_t recent_row(Place p) const { return p.head * ring + p.position % ring; }
  int64_t row(Place p) const { return p.head * capacity + p.position; }
};

// Codes of a row of d features, to bytes; number_of(feature) has the scale and zero.
template <class F>
void code_row(const float* x, int64_t d, int bits, uint8_t* to, F&& number_of) {
  const int each = 8 / bits;
  for (int64_t i = 0; i < d / each; ++i) {
    int byte = 0;
    for (int f = 0; f < each; ++f) {
      const Numbers& n = number_of(i * each + f);
      byte |= kivi_code(x[i * each + f], n.zero, kivi_inverse(n.scale), bits) << (f * bits);
    }
    to[i] = static_cast<uint8_t>(byte);
  }
}

template <class T>
void append_row(const Cache& cache, const T* k, const T* v, Place p) {
  const int64_t d = cache.d, recent = cache.recent_row(p) * d;
  std::copy_n(k, d, cache.c.k_recent.as<T>() + recent);
  std::copy_n(v, d, cache.c.v_recent.as<T>() + recent);
  float* x = scratch(Scratch::x, d);
  widen(v, x, d);
  Numbers* numbers = reinterpret_cast<Numbers*>(cache.c.v_scales.as<bf16>()) + cache.row(p) * (d / kKiviGroup);
  for (int64_t g = 0; g < d / kKiviGroup; ++g) numbers[g] = numbers_of(x + g * kKiviGroup, 1, cache.c.bits);
  code_row(x, d, cache.c.bits, cache.c.v.as<uint8_t>() + cache.row(p) * cache.row_bytes,
           [&](int64_t feature) -> const Numbers& { return numbers[feature / kKiviGroup]; });
}

// The keys of the group that ends with position p.
template <class T>
void code_keys(const Cache& cache, Place p) {
  const int64_t d = cache.d;
  p.position -= kKiviGroup - 1;
  float* x = scratch(Scratch::x, kKiviGroup * d);
  widen(cache.c.k_recent.as<T>() + cache.recent_row(p) * d, x, kKiviGroup * d);
  Numbers* numbers = reinterpret_cast<Numbers*>(cache.c.k_scales.as<bf16>()) + cache.row(p) / kKiviGroup * d;
  for (int64_t c = 0; c < d; ++c) numbers[c] = numbers_of(x + c, d, cache.c.bits);
  for (int64_t i = 0; i < kKiviGroup; ++i)
    code_row(x + i * d, d, cache.c.bits, cache.c.k.as<uint8_t>() + (cache.row(p) + i) * cache.row_bytes,
             [&](int64_t feature) -> const Numbers& { return numbers[feature]; });
}

}  // namespace

void kivi_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KiviCache& c) {
  const Cache cache(c);
  const int64_t batch = c.k.shape[0], heads = c.k.shape[1], rows = k.rows(), len = rows / batch;
  FEWBIT_ASSERT(rows % batch == 0 && consistent(c, k.dtype, len) && k.cols() == heads * cache.d);
  FEWBIT_ASSERT(v.dtype == k.dtype && v.numel() == k.numel());
  FEWBIT_ASSERT(positions.numel() == rows && positions.dtype == DType::i32);
  const int32_t* at = positions.as<int32_t>();
  const auto each = [&](auto&& work) {
    parallel_for(rows * heads, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        work(i, Place{.head = i / heads / len * heads + i % heads, .position = at[i / heads]});
    });
  };
  for_float_type(k.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    each([&](int64_t i, Place p) {
      FEWBIT_ASSERT(p.position >= 0 && p.position < cache.capacity);
      append_row(cache, k.as<T>() + i * cache.d, v.as<T>() + i * cache.d, p);
    });
    each([&](int64_t, Place p) {
      if (p.position % kKiviGroup == kKiviGroup - 1) code_keys<T>(cache, p);
    });
  });
}

}  // namespace fewbit::cpu

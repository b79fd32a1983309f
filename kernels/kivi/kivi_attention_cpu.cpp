// Query by query, key by key, in the order of the positions, so that a result does not depend on the queries beside it;
// blocks of queries share only what the codes of a group of tokens are widened to.
#include "kernels/kivi/kivi_attention.h"

#include <algorithm>

#include "kernels/attention/cache_codes.h"
#include "kernels/cpu/cpu_rows.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kQueryBlock = 64;

// A byte's codes to values, feature by feature; scales: scale and zero in turn, `share` features to a pair.
template <int kBits>
FEWBIT_HOT_INLINE void widen_bytes(const uint8_t* codes, const bf16* scales, int64_t share, int64_t d, float* y) {
  constexpr int kEach = 8 / kBits, kMask = (1 << kBits) - 1;
  for (int64_t i = 0; i < d / kEach; ++i)
    for (int f = 0; f < kEach; ++f) {
      const int64_t feature = i * kEach + f, pair = 2 * (feature / share);
      const auto code = static_cast<float>(codes[i] >> (f * kBits) & kMask);
      y[feature] = scales[pair + 1] + code * scales[pair];
    }
}
FEWBIT_HOT void widen_key(const uint8_t* codes, const bf16* scales, int bits, int64_t d, float* y) {
  bits == 2 ? widen_bytes<2>(codes, scales, 1, d, y) : widen_bytes<4>(codes, scales, 1, d, y);
}
FEWBIT_HOT void widen_value(const uint8_t* codes, const bf16* scales, int bits, int64_t d, float* y) {
  bits == 2 ? widen_bytes<2>(codes, scales, kKiviGroup, d, y) : widen_bytes<4>(codes, scales, kKiviGroup, d, y);
}

// One query head of one sequence over its kv head.
template <class T>
struct Head {
  const KiviCache& cache;
  const AttentionArgs& args;
  int64_t kv_head = 0;  // of all sequences
  const T* q = nullptr;
  T* out = nullptr;
  int64_t ld = 0;  // of q and out
  const int32_t* positions = nullptr;
  float sink = 0;

  int64_t d() const { return args.head_dim; }
  // The 32 keys, or values, from position `first` on as their codes say them.
  float* widened(int64_t first, bool keys) const {
    const TensorView codes = keys ? cache.k : cache.v, scales = keys ? cache.k_scales : cache.v_scales;
    const int64_t row = kv_head * codes.shape[2] + first, bytes = codes.shape[3];
    float* y = scratch(Scratch::w, kKiviGroup * d());
    for (int64_t i = 0; i < kKiviGroup; ++i) {
      const uint8_t* from = codes.as<uint8_t>() + (row + i) * bytes;
      if (keys)
        widen_key(from, scales.as<bf16>() + row / kKiviGroup * 2 * d(), cache.bits, d(), y + i * d());
      else
        widen_value(from, scales.as<bf16>() + (row + i) * 2 * (d() / kKiviGroup), cache.bits, d(), y + i * d());
    }
    return y;
  }
  const T* recent(int64_t position, bool keys) const {
    const TensorView rows = keys ? cache.k_recent : cache.v_recent;
    return rows.as<T>() + (kv_head * rows.shape[2] + position % rows.shape[2]) * d();
  }
};

// Calls f(query, position, row) for every key (or value) that queries [q0, q1) see, group of tokens by group, a query's
// own in the order of their positions; row is f32 where it was widened, else of the activations' type.
template <class T, class F>
void for_rows(const Head<T>& head, int64_t q0, int64_t q1, bool keys, F&& f) {
  int64_t begin = head.positions[q0], end = 0;
  for (int64_t i = q0; i < q1; ++i) {
    const Span s = keys_in_sight(head.args, head.positions[i]);
    begin = std::min(begin, s.begin), end = std::max(end, s.end);
  }
  for (int64_t first = begin / kKiviGroup * kKiviGroup; first < end; first += kKiviGroup) {
    const float* wide = nullptr;
    for (int64_t i = q0; i < q1; ++i) {
      const int64_t p = head.positions[i];
      const Span s = keys_in_sight(head.args, p);
      const int64_t last = std::min<int64_t>(first + kKiviGroup, s.end);
      const bool coded = first < kivi_coded(p);
      for (int64_t j = std::max(first, s.begin); j < last; ++j) {
        if (!coded) {
          f(i, j, head.recent(j, keys));
          continue;
        }
        if (!wide) wide = head.widened(first, keys);
        f(i, j, wide + (j - first) * head.d());
      }
    }
  }
}

template <class T>
void attend(const Head<T>& head, int64_t q0, int64_t q1) {
  const int64_t d = head.d(), n = head.cache.k.shape[2];
  float* queries = scratch(Scratch::x, (q1 - q0) * d);
  for (int64_t i = q0; i < q1; ++i) widen(head.q + i * head.ld, queries + (i - q0) * d, d);
  float* scores = scratch(Scratch::scores, (q1 - q0) * n);  // of position j in column j
  for_rows(head, q0, q1, true, [&](int64_t i, int64_t j, const auto* key) {
    scores[(i - q0) * n + j] = head.args.scale * dot(queries + (i - q0) * d, key, d);
  });
  float* values = scratch(Scratch::y, (q1 - q0) * d);
  std::fill_n(values, (q1 - q0) * d, 0.f);
  double sums[kQueryBlock];
  for (int64_t i = q0; i < q1; ++i) {
    const Span s = keys_in_sight(head.args, head.positions[i]);
    sums[i - q0] = weights_of(scores + (i - q0) * n + s.begin, s.end - s.begin, head.args, head.sink);
  }
  for_rows(head, q0, q1, false, [&](int64_t i, int64_t j, const auto* value) {
    axpy(scores[(i - q0) * n + j], value, values + (i - q0) * d, d);
  });
  for (int64_t i = q0; i < q1; ++i) store_mean(values + (i - q0) * d, sums[i - q0], d, head.out + i * head.ld);
}

}  // namespace

void kivi_attention(Exec&, ConstTensorView q, ConstTensorView positions, const KiviCache& cache, const AttentionArgs& a,
                    TensorView out) {
  check_queries(q, a, out);
  const int64_t batch = cache.k.shape[0], len = q.rows() / batch, blocks = (len + kQueryBlock - 1) / kQueryBlock;
  FEWBIT_ASSERT(q.rows() % batch == 0 && consistent(cache, q.dtype, len));
  FEWBIT_ASSERT(cache.k.shape[1] == a.kv_heads && cache.k_recent.shape[3] == a.head_dim);
  FEWBIT_ASSERT(positions.numel() == q.rows() && positions.dtype == DType::i32);
  for_float_type(q.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(batch * a.heads * blocks, 1, [&](int64_t task, int64_t) {
      const int64_t block = task % blocks, h = task / blocks % a.heads, b = task / blocks / a.heads;
      const int64_t at = b * len * q.cols() + h * a.head_dim;
      const Head<T> head{.cache = cache,
                         .args = a,
                         .kv_head = b * a.kv_heads + h / (a.heads / a.kv_heads),
                         .q = q.as<T>() + at,
                         .out = out.as<T>() + at,
                         .ld = q.cols(),
                         .positions = positions.as<int32_t>() + b * len,
                         .sink = sink_of(a, h)};
      attend(head, block * kQueryBlock, std::min(len, (block + 1) * kQueryBlock));
    });
  });
}

}  // namespace fewbit::cpu

// Causal attention on the CPU, one (sequence, head) at a time in parallel. Blocks of queries go through two
// BLAS products (scores, then values) over the span of keys that any of them sees; a few queries (decode) go
// key by key, straight from the storage type. Scores and softmax in f32, the softmax's sum in double.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/blas_cpu.h"
#include "kernels/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kQueryBlock = 128;
constexpr int64_t kFewQueries = 4;

// One head of one sequence: rows `ld` elements apart.
struct Rows {
  const void* data = nullptr;
  int64_t ld = 0;
};
struct Head {
  DType dtype = DType::f32;
  Rows q{}, k{}, v{};
  const int32_t* positions = nullptr;  // null: query i stands at position i
  int64_t queries = 0, keys = 0;       // keys: how many rows of k and v exist
  void* out = nullptr;
  int64_t out_ld = 0;
};

struct Span {
  int64_t begin = 0, end = 0;
};

// The keys that query i sees.
Span visible(const Head& head, const AttentionArgs& a, int64_t i) {
  const int64_t p = head.positions ? head.positions[i] : i;
  FEWBIT_ASSERT(p >= 0 && p < head.keys);
  return {a.window > 0 ? std::max<int64_t>(0, p - a.window + 1) : 0, p + 1};
}

// Scores of the visible keys to weights; returns their sum.
double softmax(float* scores, int64_t n, const AttentionArgs& a) {
  if (a.softcap > 0)
    for (int64_t i = 0; i < n; ++i) scores[i] = a.softcap * std::tanh(scores[i] / a.softcap);
  return exp_in_place(scores, max_of(scores, n), n);
}

template <class T>
void store(const float* values, double sum, int64_t n, T* out) {
  const auto inverse = static_cast<float>(1 / sum);
  for (int64_t c = 0; c < n; ++c) out[c] = values[c] * inverse;
}

template <class T>
void few_queries(const Head& head, const AttentionArgs& a) {
  const int64_t d = a.head_dim;
  for (int64_t i = 0; i < head.queries; ++i) {
    const Span span = visible(head, a, i);
    const int64_t n = span.end - span.begin;
    float* query = scratch(Scratch::x, d);
    widen(static_cast<const T*>(head.q.data) + i * head.q.ld, query, d);
    float* scores = scratch(Scratch::scores, n);
    for (int64_t j = 0; j < n; ++j)
      scores[j] = a.scale * dot(query, static_cast<const T*>(head.k.data) + (span.begin + j) * head.k.ld, d);
    const double sum = softmax(scores, n, a);
    float* values = scratch(Scratch::y, d);
    std::fill_n(values, d, 0.f);
    for (int64_t j = 0; j < n; ++j)
      axpy(scores[j], static_cast<const T*>(head.v.data) + (span.begin + j) * head.v.ld, values, d);
    store(values, sum, d, static_cast<T*>(head.out) + i * head.out_ld);
  }
}

struct Floats {
  const float* data = nullptr;
  int64_t ld = 0;
};

// f32 rows [begin, end) of one operand: in place where they are f32 already, else widened into the slot.
template <class T>
Floats as_f32(const Rows& rows, Span span, int64_t d, Scratch slot) {
  const T* first = static_cast<const T*>(rows.data) + span.begin * rows.ld;
  if constexpr (std::is_same_v<T, float>) {
    return {first, rows.ld};
  } else {
    float* wide = scratch(slot, (span.end - span.begin) * d);
    for (int64_t r = 0; r < span.end - span.begin; ++r) widen(first + r * rows.ld, wide + r * d, d);
    return {wide, d};
  }
}

template <class T>
void query_block(const Head& head, const AttentionArgs& a, int64_t q0, int64_t q1) {
  const int64_t d = a.head_dim;
  Span keys = visible(head, a, q0);
  for (int64_t i = q0 + 1; i < q1; ++i) {
    const Span s = visible(head, a, i);
    keys = {std::min(keys.begin, s.begin), std::max(keys.end, s.end)};
  }
  const int64_t n = keys.end - keys.begin;
  float* scores = scratch(Scratch::scores, (q1 - q0) * n);
  const Floats q = as_f32<T>(head.q, {q0, q1}, d, Scratch::x);
  const Floats k = as_f32<T>(head.k, keys, d, Scratch::w);
  blas::gemm(CblasNoTrans, CblasTrans, q1 - q0, n, d, a.scale, q.data, q.ld, k.data, k.ld, 0.f, scores, n);
  double sums[kQueryBlock];
  for (int64_t i = q0; i < q1; ++i) {
    const Span s = visible(head, a, i);
    float* row = scores + (i - q0) * n;
    sums[i - q0] = softmax(row + (s.begin - keys.begin), s.end - s.begin, a);
    std::fill(row, row + (s.begin - keys.begin), 0.f);
    std::fill(row + (s.end - keys.begin), row + n, 0.f);
  }
  const Floats v = as_f32<T>(head.v, keys, d, Scratch::w);
  float* values = scratch(Scratch::y, (q1 - q0) * d);
  blas::gemm(CblasNoTrans, CblasNoTrans, q1 - q0, d, n, 1.f, scores, n, v.data, v.ld, 0.f, values, d);
  for (int64_t i = q0; i < q1; ++i)
    store(values + (i - q0) * d, sums[i - q0], d, static_cast<T*>(head.out) + i * head.out_ld);
}

void attend(const Head& head, const AttentionArgs& a) {
  blas::use_one_thread();
  for_float_type(head.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (head.queries <= kFewQueries) return few_queries<T>(head, a);
    for (int64_t q0 = 0; q0 < head.queries; q0 += kQueryBlock)
      query_block<T>(head, a, q0, std::min(head.queries, q0 + kQueryBlock));
  });
}

const void* at(ConstTensorView t, int64_t element) {
  return static_cast<const char*>(t.data) + element * bytes_of(t.dtype);
}
void* at(TensorView t, int64_t element) { return static_cast<char*>(t.data) + element * bytes_of(t.dtype); }

void check_queries(ConstTensorView q, const AttentionArgs& a, ConstTensorView out) {
  FEWBIT_ASSERT(a.kv_heads > 0 && a.heads % a.kv_heads == 0 && q.cols() == a.heads * a.head_dim);
  FEWBIT_ASSERT(out.dtype == q.dtype && out.numel() == q.numel());
}

}  // namespace

void attention(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs,
               const AttentionArgs& a, TensorView out) {
  check_queries(q, a, out);
  const int64_t kv_cols = a.kv_heads * a.head_dim;
  FEWBIT_ASSERT(seqs > 0 && q.rows() % seqs == 0 && k.rows() == q.rows() && v.rows() == q.rows());
  FEWBIT_ASSERT(k.cols() == kv_cols && v.cols() == kv_cols && k.dtype == q.dtype && v.dtype == q.dtype);
  const int64_t len = q.rows() / seqs;
  parallel_for(seqs * a.heads, 1, [&](int64_t task, int64_t) {
    const int64_t s = task / a.heads, h = task % a.heads, kv = h / (a.heads / a.kv_heads);
    const int64_t q_at = s * len * q.cols() + h * a.head_dim, kv_at = s * len * kv_cols + kv * a.head_dim;
    attend({.dtype = q.dtype,
            .q = {at(q, q_at), q.cols()},
            .k = {at(k, kv_at), kv_cols},
            .v = {at(v, kv_at), kv_cols},
            .queries = len,
            .keys = len,
            .out = at(out, q_at),
            .out_ld = q.cols()},
           a);
  });
}

void kv_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, TensorView k_cache,
               TensorView v_cache) {
  const Shape& c = k_cache.shape;
  FEWBIT_ASSERT(c.rank() == 4 && v_cache.shape == c && k.rows() % c[0] == 0 && k.cols() == c[1] * c[3]);
  FEWBIT_ASSERT(v.numel() == k.numel() && positions.numel() == k.rows() && positions.dtype == DType::i32);
  FEWBIT_ASSERT(k.dtype == k_cache.dtype && v.dtype == v_cache.dtype);
  const int64_t len = k.rows() / c[0], d = c[3];
  const auto bytes = static_cast<size_t>(d * bytes_of(k.dtype));
  for (int64_t t = 0; t < k.rows(); ++t) {
    const int64_t p = positions.as<int32_t>()[t];
    FEWBIT_ASSERT(p >= 0 && p < c[2]);
    for (int64_t h = 0; h < c[1]; ++h) {
      const int64_t from = t * k.cols() + h * d, to = ((t / len * c[1] + h) * c[2] + p) * d;
      std::copy_n(static_cast<const char*>(at(k, from)), bytes, static_cast<char*>(at(k_cache, to)));
      std::copy_n(static_cast<const char*>(at(v, from)), bytes, static_cast<char*>(at(v_cache, to)));
    }
  }
}

void attention_cached(Exec&, ConstTensorView q, ConstTensorView positions, ConstTensorView k_cache,
                      ConstTensorView v_cache, const AttentionArgs& a, TensorView out) {
  check_queries(q, a, out);
  const Shape& c = k_cache.shape;
  FEWBIT_ASSERT(c.rank() == 4 && v_cache.shape == c && c[1] == a.kv_heads && c[3] == a.head_dim &&
                q.rows() % c[0] == 0);
  FEWBIT_ASSERT(positions.numel() == q.rows() && positions.dtype == DType::i32);
  FEWBIT_ASSERT(k_cache.dtype == q.dtype && v_cache.dtype == q.dtype);
  const int64_t len = q.rows() / c[0];
  parallel_for(c[0] * a.heads, 1, [&](int64_t task, int64_t) {
    const int64_t b = task / a.heads, h = task % a.heads, kv = h / (a.heads / a.kv_heads);
    const int64_t q_at = b * len * q.cols() + h * a.head_dim,
                  kv_at = (b * a.kv_heads + kv) * c[2] * a.head_dim;
    attend({.dtype = q.dtype,
            .q = {at(q, q_at), q.cols()},
            .k = {at(k_cache, kv_at), a.head_dim},
            .v = {at(v_cache, kv_at), a.head_dim},
            .positions = positions.as<int32_t>() + b * len,
            .queries = len,
            .keys = c[2],
            .out = at(out, q_at),
            .out_ld = q.cols()},
           a);
  });
}

}  // namespace fewbit::cpu

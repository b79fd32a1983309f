// Causal attention on the CPU; a head of a sequence is a task, and tasks run in parallel. Blocks of queries go through
// two products (scores, then values) over the span of keys that any of them sees; a few queries (decode) go key by key,
// straight from the storage type. Scores and weights are f32, the sum of the weights is double. Codes of a quantized
// cache become f32 values row by row. Whole sequences in bf16 go through the matrix unit where there is one, with
// weights rounded to bf16 as on a GPU; all else through BLAS.
#include "kernels/attention/attention.h"

#include <algorithm>
#include <limits>

#include "kernels/attention/cache_codes.h"
#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/tile_matmul.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/model/hadamard.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kQueryBlock = 128;  // queries of a BLAS product
constexpr int64_t kTileQueries = 64;  // of a product of the matrix unit: their scores stay in the second cache
constexpr int64_t kFewQueries = 4;    // up to so many a product over widened keys is not worth the widening

// The rows of one operand of one head, `ld` elements apart. Where they are codes, row r has the scales (ScaleOf) from
// scales[r * scale_step] on.
struct Rows {
  const void* data = nullptr;
  int64_t ld = 0;
  const void* scales = nullptr;
  int64_t scale_step = 0;

  template <class C>
  const ScaleOf<C>* scales_of(int64_t r) const {
    return static_cast<const ScaleOf<C>*>(scales) + r * scale_step;
  }
};
// One query head of one sequence with its kv head.
struct Head {
  DType dtype = DType::f32, kv_dtype = DType::f32;
  Rows q{}, k{}, v{};
  const int32_t* positions = nullptr;  // null: query i stands at position i
  int64_t queries = 0, keys = 0;       // keys: how many rows of k and v exist
  void* out = nullptr;
  int64_t out_ld = 0;
  float sink = -std::numeric_limits<float>::infinity();
};

// The keys that query i sees.
Span visible(const Head& head, const AttentionArgs& a, int64_t i) {
  const int64_t p = head.positions ? head.positions[i] : i;
  FEWBIT_ASSERT(p >= 0 && p < head.keys);
  return keys_in_sight(a, p);
}

// Row r as dot() and axpy() take it: in place, or codes as f32 values in scratch memory.
template <class C>
auto row_of(const Rows& rows, int64_t r, int64_t d) {
  const C* row = static_cast<const C*>(rows.data) + r * rows.ld;
  if constexpr (is_code<C>) {
    float* values = scratch(Scratch::w, d);
    dequantize_row(row, rows.scales_of<C>(r), values, d);
    return static_cast<const float*>(values);
  } else {
    return row;
  }
}

// Each query on its own, key by key. T: the type of queries and output, C: of keys and values.
template <class T, class C>
void few_queries(const Head& head, const AttentionArgs& a) {
  const int64_t d = a.head_dim;
  for (int64_t i = 0; i < head.queries; ++i) {
    const Span span = visible(head, a, i);
    const int64_t n = span.end - span.begin;
    float* query = scratch(Scratch::x, d);
    widen(static_cast<const T*>(head.q.data) + i * head.q.ld, query, d);
    float* scores = scratch(Scratch::scores, n);
    if constexpr (is_code<C>)
      for (int64_t j = 0; j < n; ++j) scores[j] = a.scale * dot(query, row_of<C>(head.k, span.begin + j, d), d);
    else
      dots(query, a.scale, row_of<C>(head.k, span.begin, d), head.k.ld, n, d, scores);
    const double sum = weights_of(scores, n, a, head.sink);
    float* values = scratch(Scratch::y, d);
    std::fill_n(values, d, 0.f);
    if constexpr (is_code<C>)
      for (int64_t j = 0; j < n; ++j) axpy(scores[j], row_of<C>(head.v, span.begin + j, d), values, d);
    else
      add_rows(scores, row_of<C>(head.v, span.begin, d), head.v.ld, n, values, d);
    store_mean(values, sum, d, static_cast<T*>(head.out) + i * head.out_ld);
  }
}

// f32 rows, `ld` elements apart.
struct Floats {
  const float* data = nullptr;
  int64_t ld = 0;
};

// The rows of `span` as f32: in place where they are f32 already, else widened into the scratch slot.
template <class T>
Floats as_f32(const Rows& rows, Span span, int64_t d, Scratch slot) {
  const T* first = static_cast<const T*>(rows.data) + span.begin * rows.ld;
  if constexpr (std::is_same_v<T, float>) {
    return {first, rows.ld};
  } else {
    float* wide = scratch(slot, (span.end - span.begin) * d);
    for (int64_t r = 0; r < span.end - span.begin; ++r) {
      if constexpr (is_code<T>)
        dequantize_row(first + r * rows.ld, rows.scales_of<T>(span.begin + r), wide + r * d, d);
      else
        widen(first + r * rows.ld, wide + r * d, d);
    }
    return {wide, d};
  }
}

// Queries [q0, q1) by two products over all keys that any of them sees; keys that a query does not see get the weight
// 0.
template <class T, class C>
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
  const Floats k = as_f32<C>(head.k, keys, d, Scratch::w);
  blas::gemm(CblasNoTrans, CblasTrans, q1 - q0, n, d, a.scale, q.data, q.ld, k.data, k.ld, 0.f, scores, n);
  double sums[kQueryBlock];
  for (int64_t i = q0; i < q1; ++i) {
    const Span s = visible(head, a, i);
    float* row = scores + (i - q0) * n;
    sums[i - q0] = weights_of(row + (s.begin - keys.begin), s.end - s.begin, a, head.sink);
    std::fill(row, row + (s.begin - keys.begin), 0.f);
    std::fill(row + (s.end - keys.begin), row + n, 0.f);
  }
  const Floats v = as_f32<C>(head.v, keys, d, Scratch::w);
  float* values = scratch(Scratch::y, (q1 - q0) * d);
  blas::gemm(CblasNoTrans, CblasNoTrans, q1 - q0, d, n, 1.f, scores, n, v.data, v.ld, 0.f, values, d);
  for (int64_t i = q0; i < q1; ++i)
    store_mean(values + (i - q0) * d, sums[i - q0], d, static_cast<T*>(head.out) + i * head.out_ld);
}

FEWBIT_HOT void scale_row(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// A head's keys and values as right factors: of the scores (head_dim x keys) and of the means (keys x head_dim).
struct HeadTiles {
  RightTiles k{}, v{};
};

HeadTiles tiles_of(const Head& head, int64_t d) {
  const int64_t keys = head.keys, k_values = right_values(d, keys), v_values = right_values(keys, d);
  auto* room = reinterpret_cast<uint16_t*>(scratch(Scratch::w, (k_values + v_values) / 2));
  pack_right_transposed(static_cast<const bf16*>(head.k.data), head.k.ld, d, keys, 0, whole_tiles(keys), room);
  pack_right(static_cast<const bf16*>(head.v.data), head.v.ld, keys, d, 0, whole_tiles(d), room + k_values);
  return {{.k = d, .n = keys, .data = room}, {.k = keys, .n = d, .data = room + k_values}};
}

// Queries [q0, q1) of a head through the matrix unit. The keys are cut where its tiles end, wherever the queries begin,
// so that a row's bits do not depend on the rows beside it.
void tile_block(const Head& head, const HeadTiles& tiles, const AttentionArgs& a, int64_t q0, int64_t q1) {
  const int64_t d = a.head_dim, rows = q1 - q0, t1 = whole_tiles(q1), d_cols = whole_tiles(d) * kPanelCols;
  const int64_t t0 = keys_in_sight(a, q0).begin / kTileDepth, first = t0 * kTileDepth, n = t1 * kTileDepth - first;
  float* scores = scratch(Scratch::scores, rows * n);
  tile_matmul(left_rows(static_cast<const bf16*>(head.q.data) + q0 * head.q.ld, head.q.ld), rows, tiles.k,
              {.p0 = t0, .p1 = t1, .t0 = 0, .t1 = whole_tiles(d)}, scores, n);
  const int64_t ld = n + kTileDepth;  // rows do not all begin in the same set of the cache
  auto* weights = reinterpret_cast<bf16*>(scratch(Scratch::x, (rows * ld + 1) / 2));
  double sums[kTileQueries];
  for (int64_t i = 0; i < rows; ++i) {
    const Span s = visible(head, a, q0 + i);
    const int64_t begin = s.begin - first, end = s.end - first;
    float* row = scores + i * n;
    bf16* to = weights + i * ld;
    scale_row(row + begin, a.scale, end - begin);
    sums[i] = weights_of(row + begin, end - begin, a, head.sink);
    narrow(row + begin, to + begin, end - begin);
    std::fill(to, to + begin, bf16{});
    std::fill(to + end, to + n, bf16{});
  }
  float* values = scratch(Scratch::y, rows * d_cols);
  tile_matmul(left_rows(weights, ld), rows, tiles.v, {.p0 = 0, .p1 = whole_tiles(d), .t0 = t0, .t1 = t1}, values,
              d_cols);
  for (int64_t i = 0; i < rows; ++i)
    store_mean(values + i * d_cols, sums[i], d, static_cast<bf16*>(head.out) + (q0 + i) * head.out_ld);
}

// A whole sequence of a head through the matrix unit.
void attend_by_tiles(const Head& head, const AttentionArgs& a) {
  const HeadTiles tiles = tiles_of(head, a.head_dim);
  for (int64_t q0 = 0; q0 < head.queries; q0 += kTileQueries)
    tile_block(head, tiles, a, q0, std::min(head.queries, q0 + kTileQueries));
}

// All queries of a head.
void attend(const Head& head, const AttentionArgs& a) {
  blas::use_one_thread();
  for_cache_types(head.dtype, head.kv_dtype, [&](auto* type, auto* kv_type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using C = std::remove_pointer_t<decltype(kv_type)>;
    if (head.queries <= kFewQueries) return few_queries<T, C>(head, a);
    for (int64_t q0 = 0; q0 < head.queries; q0 += kQueryBlock)
      query_block<T, C>(head, a, q0, std::min(head.queries, q0 + kQueryBlock));
  });
}

const void* at(ConstTensorView t, int64_t element) {
  return static_cast<const char*>(t.data) + element * bytes_of(t.dtype);
}
void* at(TensorView t, int64_t element) { return static_cast<char*>(t.data) + element * bytes_of(t.dtype); }

// Appends to one tensor of the cache: row t of x [batch * len, kv_heads * d] goes to positions[t].
template <class T, class C>
void append(ConstTensorView x, const int32_t* positions, TensorView cache, TensorView scales) {
  const int64_t heads = cache.shape[1], capacity = cache.shape[2], d = x.cols() / heads;
  const int64_t len = x.rows() / cache.shape[0];
  parallel_for(x.rows() * heads, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / heads, h = i % heads;
      FEWBIT_ASSERT(positions[t] >= 0 && positions[t] < capacity);
      const T* from = x.as<T>() + i * d;
      const int64_t row = (t / len * heads + h) * capacity + positions[t];
      C* to = static_cast<C*>(cache.data) + row * cache.shape[3];
      if constexpr (is_code<C>) {
        float* wide = scratch(Scratch::x, d);
        widen(from, wide, d);
        quantize_row(wide, to, scales_of_row<C>(scales, h, row), d);
      } else {
        std::copy_n(from, d, to);
      }
    }
  });
}

}  // namespace

void attention(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs, const AttentionArgs& a,
               TensorView out) {
  check_queries(q, a, out);
  const int64_t kv_cols = a.kv_heads * a.head_dim;
  FEWBIT_ASSERT(seqs > 0 && q.rows() % seqs == 0 && k.rows() == q.rows() && v.rows() == q.rows());
  FEWBIT_ASSERT(k.cols() == kv_cols && v.cols() == kv_cols && k.dtype == q.dtype && v.dtype == q.dtype);
  const int64_t len = q.rows() / seqs;
  const bool tiles = q.dtype == DType::bf16 && a.head_dim % kTileDepth == 0 && has_tiles();
  parallel_for(seqs * a.heads, 1, [&](int64_t task, int64_t) {
    const int64_t s = task / a.heads, h = task % a.heads, kv = h / (a.heads / a.kv_heads);
    const int64_t q_at = s * len * q.cols() + h * a.head_dim, kv_at = s * len * kv_cols + kv * a.head_dim;
    const Head head{.dtype = q.dtype,
                    .kv_dtype = q.dtype,
                    .q = {at(q, q_at), q.cols()},
                    .k = {at(k, kv_at), kv_cols},
                    .v = {at(v, kv_at), kv_cols},
                    .queries = len,
                    .keys = len,
                    .out = at(out, q_at),
                    .out_ld = q.cols(),
                    .sink = sink_of(a, h)};
    tiles ? attend_by_tiles(head, a) : attend(head, a);
  });
}

void kv_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache& cache) {
  const Shape& c = cache.k.shape;
  FEWBIT_ASSERT(consistent(cache, k.dtype) && k.rows() % c[0] == 0 && k.cols() == c[1] * head_dim_of(cache));
  FEWBIT_ASSERT(v.dtype == k.dtype && v.numel() == k.numel());
  FEWBIT_ASSERT(positions.numel() == k.rows() && positions.dtype == DType::i32);
  for_cache_types(k.dtype, cache.k.dtype, [&](auto* type, auto* kv_type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using C = std::remove_pointer_t<decltype(kv_type)>;
    append<T, C>(k, positions.as<int32_t>(), cache.k, cache.k_scales);
    append<T, C>(v, positions.as<int32_t>(), cache.v, cache.v_scales);
  });
}

void attention_cached(Exec& ex, ConstTensorView q, ConstTensorView positions, const KvCache& cache,
                      const AttentionArgs& a, TensorView out) {
  check_queries(q, a, out);
  const Shape& c = cache.k.shape;
  FEWBIT_ASSERT(consistent(cache, q.dtype) && c[1] == a.kv_heads && head_dim_of(cache) == a.head_dim);
  FEWBIT_ASSERT(q.rows() % c[0] == 0);
  FEWBIT_ASSERT(positions.numel() == q.rows() && positions.dtype == DType::i32);
  const int64_t len = q.rows() / c[0];
  parallel_for(c[0] * a.heads, 1, [&](int64_t task, int64_t) {
    const int64_t b = task / a.heads, h = task % a.heads, kv = h / (a.heads / a.kv_heads);
    const int64_t q_at = b * len * q.cols() + h * a.head_dim, kv_row = (b * a.kv_heads + kv) * c[2];
    const auto rows = [&](TensorView codes, TensorView scales) {
      Rows r{.data = at(codes, kv_row * c[3]), .ld = c[3]};
      if (!scales.data) return r;
      const bool per_token = scales.shape.rank() > 1, groups = scales.shape.rank() == 4;
      r.scale_step = groups ? scales.shape[3] / 2 : per_token;
      r.scales = at(scales, groups ? kv_row * scales.shape[3] : per_token ? kv_row : kv);
      return r;
    };
    attend({.dtype = q.dtype,
            .kv_dtype = cache.k.dtype,
            .q = {at(q, q_at), q.cols()},
            .k = rows(cache.k, cache.k_scales),
            .v = rows(cache.v, cache.v_scales),
            .positions = positions.as<int32_t>() + b * len,
            .queries = len,
            .keys = c[2],
            .out = at(out, q_at),
            .out_ld = q.cols(),
            .sink = sink_of(a, h)},
           a);
  });
  if (a.turn_back) cpu::hadamard(ex, out, out.row_range(0, 0), a.head_dim);
}

}  // namespace fewbit::cpu

bool fewbit::consistent(const KvCache& c, DType compute) {
  const Shape& s = c.k.shape;
  if (s.rank() != 4 || !(c.v.shape == s) || c.v.dtype != c.k.dtype) return false;
  if (c.k.dtype == compute) return true;
  const bool groups = c.k.dtype == DType::u8;
  if (!groups && c.k.dtype != DType::f8_e4m3 && c.k.dtype != DType::i8) return false;
  const Shape scales = groups                        ? Shape{s[0], s[1], s[2], 2 * int4_groups(2 * s[3])}
                       : c.k.dtype == DType::f8_e4m3 ? Shape{s[1]}
                                                     : Shape{s[0], s[1], s[2]};
  const DType type = groups ? DType::bf16 : DType::f32;
  return c.k_scales.dtype == type && c.v_scales.dtype == type && c.k_scales.shape == scales &&
         c.v_scales.shape == scales;
}

// Attention over pages on the CPU: a kv head of a run of rows is a task. The keys that any of its queries sees are
// widened once, then scored query by query; the values likewise.
#include "kernels/attention/paged_attention.h"

#include <vector>

#include "kernels/attention/cache_codes.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

// One tensor of the cache with its scales, and where the rows of a sequence lie in it.
struct Pages {
  TensorView cache, scales;
  int64_t heads, head, d;
  // The row of a position: page after page, head after head.
  int64_t row(const int32_t* table, int64_t position) const {
    const int64_t page = table[position / kPagePositions];
    FEWBIT_ASSERT(page >= 0 && page < cache.shape[0]);
    return (page * heads + head) * kPagePositions + position % kPagePositions;
  }
  float* scale(int64_t row) const { return scales.as<float>() + (scales.shape.rank() == 1 ? head : row); }
};

// Rows [span.begin, span.end) of a sequence as f32, [n, d].
template <class C>
void widen_span(const Pages& p, const int32_t* table, Span span, float* to) {
  for (int64_t at = span.begin; at < span.end; ++at, to += p.d) {
    const int64_t row = p.row(table, at);
    const C* from = static_cast<const C*>(p.cache.data) + row * p.d;
    if constexpr (is_code<C>)
      dequantize_row(from, *p.scale(row), to, p.d);
    else
      widen(from, to, p.d);
  }
}

template <class T, class C>
void append(ConstTensorView x, const PagedRows& rows, TensorView cache, TensorView scales) {
  const int64_t heads = cache.shape[1], d = cache.shape[3];
  for (size_t r = 0; r < rows.runs.size(); ++r)
    for (int64_t t = rows.runs[r].begin; t < rows.runs[r].end; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const Pages pages{cache, scales, heads, h, d};
        const int64_t row = pages.row(rows.table(r), rows.positions.as<int32_t>()[t]);
        const T* from = x.as<T>() + (t * heads + h) * d;
        C* to = static_cast<C*>(cache.data) + row * d;
        if constexpr (is_code<C>) {
          float* wide = scratch(Scratch::x, d);
          widen(from, wide, d);
          *pages.scale(row) = quantize_row(wide, to, *pages.scale(row), d);
        } else {
          std::copy_n(from, d, to);
        }
      }
}

// The queries of one run that read one kv head.
struct Task {
  ConstTensorView q;
  TensorView out;
  const AttentionArgs& a;
  const int32_t* positions;
  const int32_t* table;
  RowRun run;
  int64_t kv_head;

  int64_t each() const { return a.heads / a.kv_heads; }
  Span sight(int64_t t) const {
    FEWBIT_ASSERT(positions[t] >= 0);
    return keys_in_sight(a, positions[t]);
  }
  int64_t column(int64_t i) const { return (kv_head * each() + i) * a.head_dim; }
};

template <class T, class C>
void attend(const Task& task, const KvCache& cache) {
  const AttentionArgs& a = task.a;
  const int64_t d = a.head_dim, each = task.each(), width = task.q.cols();
  Span all = task.sight(task.run.begin);
  for (int64_t t = task.run.begin + 1; t < task.run.end; ++t)
    all = {std::min(all.begin, task.sight(t).begin), std::max(all.end, task.sight(t).end)};
  const int64_t n = all.end - all.begin, count = (task.run.end - task.run.begin) * each;
  float* wide = scratch(Scratch::w, n * d);
  float* scores = scratch(Scratch::scores, count * n);
  float* query = scratch(Scratch::x, d);
  std::vector<double> sums(static_cast<size_t>(count));
  widen_span<C>({cache.k, cache.k_scales, a.kv_heads, task.kv_head, d}, task.table, all, wide);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = task.run.begin + i / each, column = task.column(i % each);
    const Span span = task.sight(t);
    widen(task.q.as<T>() + t * width + column, query, d);
    const float* keys = wide + (span.begin - all.begin) * d;
    for (int64_t j = 0; j < span.end - span.begin; ++j) scores[i * n + j] = a.scale * dot(query, keys + j * d, d);
    sums[static_cast<size_t>(i)] =
        weights_of(scores + i * n, span.end - span.begin, a, sink_of(a, task.kv_head * each + i % each));
  }
  widen_span<C>({cache.v, cache.v_scales, a.kv_heads, task.kv_head, d}, task.table, all, wide);
  float* mean = scratch(Scratch::y, d);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = task.run.begin + i / each;
    const Span span = task.sight(t);
    const float* values = wide + (span.begin - all.begin) * d;
    std::fill_n(mean, d, 0.f);
    for (int64_t j = 0; j < span.end - span.begin; ++j) axpy(scores[i * n + j], values + j * d, mean, d);
    store_mean(mean, sums[static_cast<size_t>(i)], d, task.out.as<T>() + t * width + task.column(i % each));
  }
}

void check(const PagedRows& rows, int64_t count) {
  FEWBIT_ASSERT(rows.positions.dtype == DType::i32 && rows.positions.numel() == count);
  FEWBIT_ASSERT(rows.tables.dtype == DType::i32 && rows.tables.rows() == std::ssize(rows.runs));
  for (const RowRun& r : rows.runs) FEWBIT_ASSERT(r.begin < r.end && r.end <= count);
}

}  // namespace

void kv_append_paged(Exec&, ConstTensorView k, ConstTensorView v, const PagedRows& rows, const KvCache& cache) {
  const Shape& c = cache.k.shape;
  check(rows, k.rows());
  FEWBIT_ASSERT(consistent(cache, k.dtype) && c[2] == kPagePositions && k.cols() == c[1] * c[3]);
  FEWBIT_ASSERT(v.dtype == k.dtype && v.numel() == k.numel());
  for_cache_types(k.dtype, cache.k.dtype, [&](auto* type, auto* kv_type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using C = std::remove_pointer_t<decltype(kv_type)>;
    append<T, C>(k, rows, cache.k, cache.k_scales);
    append<T, C>(v, rows, cache.v, cache.v_scales);
  });
}

void attention_paged(Exec&, ConstTensorView q, const PagedRows& rows, const KvCache& cache, const AttentionArgs& a,
                     TensorView out) {
  const Shape& c = cache.k.shape;
  check_queries(q, a, out);
  check(rows, q.rows());
  FEWBIT_ASSERT(consistent(cache, q.dtype) && c[1] == a.kv_heads && c[2] == kPagePositions && c[3] == a.head_dim);
  for_cache_types(q.dtype, cache.k.dtype, [&](auto* type, auto* kv_type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using C = std::remove_pointer_t<decltype(kv_type)>;
    parallel_for(std::ssize(rows.runs) * a.kv_heads, 1, [&](int64_t i, int64_t) {
      const auto run = static_cast<size_t>(i / a.kv_heads);
      attend<T, C>({q, out, a, rows.positions.as<int32_t>(), rows.table(run), rows.runs[run], i % a.kv_heads}, cache);
    });
  });
}

}  // namespace fewbit::cpu

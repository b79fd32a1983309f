// Attention over pages on the CPU: a kv head of a run of rows is a task. A few queries go along the keys together,
// straight from the storage type; for many the keys that any of them sees are widened once, then scored query by query.
// The values likewise, and either way with the same sums in the same order.
#include "kernels/attention/paged_attention.h"

#include <array>
#include <vector>

#include "kernels/attention/cache_codes.h"
#include "kernels/model/hadamard.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

// One tensor of the cache with its scales, and where the rows of a sequence lie in it.
struct Pages {
  TensorView cache, scales;
  int64_t heads, head, d;
  // The row of a position: page after page, head after head.
  int64_t row(const int32_t* table, int64_t position) const {
    const int64_t positions = cache.shape[2];
    if (positions != kPagePositions) {  // one page
      FEWBIT_ASSERT(position < positions);
      return (table[0] * heads + head) * positions + position;
    }
    const int64_t page = table[position / kPagePositions];
    FEWBIT_ASSERT(page >= 0 && page < cache.shape[0]);
    return (page * heads + head) * kPagePositions + position % kPagePositions;
  }
};

// Rows [span.begin, span.end) of a sequence as f32, [n, d].
template <class C>
void widen_span(const Pages& p, const int32_t* table, Span span, float* to) {
  for (int64_t at = span.begin; at < span.end; ++at, to += p.d) {
    const int64_t row = p.row(table, at);
    const C* from = static_cast<const C*>(p.cache.data) + row * p.cache.shape[3];
    if constexpr (is_code<C>)
      dequantize_row(from, scales_of_row<C>(p.scales, p.head, row), to, p.d);
    else
      widen(from, to, p.d);
  }
}

template <class T, class C>
void append(ConstTensorView x, const PagedRows& rows, TensorView cache, TensorView scales) {
  const int64_t heads = cache.shape[1], d = x.cols() / heads;
  for (size_t r = 0; r < rows.runs.size(); ++r)
    for (int64_t t = rows.runs[r].begin; t < rows.runs[r].end; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const Pages pages{cache, scales, heads, h, d};
        const int64_t row = pages.row(rows.table(r), rows.positions.as<int32_t>()[t]);
        const T* from = x.as<T>() + (t * heads + h) * d;
        C* to = static_cast<C*>(cache.data) + row * cache.shape[3];
        if constexpr (is_code<C>) {
          float* wide = scratch(Scratch::x, d);
          widen(from, wide, d);
          quantize_row(wide, to, scales_of_row<C>(scales, h, row), d);
        } else {
          std::copy_n(from, d, to);
        }
      }
}

// Up to so many queries read a row where it lies: a row of f32 that was written to memory first is no nearer then.
constexpr int64_t kFewQueries = 16;

// Query heads [begin, end) of one run that read one kv head.
struct Task {
  ConstTensorView q;
  TensorView out;
  const AttentionArgs& a;
  const int32_t* positions;
  const int32_t* table;
  RowRun run;
  int64_t kv_head;
  int64_t begin, end;

  int64_t each() const { return end - begin; }
  Span sight(int64_t t) const {
    FEWBIT_ASSERT(positions[t] >= 0);
    return keys_in_sight(a, positions[t]);
  }
  Span sight() const {  // of all queries
    Span all = sight(run.begin);
    for (int64_t t = run.begin + 1; t < run.end; ++t)
      all = {std::min(all.begin, sight(t).begin), std::max(all.end, sight(t).end)};
    return all;
  }
  // Query i: a head of a row.
  int64_t count() const { return (run.end - run.begin) * each(); }
  int64_t row(int64_t i) const { return run.begin + i / each(); }
  int64_t head(int64_t i) const { return begin + i % each(); }
  int64_t at(int64_t i) const { return row(i) * q.cols() + head(i) * a.head_dim; }  // in q and out
};

// Rows of positions that lie in one page, `ld` elements apart: in place, or codes as f32 values in scratch memory.
template <class R>
struct PageRows {
  const R* first;
  int64_t ld;
};
template <class C>
auto rows_at(const Pages& p, const int32_t* table, Span positions) {
  if constexpr (is_code<C>) {
    float* values = scratch(Scratch::w, kPagePositions * p.d);
    widen_span<C>(p, table, positions, values);
    return PageRows<float>{values, p.d};
  } else {
    const int64_t ld = p.cache.shape[3];
    return PageRows<C>{static_cast<const C*>(p.cache.data) + p.row(table, positions.begin) * ld, ld};
  }
}

template <class T, class C>
void attend_in_place(const Task& task, const KvCache& cache) {
  const AttentionArgs& a = task.a;
  const int64_t d = a.head_dim, count = task.count();
  const Span all = task.sight();
  const int64_t n = all.end - all.begin;
  const Pages k{cache.k, cache.k_scales, a.kv_heads, task.kv_head, d};
  const Pages v{cache.v, cache.v_scales, a.kv_heads, task.kv_head, d};
  float* scores = scratch(Scratch::scores, count * n);
  float* queries = scratch(Scratch::x, count * d);
  float* means = scratch(Scratch::y, count * d);
  std::array<Span, kFewQueries> spans;
  std::array<double, kFewQueries> sums;
  for (int64_t i = 0; i < count; ++i) {
    widen(task.q.as<T>() + task.at(i), queries + i * d, d);
    spans[static_cast<size_t>(i)] = task.sight(task.row(i));
  }
  // Page by page f(i, the rows of it that query i sees, how many, their scores).
  const auto by_pages = [&](const Pages& p, auto&& f) {
    for (int64_t at = all.begin, end = at; at < all.end; at = end) {
      end = std::min(all.end, (at / kPagePositions + 1) * kPagePositions);
      const auto rows = rows_at<C>(p, task.table, {at, end});
      for (int64_t i = 0; i < count; ++i) {
        const Span s = spans[static_cast<size_t>(i)];
        const int64_t begin = std::max(at, s.begin), stop = std::min(end, s.end);
        if (begin >= stop) continue;
        auto seen = rows;
        seen.first += (begin - at) * rows.ld;
        f(i, seen, stop - begin, scores + i * n + begin - s.begin);
      }
    }
  };
  by_pages(k, [&](int64_t i, auto keys, int64_t seen, float* of_query) {
    dots(queries + i * d, a.scale, keys.first, keys.ld, seen, d, of_query);
  });
  for (int64_t i = 0; i < count; ++i) {
    const Span s = spans[static_cast<size_t>(i)];
    sums[static_cast<size_t>(i)] = weights_of(scores + i * n, s.end - s.begin, a, sink_of(a, task.head(i)));
  }
  std::fill_n(means, count * d, 0.f);
  by_pages(v, [&](int64_t i, auto values, int64_t seen, const float* weights) {
    add_rows(weights, values.first, values.ld, seen, means + i * d, d);
  });
  for (int64_t i = 0; i < count; ++i)
    store_mean(means + i * d, sums[static_cast<size_t>(i)], d, task.out.as<T>() + task.at(i));
}

template <class T, class C>
void attend_widened(const Task& task, const KvCache& cache) {
  const AttentionArgs& a = task.a;
  const int64_t d = a.head_dim, count = task.count();
  const Span all = task.sight();
  const int64_t n = all.end - all.begin;
  float* wide = scratch(Scratch::w, n * d);
  float* scores = scratch(Scratch::scores, count * n);
  float* query = scratch(Scratch::x, d);
  std::vector<double> sums(static_cast<size_t>(count));
  widen_span<C>({cache.k, cache.k_scales, a.kv_heads, task.kv_head, d}, task.table, all, wide);
  for (int64_t i = 0; i < count; ++i) {
    const Span span = task.sight(task.row(i));
    widen(task.q.as<T>() + task.at(i), query, d);
    const float* keys = wide + (span.begin - all.begin) * d;
    dots(query, a.scale, keys, d, span.end - span.begin, d, scores + i * n);
    sums[static_cast<size_t>(i)] = weights_of(scores + i * n, span.end - span.begin, a, sink_of(a, task.head(i)));
  }
  widen_span<C>({cache.v, cache.v_scales, a.kv_heads, task.kv_head, d}, task.table, all, wide);
  float* mean = scratch(Scratch::y, d);
  for (int64_t i = 0; i < count; ++i) {
    const Span span = task.sight(task.row(i));
    const float* values = wide + (span.begin - all.begin) * d;
    std::fill_n(mean, d, 0.f);
    add_rows(scores + i * n, values, d, span.end - span.begin, mean, d);
    store_mean(mean, sums[static_cast<size_t>(i)], d, task.out.as<T>() + task.at(i));
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
  FEWBIT_ASSERT(consistent(cache, k.dtype) && k.cols() == c[1] * head_dim_of(cache));
  FEWBIT_ASSERT(v.dtype == k.dtype && v.numel() == k.numel());
  for_cache_types(k.dtype, cache.k.dtype, [&](auto* type, auto* kv_type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using C = std::remove_pointer_t<decltype(kv_type)>;
    append<T, C>(k, rows, cache.k, cache.k_scales);
    append<T, C>(v, rows, cache.v, cache.v_scales);
  });
}

void attention_paged(Exec& ex, ConstTensorView q, const PagedRows& rows, const KvCache& cache, const AttentionArgs& a,
                     TensorView out) {
  const Shape& c = cache.k.shape;
  check_queries(q, a, out);
  check(rows, q.rows());
  FEWBIT_ASSERT(consistent(cache, q.dtype) && c[1] == a.kv_heads);
  FEWBIT_ASSERT(head_dim_of(cache) == a.head_dim);
  for_cache_types(q.dtype, cache.k.dtype, [&](auto* type, auto* kv_type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using C = std::remove_pointer_t<decltype(kv_type)>;
    // The query heads of a kv head share its rows, unless threads would have nothing to do then.
    const int64_t group = a.heads / a.kv_heads, tasks = std::ssize(rows.runs) * a.kv_heads;
    const int64_t parts = tasks < thread_count() ? group : 1;
    parallel_for(tasks * parts, 1, [&](int64_t i, int64_t) {
      const auto run = static_cast<size_t>(i / parts / a.kv_heads);
      const int64_t first = i % (a.kv_heads * parts) * (group / parts);
      const Task task{q,
                      out,
                      a,
                      rows.positions.as<int32_t>(),
                      rows.table(run),
                      rows.runs[run],
                      first / group,
                      first,
                      first + group / parts};
      task.count() <= kFewQueries ? attend_in_place<T, C>(task, cache) : attend_widened<T, C>(task, cache);
    });
  });
  if (a.turn_back) cpu::hadamard(ex, out, out.row_range(0, 0), a.head_dim);
}

}  // namespace fewbit::cpu

namespace fewbit {

RowPlaces row_places(std::span<const RowRun> runs) {
  RowPlaces p;
  for (size_t r = 0; r < runs.size(); ++r) {
    const auto run = static_cast<int32_t>(r);
    const int64_t rows = runs[r].end - runs[r].begin;
    FEWBIT_ASSERT(runs[r].begin == std::ssize(p.table_of) && rows > 0);
    p.table_of.insert(p.table_of.end(), static_cast<size_t>(rows), run);
    if (rows <= kSingleRows && p.tiles.empty()) {
      p.single = runs[r].end;
      continue;
    }
    for (int64_t at = runs[r].begin; at < runs[r].end; at += kTileRows)
      for (const int64_t x : {at, std::min(kTileRows, runs[r].end - at), static_cast<int64_t>(run), int64_t{0}})
        p.tiles.push_back(static_cast<int32_t>(x));
  }
  return p;
}

}  // namespace fewbit

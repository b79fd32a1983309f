// The append to pages and attention over them on every device, against the CPU half: rows of many sequences at once,
// pages that hold NaN where nothing was written, results that were NaN before.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/attention/rope_append.h"
#include "kernels/kv/int4_rows.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// New rows of a sequence behind its context: steps, a draft, and chunks of prompts of one tile and of two.
struct Sequence {
  int64_t context, rows;
};
const std::vector<Sequence> kSequences = {{700, 1}, {33, 1}, {0, 1}, {260, 3}, {0, 20}, {130, 100}};

struct Heads {
  int heads, kv_heads;
  int64_t d;
};

// All bits set: NaN of every type that has one.
Tensor spoiled(DType dtype, const Shape& shape) {
  Tensor t = Tensor::host(dtype, shape);
  std::memset(t.view().data, 0xff, static_cast<size_t>(t.bytes()));
  return t;
}

struct Pages {
  Tensor k, v, k_scales, v_scales;
  KvCache view() const { return {.k = k, .v = v, .k_scales = k_scales, .v_scales = v_scales}; }
};
Pages pages_of(DType dtype, DType stored, int64_t pages, const Heads& h) {
  const Shape shape{pages, h.kv_heads, kPagePositions, stored == DType::u8 ? h.d / 2 : h.d};
  Pages p{spoiled(stored, shape), spoiled(stored, shape), {}, {}};
  if (stored == dtype) return p;
  const Shape rows{pages, h.kv_heads, kPagePositions};
  for (Tensor* t : {&p.k_scales, &p.v_scales})
    if (stored == DType::f8_e4m3) {
      *t = Tensor::host(DType::f32, {h.kv_heads});
      for (int64_t i = 0; i < h.kv_heads; ++i) t->as<float>()[i] = .02f * static_cast<float>(i + 1);
    } else {
      *t = stored == DType::i8 ? spoiled(DType::f32, rows)
                               : spoiled(DType::bf16, {pages, h.kv_heads, kPagePositions, 2 * int4_groups(h.d)});
    }
  return p;
}
Pages on(Exec& ex, const Pages& p) {
  const auto there = [&](const Tensor& t) { return t.empty() ? Tensor{} : ex.to_device(t); };
  return {there(p.k), there(p.v), there(p.k_scales), there(p.v_scales)};
}

// The rows of a pass, on a device.
struct Pass {
  std::vector<RowRun> runs;
  Tensor tables, positions, table_of, tiles;
  int64_t single = 0, splits = 0;
  int64_t rows() const { return positions.numel(); }
  PagedRows view() const {
    PagedRows r{.runs = runs, .tables = tables, .positions = positions, .table_of = table_of};
    if (!tiles.empty()) r.tiles = tiles;
    r.single = single, r.splits = splits;
    return r;
  }
};
// Rows [first, last) of each sequence by its own count, with `none` rows that are none behind them.
Pass pass_of(Exec& ex, const Tensor& tables, const std::vector<std::pair<int64_t, int64_t>>& spans, int64_t none = 0) {
  Pass p;
  std::vector<int32_t> positions;
  for (const auto& [first, last] : spans) {
    const auto row = static_cast<int64_t>(positions.size());
    p.runs.push_back({row, row + last - first});
    for (int64_t at = first; at < last; ++at) positions.push_back(static_cast<int32_t>(at));
  }
  RowPlaces places = row_places(p.runs);
  positions.insert(positions.end(), static_cast<size_t>(none), 0);
  places.table_of.insert(places.table_of.end(), static_cast<size_t>(none), -1);
  p.tables = ex.to_device(tables.view().row_range(0, std::ssize(p.runs)));
  p.positions = ex.to_device(host_i32(positions));
  p.table_of = ex.to_device(host_i32(places.table_of));
  p.single = places.tiles.empty() ? std::ssize(positions) : places.single;
  if (!places.tiles.empty()) p.tiles = ex.to_device(host_i32(places.tiles));
  return p;
}

// A page for every block of every sequence, in no order; blocks that a window has left are held by none.
Tensor random_tables(int64_t pages, int64_t window, const std::vector<Sequence>& sequences) {
  std::vector<int32_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  Rng rng(3, "pages");
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  int64_t blocks = 0;
  for (const Sequence& s : sequences) blocks = std::max(blocks, pages_for(s.context + s.rows));
  Tensor tables = Tensor::host(DType::i32, {std::ssize(sequences), blocks + 1});
  std::fill_n(tables.as<int32_t>(), tables.numel(), -1);
  size_t taken = 0;
  for (size_t i = 0; i < sequences.size(); ++i)
    for (int64_t b = 0; b < pages_for(sequences[i].context + sequences[i].rows); ++b) {
      const int32_t page = order[taken++];
      if (window > 0 && (b + 1) * kPagePositions <= sequences[i].context - window + 1) continue;
      tables.as<int32_t>()[static_cast<int64_t>(i) * (blocks + 1) + b] = page;
    }
  return tables;
}
int64_t pages_needed() {
  int64_t n = 3;
  for (const Sequence& s : kSequences) n += pages_for(s.context + s.rows);
  return n;
}

// The cache with the keys and values of all positions, by the CPU half.
Pages filled(DType dtype, DType stored, const Heads& h, const Tensor& tables) {
  Exec cpu = Exec::cpu();
  Pages pages = pages_of(dtype, stored, pages_needed(), h);
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (const Sequence& s : kSequences) spans.emplace_back(0, s.context + s.rows);
  const Pass all = pass_of(cpu, tables, spans);
  const Tensor k = random_normal(dtype, {all.rows(), h.kv_heads * h.d}, 2), v = random_normal(dtype, k.shape(), 3);
  kv_append_paged(cpu, k, v, all.view(), pages.view());
  return pages;
}

std::vector<std::pair<int64_t, int64_t>> new_rows() {
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (const Sequence& s : kSequences) spans.emplace_back(s.context, s.context + s.rows);
  return spans;
}

AttentionArgs args_of(const Heads& h) {
  return {.heads = h.heads, .kv_heads = h.kv_heads, .head_dim = h.d, .scale = 1 / std::sqrt(static_cast<float>(h.d))};
}

void attend_like_the_cpu(Exec& ex, DType dtype, DType stored, const Heads& h, const AttentionArgs& a,
                         const Tensor& sinks) {
  Exec cpu = Exec::cpu();
  const Tensor whole = random_tables(pages_needed(), 0, kSequences);
  const Tensor seen = random_tables(pages_needed(), a.window, kSequences);
  const Pages host = filled(dtype, stored, h, whole), there = on(ex, host);
  const Pass here = pass_of(cpu, seen, new_rows());
  const Tensor q = random_normal(dtype, {here.rows(), h.heads * h.d}, 1), expected = Tensor::host(dtype, q.shape());
  AttentionArgs on_cpu = a, on_device = a;
  const Tensor device_sinks = sinks.empty() ? Tensor{} : ex.to_device(sinks);
  if (!sinks.empty()) on_cpu.sinks = sinks, on_device.sinks = device_sinks;
  attention_paged(cpu, q, here.view(), host.view(), on_cpu, expected);
  for (const int64_t splits : {0, 3}) {
    Pass pass = pass_of(ex, seen, new_rows());
    pass.splits = splits;
    const Tensor out = poisoned(ex, dtype, q.shape());
    attention_paged(ex, ex.to_device(q), pass.view(), there.view(), on_device, out);
    EXPECT_LE(relative_error(ex.to_host(out), expected), product_tolerance(dtype))
        << name_of(dtype) << " over " << name_of(stored) << ", " << h.heads << "/" << h.kv_heads << " heads of " << h.d
        << ", window " << a.window << ", chunk " << a.chunk << ", splits " << splits;
  }
}

FEWBIT_DEVICE_TEST(PagedAttention, OverEveryTypeOfCache) {
  for (const Heads h : {Heads{8, 2, 64}, Heads{4, 1, 128}, Heads{24, 2, 64}, Heads{3, 3, 80}, Heads{2, 1, 256}})
    for (const DType stored : {DType::bf16, DType::f8_e4m3, DType::i8, DType::u8})
      if (stored != DType::u8 || h.d != 80) attend_like_the_cpu(ex, DType::bf16, stored, h, args_of(h), {});
  for (const DType stored : {DType::f32, DType::f8_e4m3, DType::i8, DType::u8})
    attend_like_the_cpu(ex, DType::f32, stored, {4, 2, 64}, args_of({4, 2, 64}), {});
  attend_like_the_cpu(ex, DType::bf16, DType::bf16, {4, 2, 20}, args_of({4, 2, 20}), {});
}

FEWBIT_DEVICE_TEST(PagedAttention, WithWindowsSinksCapsAndChunks) {
  const Heads h{8, 2, 64};
  const Tensor sinks = random_normal(DType::f32, {h.heads}, 4, 3.f);
  AttentionArgs windowed = args_of(h), capped = args_of(h), chunked = args_of(h);
  windowed.window = 45, capped.softcap = 5, chunked.chunk = 48;
  for (const DType stored : {DType::bf16, DType::f8_e4m3, DType::i8, DType::u8}) {
    attend_like_the_cpu(ex, DType::bf16, stored, h, windowed, {});
    attend_like_the_cpu(ex, DType::bf16, stored, h, windowed, sinks);
    attend_like_the_cpu(ex, DType::bf16, stored, h, capped, {});
    attend_like_the_cpu(ex, DType::bf16, stored, h, chunked, {});
  }
  attend_like_the_cpu(ex, DType::f32, DType::f32, h, windowed, sinks);
}

// What goes to a page, and nothing beside it.
FEWBIT_DEVICE_TEST(PagedAttention, AppendsWhatTheCpuAppends) {
  Exec cpu = Exec::cpu();
  for (const DType dtype : kComputeTypes)
    for (const DType stored : {dtype, DType::f8_e4m3, DType::i8, DType::u8}) {
      const Heads h{4, 2, 64};
      const Tensor tables = random_tables(pages_needed(), 0, kSequences);
      const Pass here = pass_of(cpu, tables, new_rows()), there = pass_of(ex, tables, new_rows(), ex.on_cuda() ? 5 : 0);
      const Tensor k = random_normal(dtype, {there.rows(), h.kv_heads * h.d}, 2),
                   v = random_normal(dtype, k.shape(), 3);
      const Pages expected = pages_of(dtype, stored, pages_needed(), h), found = on(ex, expected);
      kv_append_paged(cpu, k.view().row_range(0, here.rows()), v.view().row_range(0, here.rows()), here.view(),
                      expected.view());
      kv_append_paged(ex, ex.to_device(k), ex.to_device(v), there.view(), found.view());
      const auto same = [&](const Tensor& a, const Tensor& b, const char* what) {
        if (a.empty()) return;
        const Tensor host = ex.to_host(a);
        EXPECT_EQ(std::memcmp(host.view().data, b.view().data, static_cast<size_t>(b.bytes())), 0)
            << what << ", " << name_of(dtype) << " in " << name_of(stored);
      };
      same(found.k, expected.k, "keys");
      same(found.v, expected.v, "values");
      same(found.k_scales, expected.k_scales, "scales of keys");
      same(found.v_scales, expected.v_scales, "scales of values");
    }
}

// RoPE, norms and the append at once have the bits of the contiguous one, and attention right behind those of attention
// that waits.
FEWBIT_DEVICE_TEST(PagedAttention, RightBehindTheAppend) {
  for (const DType stored : {DType::bf16, DType::f8_e4m3, DType::i8, DType::u8}) {
    const Heads h{8, 2, 128};
    const std::vector<std::pair<int64_t, int64_t>> steps = {{700, 701}, {33, 34}, {0, 1}, {260, 261}};
    const int64_t none = ex.on_cuda() ? 4 : 0;
    const Tensor tables = random_tables(pages_needed(), 0, kSequences);
    const Pages host = filled(DType::bf16, stored, h, tables), one = on(ex, host), other = on(ex, host);
    const Pass pass = pass_of(ex, tables, steps, none);
    const Tensor q = random_normal(DType::bf16, {pass.rows(), h.heads * h.d}, 5),
                 freq = random_normal(DType::f32, {32}, 6);
    const Tensor k = ex.to_device(random_normal(DType::bf16, {pass.rows(), h.kv_heads * h.d}, 7));
    const bool turn = stored == DType::u8;
    Tensor found[2];
    for (const int variant : {0, 1}) {
      const Pages& pages = variant == 0 ? one : other;
      const Tensor own = ex.to_device(q), inv_freq = ex.to_device(freq);
      AttentionArgs a = args_of(h);
      a.behind_append = variant == 0, a.turn_back = turn;
      found[variant] = poisoned(ex, DType::bf16, q.shape());
      ex.sync();
      rope_append_paged(ex, own, k, k, pass.view(), {}, {.inv_freq = inv_freq, .hadamard = turn, .turn_values = turn},
                        pages.view());
      if (variant == 1) ex.sync();
      attention_paged(ex, own, pass.view(), pages.view(), a, found[variant]);
      ex.sync();
    }
    const Tensor a = ex.to_host(found[0]), b = ex.to_host(found[1]);
    EXPECT_EQ(first_difference(a, b), "") << name_of(stored);
    for (int64_t row = pass.rows() - none; row < pass.rows(); ++row)
      for (const double x : doubles(a.view().row_range(row, row + 1))) ASSERT_EQ(x, 0) << "a row that is none";
  }
}

// With a fixed number of splits a row's bits are its own.
TEST(PagedAttention, CudaRowsDoNotDependOnTheRowsBesideThem) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Heads h{8, 2, 128};
  const Tensor tables = random_tables(pages_needed(), 0, kSequences);
  for (const DType stored : {DType::bf16, DType::f8_e4m3, DType::i8, DType::u8}) {
    const Pages pages = on(ex, filled(DType::bf16, stored, h, tables));
    const Tensor q = ex.to_device(random_normal(DType::bf16, {126, h.heads * h.d}, 1));
    Pass all = pass_of(ex, tables, new_rows());
    ASSERT_EQ(all.rows(), q.rows());
    all.splits = 2, all.single = all.rows(), all.tiles = {};
    const Tensor together = poisoned(ex, DType::bf16, q.shape());
    attention_paged(ex, q, all.view(), pages.view(), args_of(h), together);
    for (const int64_t row : {0, 4, 20, 125}) {
      const Tensor alone = poisoned(ex, DType::bf16, {1, q.cols()});
      PagedRows one = all.view();
      one.positions = all.positions.view().row_range(row, row + 1);
      one.table_of = all.table_of.view().row_range(row, row + 1);
      one.single = 1;
      attention_paged(ex, q.view().row_range(row, row + 1), one, pages.view(), args_of(h), alone);
      EXPECT_EQ(first_difference(ex.to_host(alone), ex.to_host(together.view().row_range(row, row + 1))), "")
          << name_of(stored) << ", row " << row;
    }
  }
}

}  // namespace
}  // namespace fewbit::test

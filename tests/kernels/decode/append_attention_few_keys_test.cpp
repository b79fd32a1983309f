// append_attention() against rope_append() and attention one after the other: the same bits in the result and in the
// cache, wherever one launch does both and wherever it does not.
#include <numeric>

#include "kernels/decode/append_attention.h"
#include "kernels/model/norm.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace append_few_keys {

struct Case {
  int64_t heads, kv_heads, head_dim, rot, capacity;
  std::vector<int32_t> first;  // position of each sequence's first step
  int64_t window = 0;
  float softcap = 0;
  bool sinks = false, q_norm = false, k_norm = false;
  int64_t batch() const { return std::ssize(first); }
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {64, 8, 64, 64, 128, {0}, 0, 0, true},                          // gpt-oss, from the first token on
      {64, 8, 64, 64, 400, {0, 119, 250, 389}, 128, 0, true},         // and its windows
      {8, 2, 64, 32, 128, {117}, 0, 0, false, true, true},            // to the end of the room
      {32, 4, 128, 128, 128, {3, 60, 100}, 0, 0, false, true, true},  // Qwen3-30B-A3B
      {7, 1, 128, 64, 96, {14, 79}, 40, 20.f},                        // the Gemma's cap
      {6, 6, 64, 64, 100, {40}, 0, 0, true, false, true},             // a group of one
      {5, 1, 80, 80, 90, {1, 30}, 17},
      {4, 2, 20, 20, 50, {12}},
      {4, 1, 256, 256, 64, {10, 33}, 0, 30.f, false, true, true},
      {8, 2, 128, 128, 1200, {900, 5}, 0, 0, true},  // several splits
      {24, 2, 64, 64, 128, {11}},                    // more heads than a tile has rows
  };
  return all;
}

// What both ways have: the new rows of a step before they are turned, made by launches in front of it.
struct Step {
  Tensor q, k, v, positions;
};
struct Way {
  Tensor q, k, v, out, k_cache, v_cache;
  KvCache cache() const { return {.k = k_cache, .v = v_cache, .k_scales = {}, .v_scales = {}}; }
};
struct Given {
  Tensor q_weight, kv_weight, inv_freq, sinks, q_norm, k_norm, older;
  HeadNorms norms() const { return {.q = q_norm, .k = k_norm, .eps = 1e-5f, .offset = 1}; }
  RopeTable table() const { return {.inv_freq = inv_freq, .attention_scale = 1.25f}; }
};

Given given(Exec& ex, const Case& c, DType dtype, const Shape& cache) {
  const auto normal = [&](DType type, const Shape& shape, uint64_t seed) {
    return ex.to_device(random_normal(type, shape, seed));
  };
  return {.q_weight = normal(dtype, {c.heads * c.head_dim}, 2),
          .kv_weight = normal(dtype, {c.kv_heads * c.head_dim}, 3),
          .inv_freq = normal(DType::f32, {c.rot / 2}, 4),
          .sinks = c.sinks ? normal(DType::f32, {c.heads}, 5) : Tensor{},
          .q_norm = c.q_norm ? normal(dtype, {c.head_dim}, 6) : Tensor{},
          .k_norm = c.k_norm ? normal(dtype, {c.head_dim}, 7) : Tensor{},
          .older = normal(dtype, cache, 8)};
}
Way way(Exec& ex, const Case& c, DType dtype, const Given& g) {
  Way w{.q = ex.alloc(dtype, {c.batch(), c.heads * c.head_dim}),
        .k = ex.alloc(dtype, {c.batch(), c.kv_heads * c.head_dim}),
        .v = ex.alloc(dtype, {c.batch(), c.kv_heads * c.head_dim}),
        .out = poisoned(ex, dtype, {c.batch(), c.heads * c.head_dim}),
        .k_cache = ex.alloc(dtype, g.older.shape()),
        .v_cache = ex.alloc(dtype, g.older.shape())};
  ex.copy(g.older, w.k_cache);
  ex.copy(g.older, w.v_cache);
  return w;
}
Step step_of(Exec& ex, const Case& c, DType dtype, int step) {
  const auto seed = static_cast<uint64_t>(100 + 3 * step);
  std::vector<int32_t> at = c.first;
  for (int32_t& p : at) p += step;
  return {.q = ex.to_device(random_normal(dtype, {c.batch(), c.heads * c.head_dim}, seed)),
          .k = ex.to_device(random_normal(dtype, {c.batch(), c.kv_heads * c.head_dim}, seed + 1)),
          .v = ex.to_device(random_normal(dtype, {c.batch(), c.kv_heads * c.head_dim}, seed + 2)),
          .positions = ex.to_device(host_i32(at))};
}
// The products' place: launches that write q, k and v and let the next one begin at once.
void make_rows(Exec& ex, const Step& s, const Given& g, const Way& w) {
  rms_norm(ex, s.q, g.q_weight, 1e-5f, 0, w.q);
  rms_norm(ex, s.k, g.kv_weight, 1e-5f, 0, w.k);
  rms_norm(ex, s.v, g.kv_weight, 1e-5f, 0, w.v);
}
AttentionArgs args_of(const Case& c, const Given& g) {
  AttentionArgs a{.heads = static_cast<int>(c.heads),
                  .kv_heads = static_cast<int>(c.kv_heads),
                  .head_dim = c.head_dim,
                  .scale = 0.1f,
                  .window = c.window,
                  .softcap = c.softcap};
  if (c.sinks) a.sinks = g.sinks;
  return a;
}
void expect_same(Exec& ex, const Case& c, const Way& a, const Way& b, const std::string& what) {
  const auto same = [&](const Tensor& x, const Tensor& y, const char* of) {
    EXPECT_EQ(first_difference(ex.to_host(x), ex.to_host(y)), "")
        << of << ", " << what << ", " << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim;
  };
  same(a.out, b.out, "result");
  same(a.k_cache, b.k_cache, "keys");
  same(a.v_cache, b.v_cache, "values");
}
std::string fmt_step(int step, DType dtype) {
  return "step " + std::to_string(step) + ", " + std::string(name_of(dtype));
}
// As a step goes first, and as its recording does.
void run_both_ways(Exec& ex, bool recorded, const std::function<void()>& work) {
  if (!recorded) return work();
  const RecordedGraph graph = ex.record(work);
  graph.handle ? ex.replay(graph) : work();
  ex.sync();
}

FEWBIT_DEVICE_TEST(AppendAttentionFewKeys, HasTheBitsOfItsOps) {
  for (const Case& c : cases())
    for (const DType dtype : kComputeTypes) {
      const Given g = given(ex, c, dtype, {c.batch(), c.kv_heads, c.capacity, c.head_dim});
      const Way apart = way(ex, c, dtype, g), together = way(ex, c, dtype, g);
      for (int step = 0; step < 9; ++step) {
        const bool recorded = step % 2 == 1 && dtype == DType::bf16;
        const Step s = step_of(ex, c, dtype, step);
        AttentionArgs args = args_of(c, g);
        make_rows(ex, s, g, apart);
        rope_append(ex, apart.q, apart.k, apart.v, s.positions, g.norms(), g.table(), apart.cache());
        attention_cached(ex, apart.q, s.positions, apart.cache(), args, apart.out);
        run_both_ways(ex, recorded, [&] {
          make_rows(ex, s, g, together);
          append_attention(ex, together.q, together.k, together.v, s.positions, g.norms(), g.table(), together.cache(),
                           args, together.out);
        });
        expect_same(ex, c, together, apart, fmt_step(step, dtype));
      }
    }
}

// Pages in no order; of several rows the last is none.
FEWBIT_DEVICE_TEST(AppendAttentionFewKeys, HasTheBitsOfItsOpsOverPages) {
  for (const Case& c : cases())
    for (const DType dtype : kComputeTypes) {
      const int64_t blocks = pages_for(c.capacity), rows = c.batch();
      const Given g = given(ex, c, dtype, {rows * blocks, c.kv_heads, kPagePositions, c.head_dim});
      const Way apart = way(ex, c, dtype, g), together = way(ex, c, dtype, g);
      std::vector<int32_t> pages(static_cast<size_t>(rows * blocks)), tables(static_cast<size_t>(rows));
      for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(pages.size() - 1 - i);
      std::iota(tables.begin(), tables.end(), 0);
      if (rows > 1 && ex.on_cuda()) tables.back() = -1;  // which a GPU alone looks at
      std::vector<RowRun> runs;
      for (int64_t i = 0; i < rows; ++i) runs.push_back({i, i + 1});
      const Tensor table = ex.to_device(Tensor::host_from<int32_t>(DType::i32, {rows, blocks}, pages));
      const Tensor table_of = ex.to_device(host_i32(tables));
      for (int step = 0; step < 9; ++step) {
        const Step s = step_of(ex, c, dtype, step);
        const PagedRows paged{
            .runs = runs, .tables = table, .positions = s.positions, .table_of = table_of, .single = rows};
        AttentionArgs args = args_of(c, g);
        make_rows(ex, s, g, apart);
        rope_append_paged(ex, apart.q, apart.k, apart.v, paged, g.norms(), g.table(), apart.cache());
        attention_paged(ex, apart.q, paged, apart.cache(), args, apart.out);
        const bool recorded = step % 2 == 1 && dtype == DType::bf16;
        run_both_ways(ex, recorded, [&] {
          make_rows(ex, s, g, together);
          append_attention_paged(ex, together.q, together.k, together.v, paged, g.norms(), g.table(), together.cache(),
                                 args, together.out);
        });
        expect_same(ex, c, together, apart, "pages, " + fmt_step(step, dtype));
      }
    }
}

}  // namespace append_few_keys
}  // namespace fewbit::test

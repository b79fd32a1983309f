// Sections of time_ops(): attention over a cache and of whole sequences, and the small ops between products.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attention/attention.h"
#include "kernels/decode/append_attention.h"
#include "kernels/kv/int4_rows.h"
#include "kernels/model/add.h"
#include "kernels/model/gated_act.h"
#include "kernels/model/norm.h"
#include "kernels/model/rope.h"
#include "kernels/statistics/nll.h"
#include "src/core/rng.h"
#include "src/run/bench/ops_bench_parts.h"
#include "src/run/kv_cache.h"

namespace fewbit::ops {
namespace {

AttentionArgs args_of(const OpsModel& m) {
  return {.heads = m.heads,
          .kv_heads = m.kv_heads,
          .head_dim = m.head_dim,
          .scale = 1 / std::sqrt(static_cast<float>(m.head_dim))};
}

std::string heads_of(const OpsModel& m) { return fmt::format("{}/{} heads of {}", m.heads, m.kv_heads, m.head_dim); }

// `copies` caches of `context` positions of random codes, and what they are scaled by.
struct Caches {
  std::vector<Tensor> k, v;
  Tensor scale;
  KvCache at(int64_t i) const {
    const auto n = static_cast<size_t>(i) % k.size();
    return {k[n], v[n], scale, scale};
  }
};
Caches caches(OpsRun& run, const AttentionArgs& args, DType dtype, int64_t batch, int64_t context, int64_t copies) {
  Exec& ex = run.ex;
  const int64_t heads = args.kv_heads, d = args.head_dim;
  Caches c;
  c.scale = dtype == DType::u8
                ? run.random.normal({batch, heads, context, 2 * int4_groups(d)})
                : ex.alloc_zeros(DType::f32, dtype == DType::i8 ? Shape{batch, heads, context} : Shape{heads});
  for (int64_t i = 0; i < copies; ++i)
    for (std::vector<Tensor>* side : {&c.k, &c.v}) {
      const Tensor values = run.random.normal({batch, heads, context, d});
      side->push_back(ex.alloc(dtype, {batch, heads, context, dtype == DType::u8 ? d / 2 : d}));
      ex.copy({values.view().data, dtype, side->back().shape(), values.view().device}, side->back());
    }
  return c;
}

// One new token of each sequence, at the caches' last position, over caches in turn.
void add_decode(OpsRun& run, const OpRow& row, const AttentionArgs& args, DType dtype, int64_t copies,
                bool with_append) {
  Exec& ex = run.ex;
  const int64_t batch = row.rows, context = row.context, d = args.head_dim;
  const Caches held = caches(run, args, dtype, batch, context, copies);
  const Tensor q = run.random.normal({batch, args.heads * d}), out = ex.alloc(DType::bf16, {batch, args.heads * d});
  Tensor host = Tensor::host(DType::i32, {batch});
  std::fill_n(host.as<int32_t>(), batch, static_cast<int32_t>(context - 1));
  const Tensor positions = ex.to_device(host);
  const Tensor k = run.random.normal({batch, args.kv_heads * d}), freq = ex.alloc_zeros(DType::f32, {d / 2});
  const bool turn = dtype == DType::u8;
  run.add({row, std::max<int64_t>(copies, 4), [&](int64_t i) {
             if (!with_append) return attention_cached(ex, q, positions, held.at(i), args, out);
             AttentionArgs own = args;
             own.turn_back = turn;
             append_attention(ex, q, k, k, positions, {}, {.inv_freq = freq, .hadamard = turn, .turn_values = turn},
                              held.at(i), own, out);
           }});
}

// The same over pages, which lie in no order.
void add_paged_decode(OpsRun& run, const OpRow& row, const AttentionArgs& args, DType dtype, int64_t copies) {
  Exec& ex = run.ex;
  const int64_t batch = row.rows, blocks = pages_for(row.context), d = args.head_dim;
  const Caches held = caches(run, args, dtype, batch * blocks, kPagePositions, copies);
  const Tensor q = run.random.normal({batch, args.heads * d}), out = ex.alloc(DType::bf16, {batch, args.heads * d});
  std::vector<int32_t> pages(static_cast<size_t>(batch * blocks)), rows(static_cast<size_t>(batch));
  std::iota(pages.begin(), pages.end(), 0);
  std::iota(rows.begin(), rows.end(), 0);
  Rng rng(1, "pages");
  for (size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[rng.below(i)]);
  const auto there = [&](const std::vector<int32_t>& v, const Shape& shape) {
    return ex.to_device(Tensor::host_from<int32_t>(DType::i32, shape, v));
  };
  const Tensor tables = there(pages, {batch, blocks}), table_of = there(rows, {batch});
  std::ranges::fill(rows, static_cast<int32_t>(row.context - 1));
  const Tensor positions = there(rows, {batch});
  run.add({row, std::max<int64_t>(copies, 4), [&](int64_t i) {
             const PagedRows paged{.tables = tables, .positions = positions, .table_of = table_of, .single = batch};
             attention_paged(ex, q, paged, held.at(i), args, out);
           }});
}

}  // namespace

void decode_attention(OpsRun& run, const OpsModel& model) {
  const AttentionArgs args = args_of(model);
  const std::vector<int64_t> contexts = run.up_to_most({512, 2048, 8192, 32768});
  const std::vector<std::pair<int64_t, int64_t>> with_append = {{1, 32768}, {16, 8192}};  // sequences, positions
  constexpr int64_t kMany = 128, kOfMany = 1024;
  struct Type {
    const char* name;
    KvType kind;
    DType stored;
  };
  constexpr Type kTypes[] = {{"bf16", KvType::plain, DType::bf16},
                             {"fp8", KvType::fp8_plain, DType::f8_e4m3},
                             {"int8", KvType::int8, DType::i8},
                             {"int4", KvType::int4, DType::u8}};
  Attention op{};
  op.kv_heads = static_cast<int>(args.kv_heads), op.head_dim = args.head_dim;
  run.expect(std::size(kTypes) * (2 * contexts.size() + with_append.size() + 2));
  for (const Type& type : kTypes) {
    const auto time = [&](const std::string& what, int64_t batch, int64_t context, bool append, bool paged = false) {
      const int64_t bytes = batch * context * kv_bytes(op, type.kind, DType::bf16);
      OpRow row{.section = "attention", .model = model.name, .op = what, .type = type.name};
      row.rows = batch, row.context = context;
      row.bytes = static_cast<double>(bytes);
      row.flop = 4.0 * static_cast<double>(batch * args.heads * context * args.head_dim);
      const int64_t copies = run.copies_for(bytes);
      run.attempt(row, [&] {
        paged ? add_paged_decode(run, row, args, type.stored, copies)
              : add_decode(run, row, args, type.stored, copies, append);
      });
    };
    for (const int64_t batch : {1, 8})
      for (const int64_t context : contexts) time(heads_of(model), batch, context, false);
    for (const auto& [batch, context] : with_append)
      if (context <= contexts.back()) time("rope, append, " + heads_of(model), batch, context, true);
    if (kOfMany > contexts.back()) continue;
    time(heads_of(model), kMany, kOfMany, false);
    time("pages, " + heads_of(model), kMany, kOfMany, false, true);
  }
}

void prefill_attention(OpsRun& run, const OpsModel& model) {
  Exec& ex = run.ex;
  const AttentionArgs args = args_of(model);
  const int64_t q_width = args.heads * args.head_dim, kv_width = args.kv_heads * args.head_dim;
  const std::vector<int64_t> lengths = run.up_to_most({512, 2048, 8192});
  run.expect(lengths.size());
  for (const int64_t length : lengths) {
    const int64_t seqs = std::max<int64_t>(1, 4096 / length), tokens = seqs * length;
    const Tensor q = run.random.normal({tokens, q_width}), out = ex.alloc(DType::bf16, {tokens, q_width});
    const Tensor k = run.random.normal({tokens, kv_width}), v = run.random.normal({tokens, kv_width});
    OpRow row{.section = "prefill",
              .model = model.name,
              .op = heads_of(model),
              .type = "bf16",
              .rows = seqs,
              .context = length};
    row.bytes = 4.0 * static_cast<double>(tokens * (q_width + kv_width));
    row.flop = 2.0 * static_cast<double>(tokens * length * q_width);  // half of the square
    run.add({row, 4, [&](int64_t) { attention(ex, q, k, v, seqs, args, out); }});
  }
}

void small_ops(OpsRun& run, const OpsModel& model) {
  Exec& ex = run.ex;
  const int64_t hidden = model.hidden, inner = model.inner, vocab = model.vocab, q_width = model.heads * model.head_dim;
  const std::vector<int64_t> counts = run.up_to_most({1, 8, 2048}), picked = run.up_to_most({1, 8, 1024});
  run.expect(4 * counts.size() + 2 * picked.size());
  const auto line = [&](const std::string& op, int64_t rows, double bytes, int64_t calls,
                        const std::function<void()>& body) {
    OpRow row{.section = "small", .model = model.name, .op = op, .rows = rows, .bytes = bytes};
    run.add({std::move(row), calls, [&](int64_t) { body(); }});
  };
  const Tensor weight = run.random.normal({hidden}), freq = ex.alloc_zeros(DType::f32, {model.head_dim / 2});
  for (const int64_t rows : counts) {
    const Tensor x = run.random.normal({rows, hidden}), y = run.random.normal({rows, hidden});
    const Tensor q = run.random.normal({rows, q_width});
    const Tensor gate = run.random.normal({rows, inner}), up = run.random.normal({rows, inner});
    const Tensor positions = ex.alloc_zeros(DType::i32, {rows}), out = ex.alloc(DType::bf16, {rows, inner});
    const auto n = static_cast<double>(x.bytes());
    line(fmt::format("rms_norm, {}", hidden), rows, 2 * n, 50, [&] { rms_norm(ex, x, weight, 1e-5f, 0, y); });
    line(fmt::format("add, {}", hidden), rows, 3 * n, 50, [&] { add(ex, x, y); });
    line(fmt::format("rope, {} heads of {}", model.heads, model.head_dim), rows, 2 * static_cast<double>(q.bytes()), 50,
         [&] { rope(ex, q, positions, freq, model.head_dim, 1); });
    line(fmt::format("gated_act, {}", inner), rows, 3 * static_cast<double>(gate.bytes()), 50,
         [&] { gated_act(ex, gate, up, ActKind::silu, out); });
  }
  for (const int64_t rows : picked) {
    const Tensor logits = ex.alloc_zeros(DType::f32, {rows, vocab}), ids = ex.alloc_zeros(DType::i32, {rows});
    const Tensor out = ex.alloc(DType::f32, {rows});
    const auto n = static_cast<double>(logits.bytes());
    line(fmt::format("argmax, vocabulary of {}", vocab), rows, n, 20, [&] { argmax(ex, logits, ids); });
    line(fmt::format("nll, vocabulary of {}", vocab), rows, n, 20, [&] { nll(ex, logits, ids, 0, out); });
  }
}

}  // namespace fewbit::ops

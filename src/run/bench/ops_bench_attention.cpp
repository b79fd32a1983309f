// Sections of time_ops(): attention over a cache and of whole sequences, and the small ops between products.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/model/add.h"
#include "kernels/model/gated_act.h"
#include "kernels/model/norm.h"
#include "kernels/model/rope.h"
#include "kernels/statistics/nll.h"
#include "src/run/bench/ops_bench_parts.h"

namespace fewbit::ops {
namespace {

AttentionArgs args_of(const OpsModel& m) {
  return {.heads = m.heads,
          .kv_heads = m.kv_heads,
          .head_dim = m.head_dim,
          .scale = 1 / std::sqrt(static_cast<float>(m.head_dim))};
}

std::string heads_of(const OpsModel& m) { return fmt::format("{}/{} heads of {}", m.heads, m.kv_heads, m.head_dim); }

// One new token of each sequence over `copies` caches in turn, which hold row.context positions of random codes.
void add_decode(OpsRun& run, const OpRow& row, const AttentionArgs& args, DType dtype, int64_t copies) {
  Exec& ex = run.ex;
  const int64_t batch = row.rows, context = row.context, heads = args.kv_heads, d = args.head_dim;
  const Tensor scale = ex.alloc_zeros(DType::f32, dtype == DType::i8 ? Shape{batch, heads, context} : Shape{heads});
  std::vector<Tensor> k, v;
  for (int64_t i = 0; i < copies; ++i)
    for (std::vector<Tensor>* side : {&k, &v}) {
      const Tensor values = run.random.normal({batch, heads, context, d});
      side->push_back(ex.alloc(dtype, values.shape()));
      const TensorView codes = values.view().reshaped({2, values.numel() / 2}).row_range(0, 1);
      if (dtype == DType::bf16)
        ex.copy(values, side->back());
      else
        ex.copy({codes.data, dtype, side->back().shape(), codes.device}, side->back());
    }
  const Tensor q = run.random.normal({batch, args.heads * d}), out = ex.alloc(DType::bf16, {batch, args.heads * d});
  Tensor host = Tensor::host(DType::i32, {batch});
  std::fill_n(host.as<int32_t>(), batch, static_cast<int32_t>(context - 1));
  const Tensor positions = ex.to_device(host);
  run.add({row, std::max<int64_t>(copies, 4), [&](int64_t i) {
             const auto at = static_cast<size_t>(i % copies);
             attention_cached(ex, q, positions, {k[at], v[at], scale, scale}, args, out);
           }});
}

}  // namespace

void decode_attention(OpsRun& run, const OpsModel& model) {
  const AttentionArgs args = args_of(model);
  const std::vector<int64_t> contexts = run.up_to_most({512, 2048, 8192, 32768});
  run.expect(3 * 2 * contexts.size());
  for (const auto& [type, dtype] : {std::pair{"bf16", DType::bf16}, {"fp8", DType::f8_e4m3}, {"int8", DType::i8}})
    for (const int64_t batch : {1, 8})
      for (const int64_t context : contexts) {
        const int64_t scale = dtype == DType::i8 ? 4 : 0;
        const int64_t bytes = 2 * batch * args.kv_heads * context * (args.head_dim * bytes_of(dtype) + scale);
        OpRow row{.section = "attention", .model = model.name, .op = heads_of(model), .type = type};
        row.rows = batch, row.context = context;
        row.bytes = static_cast<double>(bytes);
        row.flop = 4.0 * static_cast<double>(batch * args.heads * context * args.head_dim);
        run.attempt(row, [&] { add_decode(run, row, args, dtype, run.copies_for(bytes)); });
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

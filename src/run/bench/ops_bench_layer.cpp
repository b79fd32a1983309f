// Section of time_ops(): a decoder layer of packed linears on one token of several sequences, op by op and as
// decode_layers() launches it. Of the common form: without biases, norms of heads, windows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "kernels/decode/append_attention.h"
#include "kernels/decode/decode_layers.h"
#include "kernels/model/norm.h"
#include "src/core/marlin_layout.h"
#include "src/run/bench/ops_bench_parts.h"

namespace fewbit::ops {
namespace {

constexpr int64_t kPositions = 512;  // in sight of every token

struct Stack {
  std::vector<PackedWeight> packed;
  std::vector<DecodeLayer> layers;
  Tensor norm, inv_freq;
  DecodeForm form;
  double weights = 0;  // of one layer
};

Stack stack_of(OpsRun& run, const OpsModel& m) {
  Stack s;
  s.norm = run.random.normal({m.hidden});
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  const auto linear = [&](int64_t out, int64_t in) {
    s.weights += static_cast<double>(out * in) / kBlocks;
    return s.packed.emplace_back(packed_weight(run.ex, run.random, out, in, 4)).view;
  };
  for (int64_t i = 0; i < kBlocks; ++i)
    s.layers.push_back({.input_norm = s.norm,
                        .middle_norm = s.norm,
                        .q = linear(q, m.hidden),
                        .k = linear(kv, m.hidden),
                        .v = linear(kv, m.hidden),
                        .o = linear(m.hidden, q),
                        .gate = linear(m.inner, m.hidden),
                        .up = linear(m.inner, m.hidden),
                        .down = linear(m.hidden, m.inner)});
  Tensor frequencies = Tensor::host(DType::f32, {m.head_dim / 2});
  for (int64_t i = 0; i < frequencies.numel(); ++i) frequencies.as<float>()[i] = 1.f / static_cast<float>(1 + i);
  s.inv_freq = run.ex.to_device(frequencies);
  s.form = {.attention = {.heads = m.heads,
                          .kv_heads = m.kv_heads,
                          .head_dim = m.head_dim,
                          .scale = 1 / std::sqrt(static_cast<float>(m.head_dim))},
            .rope = {.inv_freq = s.inv_freq},
            .eps = 1e-5f};
  return s;
}

// Between the ops of a layer.
struct Rooms {
  Tensor x, normed, q, k, v, attended, gate, up, positions;
};
Rooms rooms_of(OpsRun& run, const OpsModel& m, int64_t rows) {
  const auto room = [&](int64_t cols) { return run.ex.alloc(DType::bf16, {rows, cols}); };
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  Tensor at = Tensor::host(DType::i32, {rows});
  std::fill_n(at.as<int32_t>(), rows, static_cast<int32_t>(kPositions - 1));
  return {.x = run.random.normal({rows, m.hidden}),
          .normed = room(m.hidden),
          .q = room(q),
          .k = room(kv),
          .v = room(kv),
          .attended = room(q),
          .gate = room(m.inner),
          .up = room(m.inner),
          .positions = run.ex.to_device(at)};
}

void op_by_op(Exec& ex, const DecodeLayer& l, const DecodeForm& form, const Rooms& r) {
  const auto of = [](const DecodeLinear& linear) { return std::get<MarlinView>(linear); };
  const auto add = [&](const Tensor& input, const DecodeLinear& w) {
    const MarlinProduct product{.w = of(w), .y = r.x, .add = true};
    marlin_gemms(ex, input, std::span(&product, 1));
  };
  rms_norm(ex, r.x, l.input_norm, form.eps, 0, r.normed);
  const MarlinProduct qkv[] = {{.w = of(l.q), .y = r.q}, {.w = of(l.k), .y = r.k}, {.w = of(l.v), .y = r.v}};
  marlin_gemms(ex, r.normed, qkv);
  append_attention(ex, r.q, r.k, r.v, r.positions, {}, form.rope, l.cache, form.attention, r.attended);
  add(r.attended, l.o);
  rms_norm(ex, r.x, l.middle_norm, form.eps, 0, r.normed);
  const MarlinProduct wide[] = {{.w = of(l.gate), .y = r.gate}, {.w = of(l.up), .y = r.up}};
  marlin_gemms(ex, r.normed, wide);
  gated_act(ex, r.gate, r.up, ActKind::silu, r.gate);
  add(r.gate, l.down);
}

bool packs(const OpsModel& m) {
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  return marlin::admits(q, m.hidden, 128, 4) && marlin::admits(kv, m.hidden, 128, 4) &&
         marlin::admits(m.hidden, q, 128, 4) && marlin::admits(m.inner, m.hidden, 128, 4) &&
         marlin::admits(m.hidden, m.inner, 128, 4);
}

}  // namespace

void decoder_layer(OpsRun& run, const OpsModel& model) {
  if (model.experts) return run.note(model.name + " layer: a mixture of experts; not timed");
  if (!packs(model))
    return run.note(model.name + " layer: its linears do not all fit the Marlin layout in groups of 128; not timed");
  Exec& ex = run.ex;
  Stack stack = stack_of(run, model);
  const std::vector<int64_t> counts = run.up_to_most({1, 2, 4, 8, 16});
  run.expect(2 * counts.size());
  std::map<std::string, std::vector<int64_t>> refused;
  for (const int64_t rows : counts) {
    std::vector<Tensor> caches;
    for (DecodeLayer& l : stack.layers)
      for (TensorView* each : {&l.cache.k, &l.cache.v})
        *each = caches.emplace_back(run.random.normal({rows, model.kv_heads, kPositions, model.head_dim}));
    const Rooms rooms = rooms_of(run, model, rows);
    const double seen = static_cast<double>(rows * kPositions * model.head_dim);  // values of one head
    OpRow row{.section = "layer", .model = model.name, .op = "op by op", .type = "int4 g128", .rows = rows};
    row.context = kPositions;
    row.bytes = kInt4Bytes * stack.weights + 4 * seen * model.kv_heads;
    row.flop = 2 * stack.weights * static_cast<double>(rows) + 4 * seen * model.heads;
    std::vector<Timed> ways = {
        {row, kBlocks, [&](int64_t i) { op_by_op(ex, stack.layers[static_cast<size_t>(i)], stack.form, rooms); }}};
    std::optional<DecodeStack> prepared;
    const auto launch_all = [&](int64_t layer) {  // times are a layer's, launches all layers'
      if (layer == 0) decode_layers(ex, *prepared, rooms.positions, rooms.x);
    };
    row.op = "in launches", row.peer = "op by op";
    if (const std::string why = refuses_stack(ex, stack.layers, stack.form); !why.empty())
      refused[why].push_back(rows);
    else
      run.attempt(row, [&] {
        prepared = make_stack(ex, stack.layers, stack.form);
        ways.push_back({row, kBlocks, launch_all});
      });
    run.time_in_turn(ways);
    const double op_by_op_us = ways.front().row.us;
    for (Timed& way : ways) {
      if (!way.row.peer.empty()) way.row.peer_us = op_by_op_us;
      run.keep(std::move(way.row));
    }
  }
  for (const auto& [why, rows] : refused)
    run.note(fmt::format("{} layer in launches, {} rows: {}", model.name, fmt::join(rows, ", "), why));
}

}  // namespace fewbit::ops

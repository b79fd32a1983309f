// What the ops of a block cost for a token: each is run by itself on a few of them. Products are taken at the width of
// their input and a part of their outputs; attention over a whole window for as many heads as keep the
// threads busy, on a GPU for all.
#include <algorithm>
#include <tuple>

#include "kernels/products/expert_gemms.h"
#include "kernels/products/gemm.h"
#include "src/core/parallel.h"
#include "src/model/op_slots.h"
#include "src/quant/plan/rates/rate_probe.h"
#include "src/run/block.h"

namespace fewbit {
namespace {

constexpr int64_t kRows = 2048;     // of a product, to begin with: a weight is laid out once for them
constexpr int64_t kWindow = 2048;   // longest that attention is run over
constexpr double kFlop = 5e8;       // of a product, to begin with
constexpr int64_t kExperts = 16;    // of a mixture that are run together: as many as fill a GPU
constexpr int kHeads = 32;          // of latent attention on a GPU
constexpr double kTooShort = 2e-2;  // seconds: a product that is over sooner is made larger, up to its real size

double seen(double tokens, int64_t window) {
  const double growing = window > 0 ? std::min(tokens, static_cast<double>(window)) : tokens;
  return growing * (growing + 1) / 2 + (tokens - growing) * static_cast<double>(window);
}

class Probe {
 public:
  Probe(Bench& bench, const Checkpoint& c, int kind, const RateOptions& o)
      : bench_(bench),
        ex_(bench.ex),
        spec_(c.spec),
        ops_(c.spec.kinds[static_cast<size_t>(kind)]),
        options_(o),
        weights_(load_vectors(ex_, c, layer_of(kind), o.dtype)),
        ropes_(ex_, c.spec, o.chunks.length) {
    Tensor host = Tensor::host(DType::i32, {kWindow});
    for (int64_t t = 0; t < kWindow; ++t) host.as<int32_t>()[t] = static_cast<int32_t>(t % o.chunks.length);
    positions_ = ex_.to_device(host);
    std::fill_n(host.as<int32_t>(), kWindow, 0);
    ids_ = ex_.to_device(host);
  }

  double token_seconds(const BlockOp& op) {
    if (const auto* a = std::get_if<Attention>(&op)) return attention(*a);
    if (const auto* a = std::get_if<LatentAttention>(&op)) return latent_attention(*a);
    if (const auto* m = std::get_if<Moe>(&op)) return mixture(*m);
    if (!std::holds_alternative<Linears>(op)) return small(op);
    double s = 0;
    for (const LinearDef& l : linears_of(op)) s += product(options_.chunks.most_rows(), l.out_features, l.in_features);
    return s;
  }

 private:
  int64_t layer_of(int kind) const {
    int64_t layer = 0;
    while (spec_.kind(layer) != kind) ++layer;
    return layer;
  }

  // Of a linear: seconds for a token.
  double product(int64_t rows, int64_t out, int64_t in) {
    const auto run = [&](int64_t n, int64_t some) {
      const Tensor x = bench_.values(options_.dtype, n, in, 1), w = bench_.values(options_.dtype, some, in, 2);
      const double s = bench_.seconds_of([&] { gemm(ex_, x, w, {}, ex_.alloc(options_.dtype, {n, some})); });
      return std::pair(s, s / static_cast<double>(n * some) * static_cast<double>(out));
    };
    if (ex_.on_cuda()) return run(rows, out).second;  // soon over as it is, and made some times
    // From a part of the rows and outputs to as much as takes long enough to tell.
    int64_t n = std::min(rows, kRows);
    const auto fit = static_cast<int64_t>(kFlop / 2 / static_cast<double>(n * in)) / 64 * 64;
    int64_t some = std::min(out, std::max<int64_t>(64, fit));
    auto [taken, token] = run(n, some);
    while (bench_.timed && taken < kTooShort && (n < rows || some < out)) {
      n = some < out ? n : std::min(rows, 4 * n);
      some = std::min(out, 4 * some);
      std::tie(taken, token) = run(n, some);
    }
    return run(n, some).second;  // not the call that ended the search, which may have been held up
  }

  // Every token goes to some experts, each of which has few. Small ones go through a GPU together.
  double mixture(const Moe& m) {
    const int64_t rows = options_.chunks.most_rows();
    const int64_t each = std::max<int64_t>(1, rows * m.top_k / m.experts);
    double s = 0;
    for (const LinearDef& l : m.linears_of_expert(0)) {
      const bool together = ex_.on_cuda() && takes_expert_gemms(options_.dtype, l.out_features, l.in_features);
      s += together ? together_product(m, each, l.out_features, l.in_features)
                    : product(each, l.out_features, l.in_features);
    }
    return s * m.top_k + product(rows, m.experts, m.hidden);
  }

  // Of a linear of a mixture's experts, some of which make theirs in one launch: seconds for a token that comes to it.
  double together_product(const Moe& m, int64_t each, int64_t out, int64_t in) {
    const int64_t experts = std::min<int64_t>(m.experts, kExperts);
    const Tensor x = bench_.values(options_.dtype, experts * each, in, 1);
    const Tensor w = bench_.values(options_.dtype, experts * out, in, 2);
    std::vector<ExpertProduct> products;
    for (int64_t e = 0; e < experts; ++e)
      products.push_back({.w = w.view().row_range(e * out, (e + 1) * out), .begin = e * each, .end = (e + 1) * each});
    const Tensor y = ex_.alloc(options_.dtype, {experts * each, out});
    return bench_.seconds_of([&] { expert_gemms(ex_, x, products, y); }) / static_cast<double>(experts * each);
  }

  double attention(const Attention& op) {
    // The query heads of one key; of as many as give every thread a head, and of all on a GPU, where a part would
    // leave the device idle.
    Attention one = op;
    const int64_t of_key = op.heads / op.kv_heads, busy = (int64_t{thread_count()} + of_key - 1) / of_key;
    one.kv_heads = ex_.on_cuda() ? op.kv_heads : static_cast<int>(std::min<int64_t>(op.kv_heads, busy));
    one.heads = op.heads / op.kv_heads * one.kv_heads;
    one.sinks.clear();
    const int64_t n = std::min(options_.chunks.length, kWindow);
    const Tensor q = bench_.values(options_.dtype, n, one.heads * op.head_dim, 3);
    const Tensor k = bench_.values(options_.dtype, n, one.kv_heads * op.head_dim, 4);
    Activations act;
    act[op.q] = q;
    act[op.k] = act[op.v] = k;
    const double s = bench_.seconds_of([&] {
      const Tensor out = ex_.alloc(options_.dtype, q.shape());
      act[op.out] = out;
      run_op(ex_, one, weights_, ropes_, layout(n), act);
    });
    const int64_t sight = op.chunk > 0 ? op.chunk : op.window;
    const double length = static_cast<double>(options_.chunks.length), part = static_cast<double>(n);
    const double longer = seen(length, sight) / length / (seen(part, sight) / part);
    return s / part * longer * op.kv_heads / one.kv_heads;
  }

  // A head for every thread, of all keys; on a GPU enough of them to fill it.
  double latent_attention(const LatentAttention& op) {
    LatentAttention one = op;
    one.heads = std::min(op.heads, ex_.on_cuda() ? kHeads : thread_count());
    one.chosen = false;
    const int64_t n = std::min(options_.chunks.length, kWindow);
    const auto values = [&](int64_t features) { return bench_.values(options_.dtype, n, features, 6); };
    const int64_t heads = one.heads;
    const Tensor nope = values(heads * op.nope), rope = values(heads * op.rope), key = values(op.rope),
                 kv = values(heads * (op.nope + op.value)), latent = values(op.rank), out = values(heads * op.value);
    Activations act;
    act[op.q_nope] = nope, act[op.q_rope] = rope, act[op.k_rope] = key;
    act[op.kv] = kv, act[op.latent] = latent, act[op.out] = out;
    const double s = bench_.seconds_of([&] { run_op(ex_, one, weights_, ropes_, layout(n), act); });
    const double length = static_cast<double>(options_.chunks.length), part = static_cast<double>(n);
    return s / part * (seen(length, 0) / length / (seen(part, 0) / part)) * op.heads / one.heads;
  }

  // Norms, rotations and the like, with the memory that a pass takes for what they write.
  double small(const BlockOp& op) {
    const int64_t n = std::min(options_.chunks.length, kWindow);  // as in a chunk: to wake threads takes its time
    std::vector<Tensor> memory;
    Tensor choice;
    Activations act;
    act.choice = &choice;
    const std::vector<Slot> read = slots_read(op), written = slots_written(op);
    const auto width = [&](Slot s) { return slot_features(spec_, ops_, s); };
    for (const std::vector<Slot>* slots : {&read, &written})
      for (const Slot s : *slots)
        if (!act[s].data) act[s] = memory.emplace_back(bench_.values(options_.dtype, n, width(s), 5));
    const bool in_place = std::holds_alternative<GatedAct>(op);
    const double s = bench_.seconds_of([&] {
      std::vector<Tensor> fresh;
      for (const Slot w : written)
        if (!in_place && w != Slot::x && std::find(read.begin(), read.end(), w) == read.end())
          act[w] = fresh.emplace_back(ex_.alloc(options_.dtype, {n, width(w)}));
      run_op(ex_, op, weights_, ropes_, layout(n), act);
    });
    return s / static_cast<double>(n);
  }

  TokenLayout layout(int64_t n) const {
    return {.seqs = 1, .positions = positions_.view().row_range(0, n), .ids = ids_.view().row_range(0, n)};
  }

  Bench& bench_;
  Exec& ex_;
  const ModelSpec& spec_;
  const std::vector<BlockOp>& ops_;
  const RateOptions& options_;
  BlockWeights weights_;
  RopeTables ropes_;
  Tensor positions_, ids_;
};

}  // namespace

std::vector<double> op_seconds(Bench& bench, const Checkpoint& c, int kind, const RateOptions& o) {
  Probe probe(bench, c, kind, o);
  std::vector<double> all;
  for (const BlockOp& op : c.spec.kinds[static_cast<size_t>(kind)]) all.push_back(probe.token_seconds(op));
  return all;
}

}  // namespace fewbit

#include "src/eval/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/model/cast.h"
#include "src/core/parallel.h"
#include "src/run/head.h"

namespace fewbit {
namespace {

Tensor host_f32(Exec& ex, ConstTensorView t) {
  if (t.dtype == DType::f32) return ex.to_host(t);
  const Tensor wide = ex.alloc(DType::f32, t.shape);
  cast(ex, t, wide);
  return ex.to_host(wide);
}

// Sums of squares and products per column.
struct Sums {
  std::vector<double> bb, mm, bm;
};
Sums column_sums(ConstTensorView base, ConstTensorView model) {
  const int64_t rows = base.rows(), cols = base.cols();
  Sums s{std::vector<double>(static_cast<size_t>(cols)), std::vector<double>(static_cast<size_t>(cols)),
         std::vector<double>(static_cast<size_t>(cols))};
  parallel_for(cols, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = begin; c < end; ++c) {
        const double b = base.as<float>()[r * cols + c], m = model.as<float>()[r * cols + c];
        const auto i = static_cast<size_t>(c);
        s.bb[i] += b * b;
        s.mm[i] += m * m;
        s.bm[i] += b * m;
      }
  });
  return s;
}

double decibels(double signal, double noise) {
  if (signal <= 0) return 0;
  return noise > 0 ? std::min(kMaxSqnr, 10 * std::log10(signal / noise)) : kMaxSqnr;
}

Closeness closeness(ConstTensorView base, ConstTensorView model) {
  const Sums s = column_sums(base, model);
  double bb = 0, mm = 0, bm = 0;
  for (size_t i = 0; i < s.bb.size(); ++i) bb += s.bb[i], mm += s.mm[i], bm += s.bm[i];
  // Differences are summed again where the expanded form would cancel.
  double noise = 0;
  for (int64_t i = 0; i < base.numel(); ++i) {
    const double d = static_cast<double>(model.as<float>()[i]) - base.as<float>()[i];
    noise += d * d;
  }
  return {bb > 0 && mm > 0 ? bm / std::sqrt(bb * mm) : 1, decibels(bb, noise)};
}

// Every column of the model scaled by the factor that fits best.
Closeness fitted_closeness(ConstTensorView base, const Tensor& model) {
  const Sums s = column_sums(base, model);
  const int64_t cols = base.cols();
  double bb = 0, noise = 0;
  for (int64_t i = 0; i < base.numel(); ++i) {
    const auto c = static_cast<size_t>(i % cols);
    const double factor = s.mm[c] > 0 ? s.bm[c] / s.mm[c] : 0;
    const double d = factor * model.as<float>()[i] - base.as<float>()[i];
    noise += d * d;
  }
  for (const double v : s.bb) bb += v;
  return {bb > 0 ? std::sqrt(std::max(0.0, 1 - noise / bb)) : 1, decibels(bb, noise)};
}

Tensor copy_of(Exec& ex, ConstTensorView x) {
  Tensor t = ex.alloc(x.dtype, x.shape);
  ex.copy(x, t);
  return t;
}

// A model's blocks, run one at a time.
class BlockRunner {
 public:
  BlockRunner(Exec& ex, const Checkpoint& c, const LoadOptions& o, const EmbeddedTokens& in, int64_t seqs)
      : ex_(ex),
        c_(c),
        options_(o),
        ropes_(ex, c.spec, in.x.rows() / seqs),
        slots_(ex, c.spec, in.x.rows(), o.dtype),
        positions_(in.positions),
        seqs_(seqs) {}

  void load(int64_t layer) {
    layer_ = layer;
    weights_ = load_block(ex_, c_, layer, options_, nullptr);
  }
  // `outputs(name, y)` is called for every linear of the block's Linears ops, before anything else touches y.
  void run(TensorView x, const std::function<void(const std::string&, ConstTensorView)>& outputs = {}) {
    Activations act = slots_.bind(x, c_.spec.kind(layer_));
    for (const BlockOp& op : c_.spec.block(layer_)) {
      run_op(ex_, op, weights_, ropes_, {.seqs = seqs_, .positions = positions_, .cache = nullptr}, act);
      if (const Linears* l = std::get_if<Linears>(&op); l && outputs)
        for (const LinearDef& def : l->items) outputs(def.name, act[def.out]);
    }
  }

 private:
  Exec& ex_;
  const Checkpoint& c_;
  LoadOptions options_;
  RopeTables ropes_;
  SlotBuffers slots_;
  ConstTensorView positions_;
  int64_t seqs_, layer_ = 0;
  BlockWeights weights_;
};

void check_alike(const ModelSpec& a, const ModelSpec& b) {
  if (a.layers != b.layers || a.hidden != b.hidden)
    fail(ErrorKind::usage, fmt::format("--layers needs the same blocks: {} of width {} against {} of width {}",
                                       a.layers, a.hidden, b.layers, b.hidden));
}

Tensor embedded(Exec& ex, const Checkpoint& c, const LoadOptions& o, std::span<const int32_t> ids, int64_t seqs,
                Tensor* positions) {
  EmbeddedTokens in = embed_tokens(ex, c.spec, load_ends(ex, c, {.dtype = o.dtype}), ids, seqs, o.dtype);
  *positions = std::move(in.positions);
  return std::move(in.x);
}

}  // namespace

std::vector<LayerCloseness> layer_closeness(Exec& ex, const Checkpoint& base, const Checkpoint& model,
                                            const LoadOptions& o, const Windows& w, int64_t max_tokens,
                                            const std::function<void(int64_t, int64_t)>& progress) {
  check_alike(base.spec, model.spec);
  if (keeps_slots(base.spec) || reads_tokens(base.spec))
    fail(ErrorKind::unsupported,
         "--layers: the layers of " + base.spec.arch +
             " read keys and values of others, or the ids of the tokens, so that none of them can be run alone");
  const int64_t seqs = std::clamp<int64_t>(max_tokens / w.length, 1, w.count);
  const std::span<const int32_t> ids = std::span(w.ids).first(static_cast<size_t>(seqs * w.length));
  Tensor positions;
  EmbeddedTokens in{embedded(ex, base, o, ids, seqs, &positions), {}, {}};
  const Tensor own = embedded(ex, model, o, ids, seqs, &positions);
  in.positions = std::move(positions);
  BlockRunner base_block(ex, base, o, in, seqs), model_block(ex, model, o, in, seqs);
  std::vector<LayerCloseness> out;
  for (int64_t layer = 0; layer < base.spec.layers; ++layer) {
    base_block.load(layer);
    model_block.load(layer);
    LayerCloseness& result = out.emplace_back();
    result.layer = layer;
    const Tensor alone = copy_of(ex, in.x);
    std::map<std::string, Tensor> expected;
    base_block.run(in.x, [&](const std::string& name, ConstTensorView y) { expected[name] = host_f32(ex, y); });
    model_block.run(alone, [&](const std::string& name, ConstTensorView y) {
      if (const auto it = expected.find(name); it != expected.end())
        result.linears.push_back({name, fitted_closeness(it->second, host_f32(ex, y))});
    });
    model_block.run(own);
    const Tensor states = host_f32(ex, in.x);
    result.states = closeness(states, host_f32(ex, own));
    result.alone = closeness(states, host_f32(ex, alone));
    if (progress) progress(layer + 1, base.spec.layers);
  }
  return out;
}

}  // namespace fewbit

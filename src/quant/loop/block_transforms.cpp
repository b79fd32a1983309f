#include "src/quant/loop/block_transforms.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "src/calib/cuts.h"
#include "src/calib/expert_pieces.h"
#include "src/calib/experts.h"
#include "src/quant/loop/activation_sums.h"
#include "src/run/moe.h"

namespace fewbit {
namespace {

// Scales per feature need fewer tokens than rounding does; the published AWQ takes as many.
constexpr int64_t kTransformTokens = 65536;
// An expert that its router sent fewer of them is shown these many, evenly spaced: what it would do with the
// tokens of its layer. (Other experts' activations would say nothing of its features.)
constexpr int64_t kExpertTokens = 1024;

// What the absorbers' activations look like when the states that enter the block (those of the quantized stream) run
// through it as it is, on kTransformTokens of the tokens.
class BlockObserver {
 public:
  BlockObserver(StateStore& store, const Ranks& ranks, const ModelSpec& spec, const std::vector<BlockOp>& ops,
                const std::vector<Absorber>& absorbers, const States& entering, const RopeTables& ropes,
                const BlockWeights& weights, int experts_at_once)
      : ex_(store.exec()),
        ranks_(ranks),
        ops_(ops),
        absorbers_(absorbers),
        ropes_(ropes),
        weights_(weights),
        at_once_(experts_at_once),
        chunks_(selected(entering.chunks())),
        share_(ex_, ranks, chunks_),
        stream_(store, spec, chunks_, entering.dtype()) {
    // Windows at even distances, for the draw puts those of one text side by side.
    const Chunks& all = entering.chunks();
    const ChunkShare owned(ex_, ranks, all);
    for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk) {
      const Tensor x = ex_.alloc(entering.dtype(), {chunks_.rows(chunk), spec.width()});
      for (int64_t w = 0; w < chunks_.seqs(chunk); ++w) {
        const int64_t k = chunk * chunks_.per_chunk() + w, from = k * all.windows / chunks_.windows * all.length;
        owned.get(entering, from, from + all.length, x.view().row_range(w * all.length, (w + 1) * all.length));
      }
      if (share_.mine(chunk)) stream_.start(chunk, x);
    }
    stream_.begin_block(ops);
  }

  std::map<std::string, ActivationStats> stats() {
    std::map<std::string, ActivationStats> all;
    const size_t last = last_consumer();
    observe_inputs(last, all);
    for (int first = 0; first < experts(); first += at_once_)
      observe_experts(last, first, std::min(experts(), first + at_once_), all);
    return all;
  }

 private:
  static Chunks selected(const Chunks& all) {
    return {.windows = std::clamp(kTransformTokens / all.length, int64_t{1}, all.windows),
            .length = all.length,
            .at_once = all.at_once};
  }
  size_t last_consumer() const {
    size_t last = 0;
    for (const Absorber& a : absorbers_) last = std::max(last, a.consumers.front());
    return last;
  }
  const Moe* moe() const {
    for (const Absorber& a : absorbers_)
      if (a.expert >= 0) return &std::get<Moe>(ops_[a.consumers.front()]);
    return nullptr;
  }
  int experts() const { return moe() ? moe()->experts : 0; }
  Slot input_of(size_t op) const {
    const auto* m = std::get_if<Moe>(&ops_[op]);
    return m ? m->in : std::get<Linears>(ops_[op]).in;
  }

  // Inputs that all tokens of the layer reach; and how many of them its router sends to each expert.
  void observe_inputs(size_t last, std::map<std::string, ActivationStats>& all) {
    std::vector<const Absorber*> seen;
    std::vector<int64_t> features;
    std::deque<ActivationSums> sums;
    for (const Absorber& a : absorbers_)
      if (a.expert < 0) {
        seen.push_back(&a);
        features.push_back(a.features * a.repeat);
        sums.emplace_back(ex_, ranks_, chunks_.tokens(), features.back(), ranks_.alone());
      }
    if (moe()) features.push_back(moe()->hidden);
    std::vector<Tensor> held(seen.size());  // of the chunk that is brought: its slots are used again further on
    const auto watch = [&](size_t op, const Activations& act) {
      for (size_t i = 0; i < seen.size(); ++i)
        if (seen[i]->consumers.front() == op) {
          const ConstTensorView x = act[input_of(op)];
          if (share_.alone()) {
            sums[i].add(x);
          } else {
            held[i] = ex_.alloc(x.dtype, x.shape);
            ex_.copy(x, held[i]);
          }
        }
    };
    const std::optional<size_t> cut = cheapest_cut(ops_, 0, last);
    const auto bring = [&](int64_t chunk) {
      const Activations& act = stream_.bring(chunk, last, weights_, ropes_, cut, watch);
      watch(last, act);
      ChunkShare::Rows rows(held.begin(), held.end());
      if (moe()) rows.push_back(act[moe()->routed()]);
      return rows;
    };
    share_.each(features, stream_.x().dtype(), bring, [&](int64_t, const ChunkShare::Rows& rows) {
      for (size_t i = 0; i < seen.size() && !share_.alone(); ++i) sums[i].add(rows[i]);
      if (moe()) count_tokens(ex_, *moe(), weights_, rows.back(), tokens_);
    });
    if (cut) stream_.moved(*cut);
    for (size_t i = 0; i < seen.size(); ++i) all[seen[i]->name] = sums[i].finish();
  }

  // What down of experts [first, last) multiplies, for the rows that the router sends them; one that it sent too few is
  // shown some of all.
  void observe_experts(size_t op, int first, int last, std::map<std::string, ActivationStats>& all) {
    const Moe& m = *moe();
    const auto at = [first](int e) { return static_cast<size_t>(e - first); };
    std::vector<std::unique_ptr<ActivationSums>> sums;
    std::vector<RowCutter> cutters;
    for (int e = first; e < last; ++e) {
      const int64_t rows = fed(e) ? tokens_[static_cast<size_t>(e)] : std::min(kExpertTokens, chunks_.tokens());
      sums.push_back(std::make_unique<ActivationSums>(ex_, ranks_, rows, m.down.in_features, false, kExpertPiece));
      cutters.emplace_back(ex_, kExpertPiece, [&, e](const InputRows& rows) {
        const auto linear = [&](const std::string& name) -> const Linear& { return weights_.linears.at(name); };
        sums[at(e)]->add(expert_activation(ex_, m, e, linear, rows.x));
      });
    }
    const auto bring = [&](int64_t chunk) {
      const Activations& act = stream_.bring(chunk, op, weights_, ropes_);
      return ChunkShare::Rows{act[m.in], act[m.routed()]};
    };
    const std::vector<int64_t> features{m.hidden, m.hidden};
    share_.each(features, stream_.x().dtype(), bring, [&](int64_t chunk, const ChunkShare::Rows& seen) {
      const Routing routing = route_tokens(ex_, m, weights_, seen[1]);
      const Tensor some = ex_.to_device(spread_in(chunk));
      for (int e = first; e < last; ++e) {
        const Tensor rows = fed(e) ? expert_rows(ex_, routing, e, seen[0]) : gather_rows(ex_, seen[0], some);
        if (rows.rows() > 0) cutters[at(e)].add({rows});
      }
    });
    for (int e = first; e < last; ++e) {
      cutters[at(e)].finish();
      for (const Absorber& a : absorbers_)
        if (a.expert == e) all[a.name] = sums[at(e)]->finish();
    }
  }
  bool fed(int expert) const { return tokens_[static_cast<size_t>(expert)] >= kExpertTokens; }
  // The rows of a chunk that are among kExpertTokens of all at even distances.
  Tensor spread_in(int64_t chunk) const {
    const int64_t count = std::min(kExpertTokens, chunks_.tokens()), begin = chunks_.begin(chunk);
    std::vector<int32_t> rows;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t row = spread_row(k, count, chunks_.tokens()) - begin;
      if (row >= 0 && row < chunks_.rows(chunk)) rows.push_back(static_cast<int32_t>(row));
    }
    return Tensor::host_from<int32_t>(DType::i32, {static_cast<int64_t>(rows.size())}, rows);
  }

  Exec& ex_;
  const Ranks& ranks_;
  const std::vector<BlockOp>& ops_;
  const std::vector<Absorber>& absorbers_;
  const RopeTables& ropes_;
  const BlockWeights& weights_;
  int at_once_;
  Chunks chunks_;
  ChunkShare share_;
  Stream stream_;
  std::vector<int64_t> tokens_{};  // that the router sends to each expert
};

}  // namespace

BlockF32 transform_block(StateStore& store, const Ranks& ranks, const Checkpoint& c, const QuantPlan& plan,
                         int64_t layer, const States& entering, const RopeTables& ropes, BlockWeights& weights,
                         Phases& phases) {
  Exec& ex = store.exec();
  const std::vector<BlockOp>& ops = c.spec.block(layer);
  TransformJob job{.ops = &ops, .migration = plan.migration};
  for (const BlockOp& op : ops)
    for (const LinearDef& l : linears_of(op))
      if (const PlannedLinear& p = plan.of(c.spec.prefix(layer) + l.name); !p.keep)
        job.targets[l.name] = {p.recipe.spec, p.recipe.effort, p.recipe.method};
  job.absorbers = usable_absorbers(ops, job.targets);
  BlockF32 rewritten;
  if (job.absorbers.empty()) return rewritten;
  phases.timed("load", [&] { rewritten = load_block_f32(ex, c, layer, job.absorbers, &weights); });
  for (const Transform* t : plan.transforms) {
    phases.timed("observe", [&] {
      job.stats =
          BlockObserver(store, ranks, c.spec, ops, job.absorbers, entering, ropes, weights, plan.memory.experts_at_once)
              .stats();
    });
    phases.timed("transform", [&] {
      t->apply(ex, job, rewritten);
      replace_in(ex, rewritten, entering.dtype(), weights);
    });
  }
  return rewritten;
}

}  // namespace fewbit

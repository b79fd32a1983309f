#include "src/quant/search/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/model/cast.h"
#include "src/calib/cuts.h"
#include "src/calib/experts.h"
#include "src/calib/observe.h"
#include "src/calib/stream.h"
#include "src/core/strings.h"
#include "src/quant/rounding.h"
#include "src/quant/search/end_sensitivity.h"
#include "src/quant/search/mean_divergence.h"

namespace fewbit {
namespace {

// The states that enter the first block.
Tensor states_of(Exec& ex, const Checkpoint& c, const Windows& w, DType dtype) {
  check_ids(c.spec, w.ids);
  return embed_rows(ex, c, w.ids, dtype);
}

void refuse_what_reads_others(const Checkpoint& c) {
  if (keeps_slots(c.spec) || reads_tokens(c.spec))
    fail(ErrorKind::unsupported,
         "auto measures a layer by itself, and the layers of " + c.spec.arch +
             " read keys and values of others, or the ids of the tokens; choose the bits yourself with --set");
}

// The measurement in progress: the model, the calibration's states on their way through the blocks and those of the
// held-out windows in front of the block at hand.
class Measurement {
 public:
  Measurement(Exec& ex, const Checkpoint& c, const SensitivityJob& job)
      : ex_(ex),
        ckpt_(c),
        job_(job),
        runner_(ex, c, {.dtype = job.dtype, .weights = fewbit::Weights::values}),
        ropes_(ex, c.spec, job.calibration->length),
        store_(ex, job.state_room),
        calibration_(store_, c.spec,
                     {.windows = job.calibration->count,
                      .length = job.calibration->length,
                      .at_once = chunk_tokens(ex.device().kind)},
                     job.dtype),
        held_(states_of(ex, c, *job.held_out, job.dtype)),
        base_(copy_of(held_)) {
    runner_.run_blocks(base_, job.held_out->count, 0, c.spec.layers);
    check_ids(c.spec, job.calibration->ids);
    const Chunks& chunks = calibration_.chunks();
    for (int64_t i = 0; i < chunks.count(); ++i)
      calibration_.start(
          i, embed_rows(ex, c,
                        std::span(job.calibration->ids)
                            .subspan(static_cast<size_t>(chunks.begin(i)), static_cast<size_t>(chunks.rows(i))),
                        job.dtype));
  }

  // Adds the costs of the units of a block, `done` is called after each probe.
  void block(int64_t layer, const std::vector<UnitSpecs>& units, const std::function<void()>& done,
             std::vector<std::vector<double>>& cost) {
    const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
    calibration_.begin_block(ops);
    for (size_t i = 0; i < ops.size(); ++i) {
      const StatsOf stats = stats_of(layer, i);
      for (size_t u = 0; u < units.size(); ++u) {
        if (units[u].linears.layer != layer || units[u].linears.op != i) continue;
        const float absmax = shared_absmax(layer, ops[i], units[u]);
        for (const std::vector<std::string>& probe : units[u].linears.probes) {
          add_cost(layer, probe, stats, units[u], absmax, cost[u]);
          done();
        }
      }
    }
    pass(layer, ops.size(), {});
    runner_.run_blocks(held_, job_.held_out->count, layer, layer + 1);
  }

  // The costs of the ends among the units.
  void ends(const std::vector<UnitSpecs>& units, const std::function<void()>& done,
            std::vector<std::vector<double>>& cost) {
    for (size_t u = 0; u < units.size(); ++u) {
      if (units[u].linears.layer != kOutsideBlocks) continue;
      if (!units[u].specs.empty()) cost[u] = end_costs(ex_, ckpt_, runner_, units[u], *job_.held_out, base_, job_.seed);
      done();
    }
  }

 private:
  using StatsOf = std::function<std::shared_ptr<const InputStats>(const std::string& name_in_block)>;
  using Weights = std::vector<std::pair<std::string, Tensor>>;  // by name in the block

  Tensor copy_of(ConstTensorView x) {
    Tensor y = ex_.alloc(x.dtype, x.shape);
    ex_.copy(x, y);
    return y;
  }

  // Brings the calibration, chunk by chunk, in front of an op of the block and shows what stands there.
  void pass(int64_t layer, size_t to, const std::function<void(const Activations&)>& see) {
    const std::optional<size_t> cut = cheapest_cut(ckpt_.spec.block(layer), calibration_.base(), to);
    for (int64_t chunk = 0; chunk < calibration_.chunks().count(); ++chunk) {
      const Activations& act = calibration_.bring(chunk, to, runner_.block(layer), ropes_, cut);
      if (see) see(act);
    }
    if (cut) calibration_.moved(*cut);
  }
  EachChunk input_of(int64_t layer, size_t op, Slot slot) {
    return [this, layer, op, slot](const auto& show) {
      pass(layer, op, [&](const Activations& act) { show({act[slot]}); });
    };
  }

  // Statistics of the input of a linear of an op, gathered when first asked for.
  StatsOf stats_of(int64_t layer, size_t index) {
    const BlockOp& op = ckpt_.spec.block(layer)[index];
    if (const auto* group = std::get_if<Linears>(&op)) {
      const auto shared = std::make_shared<InputStats>();
      return [this, layer, index, group, shared](const std::string&) {
        if (shared->gram.empty())
          *shared = observe_input(ex_, input_of(layer, index, group->in), calibration_.chunks().tokens(),
                                  {.in = group->items[0].in_features}, {});
        return shared;
      };
    }
    const auto* moe = std::get_if<Moe>(&op);
    if (!moe) return {};
    const BlockWeights& weights = runner_.block(layer);
    const auto seen = std::make_shared<std::optional<ExpertInputs>>();
    const auto inputs = [this, layer, index, moe, &weights, seen]() -> ExpertInputs& {
      const ExpertInputs::EachRouted each = [this, layer, index, moe](const ExpertInputs::Show& show) {
        pass(layer, index, [&](const Activations& act) { show(act[moe->in], {}, act[moe->routed()]); });
      };
      if (!*seen) seen->emplace(ex_, *moe, weights, each, false, kExpertsAtOnce);
      return **seen;
    };
    return [moe, &weights, inputs](const std::string& name) {
      const int expert = std::stoi(name.substr(moe->expert_name.size()));
      const bool down = name == moe->of_expert(moe->down, expert).name;
      const auto original = [&](const std::string& n) -> const Linear& { return weights.linears.at(n); };
      return std::make_shared<InputStats>(down ? inputs().of_activation(expert, {}, original)
                                               : inputs().of_input(expert, {}));
    };
  }

  // LinearJob::shared_absmax of linears with one input; experts are measured each for itself.
  float shared_absmax(int64_t layer, const BlockOp& op, const UnitSpecs& unit) {
    const bool needed = std::any_of(unit.specs.begin(), unit.specs.end(), [](const auto& s) { return s.two_level(); });
    float largest = 0;
    if (!needed || !std::holds_alternative<Linears>(op)) return largest;
    for (const std::string& full : unit.linears.names())
      largest = std::max(largest, absmax_of(ex_, weight_of(layer, full.substr(ckpt_.spec.prefix(layer).size()))));
    return largest;
  }

  void add_cost(int64_t layer, const std::vector<std::string>& probe, const StatsOf& stats, const UnitSpecs& unit,
                float absmax, std::vector<double>& cost) {
    if (unit.specs.empty()) return;
    std::vector<double> loss(unit.specs.size(), 0.0);
    Weights changed;
    for (const std::string& full : probe) {
      const std::string name = full.substr(ckpt_.spec.prefix(layer).size());
      const std::shared_ptr<const InputStats> input = stats(name);
      const Tensor w = weight_of(layer, name);
      for (size_t s = 0; s < unit.specs.size(); ++s) {
        const MethodResult r = method_gptq.quantize(ex_, {.name = full,
                                                          .weight = w,
                                                          .stats = input.get(),
                                                          .spec = unit.specs[s],
                                                          .effort = Effort::quick,
                                                          .allow_rtn = true,
                                                          .seed = job_.seed,
                                                          .shared_absmax = absmax});
        loss[s] += r.loss * static_cast<double>(input->tokens);
        if (s == unit.probe) changed.emplace_back(name, values_of(ex_, r.linear, job_.dtype));
      }
    }
    if (!(loss[unit.probe] > 0)) return;  // the probe holds these weights exactly
    const double weight = divergence_with(layer, changed) / loss[unit.probe];
    for (size_t s = 0; s < loss.size(); ++s) cost[s] += weight * loss[s];
  }

  Tensor weight_of(int64_t layer, const std::string& name) {
    const ConstTensorView stored = std::get<DenseLinear>(runner_.block(layer).linears.at(name)).weight;
    Tensor w = ex_.alloc(DType::f32, stored.shape);
    cast(ex_, stored, w);
    return w;
  }

  // Mean KL over the tokens of the held-out windows when the block has `changed` in place of its own weights.
  double divergence_with(int64_t layer, Weights& changed) {
    Tensor x = copy_of(held_);
    swap_in(layer, changed);
    runner_.run_blocks(x, job_.held_out->count, layer, ckpt_.spec.layers);
    swap_in(layer, changed);
    return mean_divergence(
        ex_, x.rows(), ckpt_.spec.vocab,
        [&](int64_t begin, int64_t end) { return runner_.logits(base_.view().row_range(begin, end)); },
        [&](int64_t begin, int64_t end) { return runner_.logits(x.view().row_range(begin, end)); });
  }

  void swap_in(int64_t layer, Weights& changed) {
    for (auto& [name, weight] : changed)
      std::swap(std::get<DenseLinear>(runner_.block(layer).linears.at(name)).weight, weight);
  }

  Exec& ex_;
  const Checkpoint& ckpt_;
  const SensitivityJob& job_;
  Runner runner_;
  RopeTables ropes_;
  StateStore store_;
  Stream calibration_;
  Tensor held_, base_;  // states of the held-out windows: in front of the block, and behind the last one
};

}  // namespace

std::vector<std::string> TiedLinears::names() const {
  std::vector<std::string> all;
  for (const auto& probe : probes) all.insert(all.end(), probe.begin(), probe.end());
  return all;
}

std::vector<TiedLinears> tied_linears(const ModelSpec& spec, const std::function<bool(const std::string&)>& skip,
                                      bool experts_together) {
  std::vector<TiedLinears> units;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::vector<BlockOp>& ops = spec.block(layer);
    const auto add = [&](size_t op, const std::vector<std::vector<LinearDef>>& probes) {
      TiedLinears unit{.layer = layer, .op = op};
      for (const std::vector<LinearDef>& probe : probes) {
        std::vector<std::string> names;
        for (const LinearDef& l : probe)
          if (std::string name = spec.prefix(layer) + l.name; !skip(name)) names.push_back(std::move(name));
        if (!names.empty()) unit.probes.push_back(std::move(names));
      }
      if (!unit.probes.empty()) units.push_back(std::move(unit));
    };
    for (size_t i = 0; i < ops.size(); ++i) {
      if (const auto* group = std::get_if<Linears>(&ops[i])) {
        std::vector<std::vector<LinearDef>> each;
        for (const LinearDef& l : group->items) each.push_back({l});
        add(i, each);
      } else if (const auto* moe = std::get_if<Moe>(&ops[i])) {
        const auto of_all = [moe](const LinearDef& def) {
          std::vector<LinearDef> all;
          for (int e = 0; e < moe->experts; ++e) all.push_back(moe->of_expert(def, e));
          return all;
        };
        std::vector<std::vector<LinearDef>> front;
        if (moe->gated()) front.push_back(of_all(moe->gate));
        front.push_back(of_all(moe->up));
        if (experts_together) front.push_back(of_all(moe->down));
        add(i, front);
        if (!experts_together) add(i, {of_all(moe->down)});
      }
    }
  }
  return units;
}

std::vector<std::vector<double>> measure_sensitivity(Exec& ex, const Checkpoint& c, const std::vector<UnitSpecs>& units,
                                                     const SensitivityJob& job) {
  FEWBIT_ASSERT(job.calibration->count > 0 && job.held_out->count > 0);
  refuse_what_reads_others(c);
  std::vector<std::vector<double>> cost;
  size_t probes = 0, done = 0;
  for (const UnitSpecs& u : units) {
    FEWBIT_ASSERT(u.specs.empty() || u.probe < u.specs.size());
    cost.emplace_back(u.specs.size(), 0.0);
    probes += u.linears.probes.size();
  }
  need_no_shared_choice(c.spec, "auto", std::max(job.calibration->length, job.held_out->length));
  Measurement measurement(ex, c, job);
  const auto tell = [&] {
    ++done;
    if (job.progress) job.progress(static_cast<double>(done) / static_cast<double>(probes));
  };
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) measurement.block(layer, units, tell, cost);
  measurement.ends(units, tell, cost);
  return cost;
}

}  // namespace fewbit

// BlockLoop, mixtures of experts: their linears, and their weights in waves where not all of them have room at once.
#include <algorithm>

#include "src/quant/loop/block_loop.h"

namespace fewbit {

// What the experts' linears multiply, chunk by chunk; `routed` is what the router reads.
ExpertInputs::EachRouted BlockLoop::routed_to(size_t op, const Moe& moe) {
  return [this, op, &moe](const ExpertInputs::Show& show) {
    Shown slots{.quantized = {moe.in}};
    const bool apart = moe.routed() != moe.in;
    if (apart) slots.quantized.push_back(moe.routed());
    if (full_) slots.full = {moe.in};
    pass(op, slots, [&](int64_t, const ChunkShare::Rows& rows) {
      show(rows[0], full_ ? rows.back() : ConstTensorView{}, rows[apart ? 1 : 0]);
    });
  };
}

// A mixture of experts: gate and up of every expert, then every down, whose inputs the quantized gates decide. Ranks
// take experts of their own where they can.
void BlockLoop::quantize_experts(size_t op, const Moe& moe) {
  const bool waves = in_waves(ops()[op]);
  if (waves && coder_.restores()) return;  // sum_mixtures() asks for them
  const LinearOf linear = [&](const std::string& name) -> const Linear& {
    const auto it = replaced_.find(name);
    return it == replaced_.end() ? weights_.linears.at(name) : it->second;
  };
  std::optional<ExpertInputs> seen;
  const auto stats_of = [&](auto&& ask) -> std::optional<InputStats> {
    if (!seen) return std::nullopt;
    return ask(*seen);
  };
  const auto loaded = [this](const LinearDef& l) -> ConstTensorView {
    const auto it = weights_.linears.find(l.name);
    const auto* dense = it == weights_.linears.end() ? nullptr : std::get_if<DenseLinear>(&it->second);
    return dense ? ConstTensorView(dense->weight) : ConstTensorView{};
  };
  std::vector<BlockCoder::Group> first, second;
  for (int e = 0; e < moe.experts; ++e) {
    first.push_back(
        {moe.wide_of(e),
         [&stats_of, e](const InputRounding& r) { return stats_of([&](ExpertInputs& s) { return s.of_input(e, r); }); },
         loaded});
    second.push_back({{moe.of_expert(moe.down, e)},
                      [&stats_of, &linear, e](const InputRounding& r) {
                        return stats_of([&](ExpertInputs& s) { return s.of_activation(e, r, linear); });
                      },
                      loaded});
  }
  const std::optional<InputRounding> inputs = coder_.apart(first), activations = coder_.apart(second);
  const bool apart = inputs && activations;
  if (quantized_ && !coder_.restores()) {
    load_linears(op, op + 1);
    ExpertInputs::Hold hold;
    if (waves) hold = [this, &moe, apart](int begin, int end) { hold_inputs(moe, begin, end, apart); };
    seen.emplace(ex_, moe, weights_, routed_to(op, moe), full_.has_value(), plan_.memory.experts_at_once,
                 apart ? ranks_ : one_process(), hold);
    experts_.push_back({layer_, seen->tokens(), seen->starved()});
  }
  std::map<std::string, Linear>* const replaced = waves ? nullptr : &replaced_;
  const auto look_at_inputs = [&](size_t e) {
    if (seen) seen->look_at_inputs(static_cast<int>(e), *inputs);
  };
  const auto look_at_activations = [&](size_t e) {
    if (seen) seen->look_at_activations(static_cast<int>(e), *activations, linear);
  };
  const auto quantize_all = [&](const std::vector<BlockCoder::Group>& groups, const std::function<void(size_t)>& look) {
    if (apart) return coder_.quantize_apart(groups, look, replaced);
    if (replaced && ranks_.alone() && coder_.beside(groups)) return coder_.quantize_beside(groups, replaced);
    for (const BlockCoder::Group& g : groups) coder_.quantize(g.items, g.observed, replaced);
  };
  quantize_all(first, look_at_inputs);
  add_biases(moe);
  quantize_all(second, look_at_activations);
}

// Gates and ups as down's input needs them in the quantized stream: with their biases.
void BlockLoop::add_biases(const Moe& moe) {
  for (int e = 0; e < moe.experts; ++e)
    for (const LinearDef& l : moe.wide_of(e))
      if (const auto it = replaced_.find(l.name); l.bias && it != replaced_.end())
        std::get<DenseLinear>(it->second).bias = bias_of(l);
}

// What makes the inputs of down, of experts [first, last): the original gates and ups where the unquantized stream or
// the plan wants them, and those of the quantized stream. Of several ranks that look at experts apart each has its own.
void BlockLoop::hold_inputs(const Moe& moe, int first, int last, bool apart) {
  std::vector<LinearDef> linears;
  std::vector<bool> own;
  for (int e = first; e < last; ++e)
    for (LinearDef& l : moe.wide_of(e)) {
      linears.push_back(std::move(l));
      own.push_back(!apart || e % ranks_.size() == ranks_.rank());
    }
  drop_experts(moe);
  hold_experts(linears, [&](size_t i) { return own[i]; });
  add_biases(moe);
}

void BlockLoop::drop_experts(const Moe& moe) {
  for (int e = 0; e < moe.experts; ++e)
    for (const LinearDef& l : moe.linears_of_expert(e)) {
      weights_.linears.erase(l.name);
      replaced_.erase(l.name);
    }
}

// Collective: what was quantized lies packed with rank 0, which sends it to all.
void BlockLoop::hold_experts(const std::vector<LinearDef>& linears, const std::function<bool(size_t)>& wanted) {
  phases_.timed("load", [&] {
    for (size_t i = 0; i < linears.size(); ++i) {
      const LinearDef& l = linears[i];
      const bool kept = coder_.keeps(l);
      if (wanted(i) && (full_ || kept))
        load(l);
      else if (wanted(i))
        weights_.linears.emplace(l.name, DenseLinear{.bias = bias_of(l)});
      if (kept) continue;
      DenseLinear again = coder_.again(l);
      if (wanted(i)) replaced_.emplace(l.name, std::move(again));
    }
  });
}

// The answers of the mixtures in front of op `to`, in both streams, a few experts after the other over all chunks.
void BlockLoop::sum_mixtures(size_t to) {
  for (size_t op = quantized_->base(); op < to; ++op) {
    if (!in_waves(ops()[op]) || !summed_.insert(op).second) continue;
    const Moe& moe = std::get<Moe>(ops()[op]);
    const int at_once = plan_.memory.experts_at_once;
    for (int first = 0; first < moe.experts; first += at_once) {
      const int last = std::min(moe.experts, first + at_once);
      std::vector<LinearDef> linears;
      for (int e = first; e < last; ++e)
        for (LinearDef& l : moe.linears_of_expert(e)) linears.push_back(std::move(l));
      hold_experts(linears, [](size_t) { return true; });
      pass(op, {}, {}, {}, [&](int64_t chunk, Stream& s) { s.add_experts(chunk, op, weights_, first, last); });
      drop_experts(moe);
    }
  }
}

}  // namespace fewbit

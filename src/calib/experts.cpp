#include "src/calib/experts.h"

#include <algorithm>
#include <numeric>

#include "kernels/model/route.h"
#include "kernels/quantize/matrix_edit.h"
#include "src/ranks/exchange.h"

namespace fewbit {
namespace {

double trace(Exec& ex, const Tensor& h) {
  const Tensor d = ex.alloc(DType::f32, {h.rows()});
  diagonal(ex, h, d);
  const Tensor host = ex.to_host(d);
  return std::accumulate(host.as<float>(), host.as<float>() + host.numel(), 0.0);
}

// to += factor * from, both [n, n] f32.
void add_scaled(Exec& ex, double factor, const Tensor& from, const Tensor& to) {
  const Tensor rows = Tensor::host(DType::i32, {from.rows()});
  const Tensor factors = Tensor::host(DType::f32, {from.rows()});
  std::iota(rows.as<int32_t>(), rows.as<int32_t>() + rows.numel(), 0);
  std::fill_n(factors.as<float>(), factors.numel(), static_cast<float>(factor));
  scatter_add_rows(ex, from, ex.to_device(rows), ex.to_device(factors), to);
}

int64_t enough_tokens(int64_t in) { return 2 * in; }

}  // namespace

void count_tokens(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x,
                  std::vector<int64_t>& tokens) {
  tokens.resize(static_cast<size_t>(op.experts));
  const Routing routing = route_tokens(ex, op, weights, x);
  for (int e = 0; e < op.experts; ++e) tokens[static_cast<size_t>(e)] += routing.tokens(e);
}

std::vector<int> starved_of(const Moe& op, const std::vector<int64_t>& tokens) {
  std::vector<int> out;
  for (int e = 0; e < op.experts; ++e)
    if (tokens[static_cast<size_t>(e)] < enough_tokens(std::max(op.gate.in_features, op.down.in_features)))
      out.push_back(e);
  return out;
}

ExpertInputs::ExpertInputs(Exec& ex, const Moe& op, const BlockWeights& weights, EachRouted each, bool cross,
                           int at_once, const Ranks& ranks, Hold hold)
    : ex_(ex),
      op_(op),
      weights_(weights),
      each_(std::move(each)),
      cross_(cross),
      at_once_(std::max(1, at_once)),
      ranks_(ranks),
      hold_(std::move(hold)) {
  tokens_.resize(static_cast<size_t>(op.experts));
  each_([&](ConstTensorView, ConstTensorView, ConstTensorView routed) {
    Routing& r = routings_.emplace_back(route_tokens(ex_, op_, weights_, routed));
    r.weights.reset();
    r.places.reset();
    for (int e = 0; e < op_.experts; ++e) tokens_[static_cast<size_t>(e)] += r.tokens(e);
  });
}

std::vector<int> ExpertInputs::starved() const { return starved_of(op_, tokens_); }

bool ExpertInputs::any_below(int64_t in) const {
  return std::any_of(tokens_.begin(), tokens_.end(), [in](int64_t n) { return n < enough_tokens(in); });
}

void ExpertInputs::borrow(InputStats& own, const InputStats& all) {
  own.borrowed = enough_tokens(own.gram.rows()) - own.tokens;
  const double tokens = static_cast<double>(own.tokens), all_tokens = static_cast<double>(all.tokens);
  const double own_trace = trace(ex_, own.gram), all_trace = trace(ex_, all.gram);
  const double match = own_trace > 0 && all_trace > 0 ? own_trace / tokens / (all_trace / all_tokens) : 1;
  const double factor = static_cast<double>(own.borrowed) / all_tokens * match;
  add_scaled(ex_, factor, all.gram, own.gram);
  if (own.cross) add_scaled(ex_, factor, all.cross, own.cross);
  own.tokens += own.borrowed;
  own.input_scale = std::max(own.input_scale, all.input_scale);
  own.input_reach = std::min(own.input_reach, all.input_reach);
}

// The rows of this rank's experts among [first, last), in pieces.
void ExpertInputs::show_inputs(int first, int last, const RowsOf& see) {
  std::vector<int> mine;
  for (int e = first; e < last; ++e)
    if (owns(e)) mine.push_back(e);
  ExpertPieces pieces(ex_, std::move(mine), see);
  size_t chunk = 0;
  each_([&](ConstTensorView x, ConstTensorView x_full, ConstTensorView) {
    pieces.add(routings_.at(chunk++), x, cross_ ? x_full : ConstTensorView{});
  });
  pieces.finish();
}

// What the experts make of their rows.
void ExpertInputs::show_activations(int first, int last, const LinearOf& quantized, const RowsOf& see) {
  const auto original = [&](const std::string& name) -> const Linear& { return weights_.linears.at(name); };
  show_inputs(first, last, [&](int e, ConstTensorView x, ConstTensorView x_full) {
    const Tensor mine = expert_activation(ex_, op_, e, quantized, x);
    const Tensor full = x_full.data ? expert_activation(ex_, op_, e, original, x_full) : Tensor();
    see(e, mine, full);
  });
}

// Statistics of this rank's experts among [first, last) over the rows that `show` shows; twice where a static scale
// must be found first.
ExpertInputs::Wave ExpertInputs::observe(int first, int last, int64_t in, const InputRounding& rounding,
                                         const std::function<void(const RowsOf&)>& show) {
  const auto at = [first](int e) { return static_cast<size_t>(e - first); };
  std::vector<InputRange> ranges;
  if (rounding.activations == ActQuant::tensor) {
    for (int e = first; e < last; ++e) ranges.emplace_back(ex_, rounding, tokens_[static_cast<size_t>(e)], in);
    show([&](int e, ConstTensorView x, ConstTensorView) { ranges[at(e)].add(x); });
  }
  std::vector<std::unique_ptr<InputSums>> sums(static_cast<size_t>(last - first));
  for (int e = first; e < last; ++e)
    if (owns(e))
      sums[at(e)] = std::make_unique<InputSums>(ex_, InputSumsOf{.in = in, .cross = cross_}, rounding,
                                                ranges.empty() ? 1.f : ranges[at(e)].scale(), one_process());
  show([&](int e, ConstTensorView x, ConstTensorView x_full) { sums[at(e)]->add_piece({x, x_full}); });
  Wave wave{.first = first, .rounding = rounding};
  for (auto& s : sums) {
    std::optional<InputStats>& stats = wave.stats.emplace_back();
    if (!s) continue;
    stats = s->finish();
    s.reset();
  }
  return wave;
}

// Alike on all ranks for the first of as many experts as there are ranks: none of them was taken, or all were.
bool ExpertInputs::holds(const std::optional<Wave>& wave, int expert, const InputRounding& rounding) const {
  if (!wave || !(wave->rounding == rounding)) return false;
  const int at = expert - wave->first;
  if (at < 0 || at >= static_cast<int>(wave->stats.size())) return false;
  return !owns(expert) || wave->stats[static_cast<size_t>(at)].has_value();
}

// Makes the wave that begins with an expert, unless it is in the one at hand.
void ExpertInputs::look(std::optional<Wave>& wave, int expert, const InputRounding& rounding,
                        const std::function<Wave(int, int)>& make) const {
  if (holds(wave, expert, rounding)) return;
  wave.reset();  // its memory goes before the next is made
  wave = make(expert, std::min(op_.experts, expert + at_once_ * ranks_.size()));
}

InputStats ExpertInputs::taken(Wave& wave, int expert) {
  std::optional<InputStats>& found = wave.stats[static_cast<size_t>(expert - wave.first)];
  FEWBIT_ASSERT(found.has_value());
  InputStats stats = std::move(*found);
  found.reset();
  return stats;
}

void ExpertInputs::look_at_inputs(int expert, const InputRounding& rounding) {
  if (any_below(op_.hidden) && !(all_inputs_ && all_inputs_->rounding == rounding)) {
    const EachChunk inputs = [&](const auto& show) {
      each_([&](ConstTensorView x, ConstTensorView x_full, ConstTensorView) { show({x, x_full}); });
    };
    int64_t tokens = 0;
    for (const int64_t n : tokens_) tokens += n;
    all_inputs_ = {rounding, observe_input(ex_, inputs, tokens / op_.top_k, {.in = op_.hidden, .cross = cross_},
                                           rounding, ranks_)};
  }
  look(inputs_, expert, rounding, [&](int first, int last) {
    return observe(first, last, op_.hidden, rounding, [&](const RowsOf& see) { show_inputs(first, last, see); });
  });
}

InputStats ExpertInputs::of_input(int expert, const InputRounding& rounding) {
  if (ranks_.alone()) look_at_inputs(expert, rounding);
  InputStats s = taken(*inputs_, expert);
  if (s.tokens < enough_tokens(op_.hidden)) borrow(s, all_inputs_->stats);
  return s;
}

ExpertInputs::Wave ExpertInputs::activations(int first, int last, const InputRounding& rounding,
                                             const LinearOf& quantized) {
  if (hold_) hold_(first, last);
  Wave wave = observe(first, last, op_.down.in_features, rounding,
                      [&](const RowsOf& see) { show_activations(first, last, quantized, see); });
  if (hold_) hold_(0, 0);
  return wave;
}

// The sums of an expert that another rank looked at.
void ExpertInputs::from_owner(std::optional<InputStats>& stats, int expert, int64_t in) {
  const int owner = expert % ranks_.size();
  if (!stats) {
    stats.emplace();
    stats->tokens = tokens_[static_cast<size_t>(expert)];
    stats->gram = ex_.alloc(DType::f32, {in, in});
    if (cross_) stats->cross = ex_.alloc(DType::f32, {in, in});
  }
  ranks_.broadcast(ex_, stats->gram, owner);
  if (cross_) ranks_.broadcast(ex_, stats->cross, owner);
  stats->input_scale = value_of_root(ranks_, stats->input_scale, owner);
  stats->input_reach = value_of_root(ranks_, stats->input_reach, owner);
}

// The sums of all experts together, wave by wave: once more through every expert, rather than all of their sums side by
// side in memory.
ExpertInputs::Layer ExpertInputs::all_activations(const InputRounding& rounding, const LinearOf& quantized) {
  std::optional<InputStats> all;
  const int at_once = at_once_ * ranks_.size();
  for (int first = 0; first < op_.experts; first += at_once) {
    Wave wave = activations(first, std::min(op_.experts, first + at_once), rounding, quantized);
    for (size_t i = 0; i < wave.stats.size(); ++i) {
      std::optional<InputStats>& other = wave.stats[i];
      from_owner(other, first + static_cast<int>(i), op_.down.in_features);
      if (!all) {
        all = std::move(*other);
        continue;
      }
      add_scaled(ex_, 1, other->gram, all->gram);
      if (other->cross) add_scaled(ex_, 1, other->cross, all->cross);
      all->tokens += other->tokens;
      all->input_scale = std::max(all->input_scale, other->input_scale);
      all->input_reach = std::min(all->input_reach, other->input_reach);
      other.reset();
    }
  }
  return {rounding, std::move(*all)};
}

void ExpertInputs::look_at_activations(int expert, const InputRounding& rounding, const LinearOf& quantized) {
  inputs_.reset();
  all_inputs_.reset();
  if (any_below(op_.down.in_features) && !(all_activations_ && all_activations_->rounding == rounding)) {
    activations_.reset();
    all_activations_ = all_activations(rounding, quantized);
  }
  look(activations_, expert, rounding,
       [&](int first, int last) { return activations(first, last, rounding, quantized); });
}

InputStats ExpertInputs::of_activation(int expert, const InputRounding& rounding, const LinearOf& quantized) {
  if (ranks_.alone()) look_at_activations(expert, rounding, quantized);
  InputStats s = taken(*activations_, expert);
  if (s.tokens < enough_tokens(op_.down.in_features)) borrow(s, all_activations_->stats);
  return s;
}

}  // namespace fewbit

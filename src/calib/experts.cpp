#include "src/calib/experts.h"

#include <algorithm>
#include <numeric>

#include "kernels/model/route.h"
#include "kernels/quantize/matrix_edit.h"

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

ExpertInputs::ExpertInputs(Exec& ex, const Moe& op, const BlockWeights& weights, ConstTensorView x,
                           ConstTensorView x_full)
    : ex_(ex), op_(op), weights_(weights), x_(x), x_full_(x_full), routing_(route_tokens(ex, op, weights, x)) {}

std::vector<int64_t> ExpertInputs::tokens() const {
  std::vector<int64_t> n;
  for (int e = 0; e < op_.experts; ++e) n.push_back(routing_.tokens(e));
  return n;
}

std::vector<int> ExpertInputs::starved() const {
  std::vector<int> out;
  for (int e = 0; e < op_.experts; ++e)
    if (routing_.tokens(e) < enough_tokens(std::max(op_.gate.in_features, op_.down.in_features))) out.push_back(e);
  return out;
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
}

InputStats ExpertInputs::of_input(int expert, const InputRounding& rounding) {
  const ConstTensorView rows = routing_.rows_of(expert);
  const Tensor x = gather_rows(ex_, x_, rows);
  InputStats s = observe_input(ex_, x, x_full_.data ? gather_rows(ex_, x_full_, rows) : Tensor(), rounding);
  if (s.tokens >= enough_tokens(op_.hidden)) return s;
  if (!all_inputs_ || !(all_inputs_->rounding == rounding))
    all_inputs_ = {rounding, observe_input(ex_, x_, x_full_, rounding)};
  borrow(s, all_inputs_->stats);
  return s;
}

InputStats ExpertInputs::own_activation(int expert, const InputRounding& rounding, const LinearOf& quantized) {
  const ConstTensorView rows = routing_.rows_of(expert);
  if (rows.numel() == 0) {
    const Tensor none = ex_.alloc(x_.dtype, {0, op_.down.in_features});
    return observe_input(ex_, none, x_full_.data ? none.view() : ConstTensorView{}, rounding);
  }
  const std::string gate = op_.of_expert(op_.gate, expert).name, up = op_.of_expert(op_.up, expert).name;
  const Tensor act = expert_activation(ex_, op_, quantized(gate), quantized(up), gather_rows(ex_, x_, rows));
  if (!x_full_.data) return observe_input(ex_, act, {}, rounding);
  return observe_input(
      ex_, act,
      expert_activation(ex_, op_, weights_.linears.at(gate), weights_.linears.at(up), gather_rows(ex_, x_full_, rows)),
      rounding);
}

InputStats ExpertInputs::of_activation(int expert, const InputRounding& rounding, const LinearOf& quantized) {
  InputStats s = own_activation(expert, rounding, quantized);
  if (s.tokens >= enough_tokens(op_.down.in_features)) return s;
  if (!all_activations_ || !(all_activations_->rounding == rounding)) {
    // Once more through every expert, rather than the sums of all of them side by side in memory.
    all_activations_ = {rounding, own_activation(0, rounding, quantized)};
    InputStats& all = all_activations_->stats;
    for (int e = 1; e < op_.experts; ++e) {
      const InputStats other = own_activation(e, rounding, quantized);
      add_scaled(ex_, 1, other.gram, all.gram);
      if (other.cross) add_scaled(ex_, 1, other.cross, all.cross);
      all.tokens += other.tokens;
      all.input_scale = std::max(all.input_scale, other.input_scale);
    }
  }
  borrow(s, all_activations_->stats);
  return s;
}

}  // namespace fewbit

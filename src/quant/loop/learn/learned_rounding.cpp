#include "src/quant/loop/learn/learned_rounding.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/model/add.h"
#include "kernels/model/cast.h"
#include "kernels/quantize/learned_grid.h"
#include "kernels/quantize/matrix_edit.h"
#include "kernels/statistics/squared_error.h"
#include "src/core/rng.h"
#include "src/quant/loop/learn/block_tape.h"

namespace fewbit {
namespace {

constexpr int64_t kBatch = 8;  // windows of a step
// How far a level can travel in all steps together. It begins in the middle of its code's interval, half a
// step from the next code: with little more than that to go, a code changes only where the signs of its
// gradients agree through most of the run. Codes that begin at the edge their weight is nearest to turn over
// in crowds, by noise alone.
constexpr float kTravel = 0.6f;
constexpr float kFactorRate = 1e-3f;  // of a scale's factor, per step at the beginning

// A linear's variables on the device.
struct Variables {
  Tensor level, factor, mean, square, scales, zeros;
  int bits = 4;
  int64_t group = 128;
  DType scale_dtype = DType::f16;

  Variables(Exec& ex, const LearnedLinear& l)
      : scales(ex.to_device(l.coded->scales)),
        zeros(l.coded->zeros ? ex.to_device(*l.coded->zeros) : Tensor()),
        bits(l.coded->spec.bits),
        group(l.coded->spec.group_size(l.coded->in())),
        scale_dtype(l.coded->spec.scale_dtype) {
    FEWBIT_ASSERT(l.coded->spec.grid == Grid::integer && !l.coded->group_of);
    level = ex.alloc(DType::f32, l.coded->codes.shape());
    for (Tensor* t : {&factor, &mean, &square}) *t = ex.alloc(DType::f32, scales.shape());
    learned_start(ex, ex.to_device(l.coded->codes), grid());
  }
  LearnedGrid grid() const {
    return {.start = {.scales = scales, .zeros = zeros, .bits = bits, .group = group},
            .level = level,
            .factor = factor,
            .mean = mean,
            .square = square,
            .scale_dtype = scale_dtype};
  }
};

// Windows in a random order, drawn anew when all have been seen.
class Draw {
 public:
  Draw(uint64_t seed, int64_t layer, int64_t windows)
      : rng_(seed, "learned rounding " + std::to_string(layer)), order_(static_cast<size_t>(windows)) {
    std::iota(order_.begin(), order_.end(), int64_t{0});
  }
  int64_t next() {
    if (at_ == 0)
      for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[rng_.below(i)]);
    const int64_t window = order_[at_];
    at_ = (at_ + 1) % order_.size();
    return window;
  }

 private:
  Rng rng_;
  std::vector<int64_t> order_;
  size_t at_ = 0;
};

class Learner {
 public:
  Learner(Exec& ex, const BlockLearning& job)
      : ex_(ex),
        job_(job),
        len_(job.entering->chunks().length),
        windows_(job.entering->chunks().windows),
        batch_(std::min(kBatch, windows_)),
        weights_(in_f32(ex, *job.weights)),
        tape_(ex, *job.spec, job.layer, batch_, len_) {
    target_ = ex.alloc(DType::f32, {batch_ * len_, job.spec->hidden});
    minus_ones_ = ex.to_device(Tensor::host_from<float>(
        DType::f32, {job.spec->hidden}, std::vector<float>(static_cast<size_t>(job.spec->hidden), -1.f)));
    for (const LearnedLinear& l : job.linears) {
      variables_.emplace_back(ex, l);
      gradients_.emplace(l.name, ex.alloc(DType::f32, l.coded->codes.shape()));
    }
    set_values();
  }

  // Mean squared error of the block's output on all windows.
  double loss() {
    double sum = 0;
    for (int64_t w = 0; w < windows_; w += batch_) {
      const int64_t seqs = std::min(batch_, windows_ - w);
      for (int64_t s = 0; s < seqs; ++s) load(w + s, s);
      tape_.run(weights_, *job_.ropes, seqs);
      const Tensor rows = ex_.alloc(DType::f64, {seqs * len_});
      squared_error(ex_, tape_.states(seqs), target_.view().row_range(0, seqs * len_), rows);
      const Tensor host = ex_.to_host(rows);
      sum = std::accumulate(host.as<double>(), host.as<double>() + host.numel(), sum);
    }
    return sum / static_cast<double>(windows_ * len_ * job_.spec->hidden);
  }

  // Step `number` of `count`.
  void step(int number, int count, Draw& draw) {
    for (int64_t s = 0; s < batch_; ++s) load(draw.next(), s);
    tape_.record(weights_, *job_.ropes, batch_);
    // The gradient of half the squared error, y - t: its size changes neither a sign nor Adam's step.
    scale_columns(ex_, minus_ones_, target_);
    add(ex_, tape_.states(batch_), target_);
    tape_.backward(weights_, target_, gradients_);
    const float left = 1 - static_cast<float>(number) / static_cast<float>(count);
    const LearnedStep step{
        .level_rate = 2 * kTravel / static_cast<float>(count) * left,
        .factor_rate = kFactorRate * left,
        .count = number + 1,
    };
    for (size_t i = 0; i < variables_.size(); ++i)
      learned_step(ex_, gradients_.at(job_.linears[i].name), step, variables_[i].grid());
    set_values();
  }

  void write_codes() {
    for (size_t i = 0; i < variables_.size(); ++i) {
      QuantizedLinear& q = *job_.linears[i].coded;
      const Tensor codes = ex_.alloc(DType::u8, q.codes.shape());
      const Tensor scales = ex_.alloc(DType::f32, q.scales.shape());
      learned_codes(ex_, variables_[i].grid(), codes, scales);
      q.codes = ex_.to_host(codes);
      q.scales = ex_.to_host(scales);
    }
  }

 private:
  void set_values() {
    for (size_t i = 0; i < variables_.size(); ++i)
      learned_values(ex_, variables_[i].grid(),
                     std::get<DenseLinear>(weights_.linears.at(job_.linears[i].name)).weight);
  }
  // Window `window` to the place of sequence `seq`.
  void load(int64_t window, int64_t seq) {
    const auto rows = [&](TensorView view) { return view.row_range(seq * len_, (seq + 1) * len_); };
    if (room_.empty()) room_ = ex_.alloc(job_.entering->dtype(), {len_, job_.spec->hidden});
    const auto fetch = [&](const States& states) {
      const int64_t begin = window * len_, end = begin + len_;
      return job_.share ? job_.share->get(states, begin, end, room_) : states.get(begin, end, room_);
    };
    fetch(*job_.entering);
    cast(ex_, room_, rows(tape_.states(batch_)));
    fetch(*job_.target);
    cast(ex_, room_, rows(target_));
  }

  Exec& ex_;
  const BlockLearning& job_;
  int64_t len_, windows_, batch_;
  BlockWeights weights_;
  BlockTape tape_;
  Tensor target_{}, minus_ones_{}, room_{};  // room_: a window as it is stored
  std::vector<Variables> variables_{};
  std::map<std::string, Tensor> gradients_{};
};

// Steps that fit, after the first loss took the seconds between the two. A step is a pass forward of its windows and
// twice as much on its way back; the loss at the end is another pass of all windows.
int steps_within(double left_before_loss, double left, int64_t windows) {
  const double loss = std::max(left_before_loss - left, 1e-9);
  const double step = 3 * loss * static_cast<double>(std::min(kBatch, windows)) / static_cast<double>(windows);
  return static_cast<int>(std::clamp((left - loss) / step, 0.0, static_cast<double>(kLearningSteps)));
}

}  // namespace

LearnedResult learn_rounding(Exec& ex, const BlockLearning& job) {
  const int64_t windows = job.entering->chunks().windows;
  FEWBIT_ASSERT(windows > 0 && job.entering->features() == job.target->features());
  LearnedResult result;
  const auto left = [&] { return job.seconds_left ? job.seconds_left() : std::numeric_limits<double>::infinity(); };
  const double at_start = left();
  if (at_start <= 0) return result;
  Learner learner(ex, job);
  result.before = learner.loss();
  const int count = job.seconds_left ? steps_within(at_start, left(), windows) : kLearningSteps;
  Draw draw(job.seed, job.layer, windows);
  while (result.steps < count && left() > 0) {
    learner.step(result.steps++, count, draw);
    if (job.progress) job.progress(static_cast<double>(result.steps) / count);
  }
  if (result.steps > 0) result.after = learner.loss();
  result.changed = result.steps > 0 && result.after < result.before;  // false for NaN
  if (result.changed)
    learner.write_codes();
  else
    result.after = result.before;
  return result;
}

double learning_passes(int64_t windows) {
  return 3. * kLearningSteps * static_cast<double>(std::min(kBatch, windows)) + 2. * static_cast<double>(windows);
}

int64_t learning_bytes(const ModelSpec& spec, const std::vector<BlockOp>& ops, int64_t weights, int64_t windows,
                       int64_t len) {
  const int64_t seqs = std::min(kBatch, windows), tokens = seqs * len;
  int64_t features = 4 * spec.hidden, heads = 0;  // states, target and what the two norms saw
  for (int s = 1; s < kSlots; ++s) features += 4 * slot_features(spec, ops, static_cast<Slot>(s));
  for (const BlockOp& op : ops)
    if (std::holds_alternative<Attention>(op)) heads = 1;
  // The weight, its coded value, its level and its gradient, and the code.
  return weights * 17 + 4 * tokens * features + heads * 8 * tokens * len;
}

}  // namespace fewbit

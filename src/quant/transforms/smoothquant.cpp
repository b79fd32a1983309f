// SmoothQuant (arXiv 2211.10438): where inputs are rounded to 8 bits too, a feature whose values are far larger than
// the rest costs all others their precision. Part of its size moves into the weights: x_j / s_j and w_j s_j with s_j =
// max|x_j|^alpha / max|w_j|^(1 - alpha). A fixed alpha is applied behind norms, as published; searched, it is chosen
// for every absorber by the output error of its consumers with inputs and weights rounded as they will be; from there
// every feature's scale descends by itself (src/quant/search/rounding_noise.h), and goes as far as helps on other
// tokens.
#include <algorithm>
#include <cmath>

#include "kernels/exec/upload.h"
#include "kernels/model/cast.h"
#include "kernels/products/bytes/quantize_rows.h"
#include "kernels/products/gemm_in_terms.h"
#include "kernels/quantize/matrix_edit.h"
#include "kernels/statistics/column_stats.h"
#include "kernels/statistics/squared_error.h"
#include "src/calib/observe.h"
#include "src/quant/rounding.h"
#include "src/quant/search/rounding_noise.h"
#include "src/run/moe.h"

namespace fewbit {
namespace {

constexpr float kLeast = 1e-5f;                 // of a scale
constexpr float kCoarse = 0.1f, kFine = 0.05f;  // steps of alpha
constexpr int64_t kJudgedShare = 4;             // one token of so many judges, the others are descended on

// The largest over the input features that share a feature of the absorber.
Features by_absorber_feature(Exec& ex, const Absorber& a, const Tensor& input) {
  const Tensor host = ex.to_host(input);
  Features most(static_cast<size_t>(a.features));
  for (int64_t j = 0; j < host.numel(); ++j) {
    float& m = most[static_cast<size_t>(a.source(j))];
    m = std::max(m, host.as<float>()[j]);
  }
  return most;
}

struct Consumer {
  LinearTarget target{};
  Tensor weight{};    // some of its rows, [n, in] f32
  Tensor exact{};     // their outputs on the tokens that judge, [tokens, n] f32
  double energy = 0;  // of those
};

class Search {
 public:
  Search(Exec& ex, const TransformJob& job, const BlockF32& block, const Absorber& a)
      : ex_(ex), job_(job), block_(block), absorber_(a), stats_(job.stats.at(a.name)) {
    const int64_t in = stats_.absmax.numel();
    const Tensor most = ex.alloc_zeros(DType::f32, {in}), sum = ex.alloc_zeros(DType::f64, {in});
    for_consumers(job, block, a, [&](const LinearTarget& target, ConstTensorView w) {
      column_stats(ex, w, {}, most, sum);
      consumers_.push_back({.target = target, .weight = spread_rows(ex, w, judged_rows(a))});
    });
    activation_ = by_absorber_feature(ex, a, stats_.absmax);
    weight_ = by_absorber_feature(ex, a, most);
  }

  // max|x|^alpha / max|w|^(1 - alpha), as the absorber can take it; features without values are left alone.
  Features at(float alpha) const {
    Features s(activation_.size(), 1.f);
    for (size_t j = 0; j < s.size(); ++j)
      if (activation_[j] > 0 && weight_[j] > 0)
        s[j] = std::max(kLeast, std::pow(activation_[j], alpha) / std::pow(weight_[j], 1 - alpha));
    return foldable_scale(block_, *job_.ops, absorber_, s);
  }

  // The scales with the least output error, or nothing where none beat leaving the block as it is.
  Features best() {
    prepare();
    LeastLoss least(error(Features(activation_.size(), 1.f)));
    float middle = 0.5f;
    const auto tried = [&](float alpha) {
      const Features s = at(alpha);
      if (least.take(s, error(s))) middle = alpha;
    };
    for (int i = 0; i <= 10; ++i) tried(kCoarse * static_cast<float>(i));
    if (!least.best().empty()) {
      const float coarse = middle;
      for (const float alpha : {coarse - kFine, coarse + kFine}) tried(std::clamp(alpha, 0.f, 1.f));
    }
    if (!descends()) return least.best();
    const Features start = least.best().empty() ? Features(activation_.size(), 1.f) : least.best();
    const Features end = least_noise(ex_, absorber_, others_, noisy(), start);
    for (const float way : {0.25f, 0.5f, 0.75f, 1.f}) {
      Features s(start);
      for (size_t j = 0; j < s.size(); ++j) s[j] *= std::pow(end[j] / start[j], way);
      s = foldable_scale(block_, *job_.ops, absorber_, s);
      least.take(s, error(s));
    }
    return least.best();
  }

 private:
  // The noise that is descended is that of integer codes.
  bool descends() const {
    return std::all_of(consumers_.begin(), consumers_.end(), [](const Consumer& c) {
      return c.target.spec.grid == Grid::integer &&
             (c.target.effort == Effort::standard || c.target.effort == Effort::best);
    });
  }

  std::vector<NoisyLinear> noisy() const {
    std::vector<NoisyLinear> linears;
    for (const Consumer& c : consumers_)
      if (c.energy > 0) linears.push_back({.rows = copied(c.weight), .energy = c.energy, .spec = c.target.spec});
    return linears;
  }

  // Deals the sample out: to those that judge, and the others.
  void split_sample() {
    std::vector<int32_t> judges, others;
    for (int64_t t = 0; t < stats_.sample.rows(); ++t)
      (t % kJudgedShare == 0 ? judges : others).push_back(static_cast<int32_t>(t));
    x_ = widened_rows(judges);
    others_ = widened_rows(others);
  }

  // Rows of the sample in f32.
  Tensor widened_rows(const std::vector<int32_t>& rows) const {
    Tensor x = ex_.alloc(DType::f32, {static_cast<int64_t>(rows.size()), stats_.sample.cols()});
    if (!rows.empty()) cast(ex_, gather_rows(ex_, stats_.sample, upload(ex_, rows)), x);
    return x;
  }

  void prepare() {
    split_sample();
    absmax_ = ex_.to_host(stats_.absmax);
    importance_ = ex_.alloc(DType::f32, {x_.cols()});
    diagonal(ex_, stats_.input.gram, importance_);
    const Tensor rows = ex_.alloc(DType::f64, {x_.rows()});
    for (Consumer& c : consumers_) {
      c.exact = ex_.alloc(DType::f32, {x_.rows(), c.weight.rows()});
      gemm_in_terms(ex_, x_, c.weight, c.exact);
      squared_error(ex_, c.exact, {}, rows);
      c.energy = sum_of(ex_, rows);
    }
  }

  // The sum over the consumers of the relative error of their outputs on the tokens that judge.
  double error(const Features& s) const {
    const Features wide = by_consumer_feature(absorber_, s);
    const Features inverse = inverse_of(wide);
    Features squared(inverse);
    for (float& x : squared) x *= x;
    const Tensor columns = upload(ex_, wide);
    Tensor x = copied(x_), h = copied(importance_), rounded;
    std::optional<RowQuant> rounded_by;
    scale_columns(ex_, upload(ex_, inverse), x);
    scale_columns(ex_, upload(ex_, squared), h.view().reshaped({1, h.numel()}));
    const double fixed = static_scale(inverse);
    double sum = 0;
    for (const Consumer& c : consumers_) {
      if (!(c.energy > 0)) continue;
      const Tensor w = copied(c.weight), rows = ex_.alloc(DType::f64, {x.rows()});
      scale_columns(ex_, columns, w);
      const ScaleRule rule = c.target.effort == Effort::reference ? ScaleRule::absmax : ScaleRule::diag_grid;
      const Tensor values = values_of(ex_, round_plain(ex_, w, h, c.target.spec, rule), c.target.spec);
      const Tensor y = ex_.alloc(DType::f32, c.exact.shape());
      const std::optional<RowQuant> rounding = input_quant(c.target.spec, fixed);
      if (rounding && !(rounded_by == rounding)) {
        if (rounded.empty()) rounded = ex_.alloc(DType::f32, x.shape());
        round_rows(ex_, x, *rounding, rounded);
        rounded_by = rounding;
      }
      gemm_in_terms(ex_, rounding ? rounded : x, values, y);
      squared_error(ex_, c.exact, y, rows);
      sum += sum_of(ex_, rows) / c.energy;
    }
    return sum;
  }

  // What calibration would find for the divided input.
  double static_scale(const Features& inverse) const {
    float most = 0;
    for (size_t j = 0; j < inverse.size(); ++j) most = std::max(most, absmax_.as<float>()[j] * inverse[j]);
    return most > 0 ? most / 127 : 1;
  }

  Tensor copied(ConstTensorView from) const {
    Tensor t = ex_.alloc(from.dtype, from.shape);
    ex_.copy(from, t);
    return t;
  }

  Exec& ex_;
  const TransformJob& job_;
  const BlockF32& block_;
  const Absorber& absorber_;
  const ActivationStats& stats_;
  std::vector<Consumer> consumers_;
  Features activation_, weight_;  // the largest magnitudes
  Tensor absmax_{};               // [in] f32 on the host
  Tensor x_{}, importance_{};     // the tokens that judge, [n, in] f32, and the diagonal of the Gram matrix
  Tensor others_{};               // the rest of the sample, [n, in] f32
};

void apply(Exec& ex, const TransformJob& job, BlockF32& block) {
  for (const Absorber& a : job.absorbers) {
    if (job.migration.alpha && a.kind != Absorber::Kind::norm) continue;
    Search search(ex, job, block, a);
    if (const Features s = job.migration.alpha ? search.at(*job.migration.alpha) : search.best(); !s.empty())
      fold(ex, block, *job.ops, a, s);
  }
}

// W8A8: int8 weights per output, inputs rounded per token.
void fill_in(const Method&, QuantSpec& spec) {
  spec.bits = 8;
  spec.group = -1;
  spec.activations = ActQuant::token;
}

}  // namespace

constinit const Transform transform_smoothquant = {
    .name = "smoothquant",
    .summary = "moves outliers of 8-bit inputs into the weights",
    .needs = Needs::gram | Needs::columns,
    .takes_alpha = true,
    .fill_in = fill_in,
    .apply = apply,
};

}  // namespace fewbit

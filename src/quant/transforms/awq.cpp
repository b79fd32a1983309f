// AWQ (arXiv 2306.00978): input features that are large on average get finer steps. Their weights are
// multiplied by s before rounding and the producer of the input is divided by it, s = a^p / w^q with the mean
// magnitude a of the feature and the mean magnitude w of its weights inside their groups; the published forms
// are the lines q = 0 and q = 1 - p of that plane. The published search replays the block for every candidate; here
// one is judged by the output errors of the consumers on the Gram matrix of their input, under their own
// recipe: after plain rounding, or after error feedback where that is what follows. The published clipping is
// what the scale search of the rounding does. Statistics of both streams are asked for: plain rounding, too, gains from
// aiming at the unquantized output (on the demo model a third of the perplexity gap at 4 bits; at 8 bits nothing).
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>

#include "kernels/exec/upload.h"
#include "kernels/quantize/error_feedback.h"
#include "kernels/quantize/factor.h"
#include "kernels/quantize/matrix_edit.h"
#include "kernels/statistics/column_stats.h"
#include "kernels/statistics/gram_loss.h"
#include "src/calib/observe.h"
#include "src/core/parallel.h"
#include "src/quant/rounding.h"
#include "src/quant/search/feature_search.h"

namespace fewbit {
namespace {

constexpr float kCoarse = 0.25f, kFine = 0.0625f;  // steps of the exponents: of the first grid, of the last
constexpr float kLost = 4;  // a column is lost among its group when its weights are this much below the usual

// The mean over the input features that share a feature of the absorber.
Features by_absorber_feature(const Absorber& a, const std::vector<double>& input) {
  std::vector<double> sum(static_cast<size_t>(a.features));
  for (size_t j = 0; j < input.size(); ++j) sum[static_cast<size_t>(a.source(static_cast<int64_t>(j)))] += input[j];
  Features mean(sum.size());
  for (size_t j = 0; j < sum.size(); ++j) mean[j] = static_cast<float>(sum[j] / static_cast<double>(a.repeat));
  return mean;
}

struct Consumer {
  ConstTensorView weight{};  // [out, in] f32
  LinearTarget target{};
  Tensor some{};      // of its rows, evenly spaced
  double energy = 0;  // of the outputs of those rows
};

// What a scale costs: the sum over the consumers of the relative error of their outputs.
class Judge {
 public:
  Judge(Exec& ex, const Absorber& a, const InputStats& stats, std::vector<Consumer>& consumers)
      : ex_(ex), absorber_(a), stats_(stats), consumers_(consumers) {
    const int64_t in = stats.gram.cols();
    const Tensor d = ex.alloc(DType::f32, {in});
    diagonal(ex, stats.gram, d);
    const Tensor host = ex.to_host(d);
    diagonal_.assign(host.as<float>(), host.as<float>() + in);
    const auto feeds_back = [](const Consumer& c) { return has(c.target.method->needs, Needs::gram); };
    if (std::any_of(consumers.begin(), consumers.end(), feeds_back)) {
      double sum = 0;
      for (const float h : diagonal_) sum += h;
      factor_ = ex.alloc(DType::f32, {in, in});
      if (!factorize(ex, stats.gram, static_cast<float>(kDamp * sum / static_cast<double>(in)), Precision::f64, factor_)
               .ok())
        factor_.reset();
    }
    for (Consumer& c : consumers) c.energy = errors(c.some, ex.alloc_zeros(DType::f32, c.some.shape()), 1).front();
  }

  // Of every candidate. A GPU takes many of them at once: each reads all of the Gram matrix, and has few rows.
  std::vector<double> losses(const std::vector<Features>& candidates) const {
    std::vector<double> all;
    for (size_t begin = 0; begin < candidates.size(); begin += at_once())
      add_losses({candidates.data() + begin, std::min(at_once(), candidates.size() - begin)}, all);
    return all;
  }

 private:
  static constexpr double kDamp = 0.01;
  static constexpr int64_t kStacked = int64_t{1} << 26;  // weights of candidates that are there at once, at most

  size_t at_once() const {
    if (!ex_.on_cuda() || stats_.gram.cols() % 64 != 0) return 1;  // rows of scales begin as ops want it
    const int64_t most = std::max<int64_t>(1, judged_rows(absorber_) * stats_.gram.cols());
    return static_cast<size_t>(std::clamp<int64_t>(kStacked / most, 1, 32));
  }

  static ScaleRule rule_of(const Consumer& c) {
    return c.target.effort == Effort::reference ? ScaleRule::absmax : ScaleRule::diag_grid;
  }
  bool feeds_back(const Consumer& c) const { return factor_ && has(c.target.method->needs, Needs::gram); }

  // Of candidates that are taken at once: a row for each.
  struct Scales {
    Tensor columns{}, back{};  // of the weights' columns, and of what takes them back
    Tensor importance{};       // of the scaled input's features
  };
  Scales scales_of(std::span<const Features> candidates) const {
    Features columns, back, importance;
    for (const Features& s : candidates) {
      const Features wide = by_consumer_feature(absorber_, s), inverse = inverse_of(wide);
      columns.insert(columns.end(), wide.begin(), wide.end());
      back.insert(back.end(), inverse.begin(), inverse.end());
      for (size_t j = 0; j < wide.size(); ++j) importance.push_back(diagonal_[j] * (inverse[j] * inverse[j]));
    }
    return {upload(ex_, columns), upload(ex_, back), upload(ex_, importance)};
  }

  void add_losses(std::span<const Features> candidates, std::vector<double>& all) const {
    const auto count = static_cast<int64_t>(candidates.size()), in = stats_.gram.cols();
    const Scales of = scales_of(candidates);
    const auto row = [in](const Tensor& t, int64_t k) {
      return t.view().reshaped({t.numel() / in, in}).row_range(k, k + 1).reshaped({in});
    };
    std::vector<double> sums(candidates.size());
    for (int64_t k = 0; factor_ && k < count; ++k) {
      const Tensor factor = ex_.alloc(DType::f32, factor_.shape());
      ex_.copy(factor_, factor);
      scale_rows(ex_, row(of.back, k), factor);  // that of the scaled input's Gram matrix
      for (const Consumer& c : consumers_)
        if (c.energy > 0 && feeds_back(c))
          sums[static_cast<size_t>(k)] +=
              fed_back(c, scaled(c, row(of.columns, k)), factor, row(of.importance, k)) / c.energy;
    }
    for (const Consumer& c : consumers_) {
      if (!(c.energy > 0) || feeds_back(c)) continue;
      const int64_t rows = c.some.rows();
      const Tensor asked = ex_.alloc(DType::f32, {count * rows, in}), got = ex_.alloc(DType::f32, {count * rows, in});
      for (int64_t k = 0; k < count; ++k) {
        ex_.copy(c.some, asked.view().row_range(k * rows, (k + 1) * rows));
        const Tensor values = rounded(c, scaled(c, row(of.columns, k)), row(of.back, k), row(of.importance, k));
        ex_.copy(values, got.view().row_range(k * rows, (k + 1) * rows));
      }
      const std::vector<double> lost = errors(asked, got, count);
      for (size_t k = 0; k < lost.size(); ++k) sums[k] += lost[k] / c.energy;
    }
    all.insert(all.end(), sums.begin(), sums.end());
  }

  Tensor scaled(const Consumer& c, ConstTensorView columns) const {
    Tensor w = ex_.alloc(DType::f32, c.some.shape());
    ex_.copy(c.some, w);
    scale_columns(ex_, columns, w);
    return w;
  }

  // Of `count` parts of as many rows.
  std::vector<double> errors(ConstTensorView a, ConstTensorView b, int64_t count) const {
    const Tensor rows = ex_.alloc(DType::f64, {a.rows()});
    gram_loss(ex_, a, b, stats_.gram, rows, LossSums::reported);
    const Tensor host = ex_.to_host(rows);
    const int64_t part = a.rows() / count;
    std::vector<double> sums;
    for (const double* at = host.as<double>(); count > 0; --count, at += part)
      sums.push_back(std::accumulate(at, at + part, 0.0));
    return sums;
  }

  Tensor rounded(const Consumer& c, ConstTensorView scaled, ConstTensorView back, ConstTensorView h) const {
    const QuantSpec& spec = c.target.spec;
    Tensor values = values_of(ex_, round_plain(ex_, scaled, h, spec, rule_of(c)), spec);
    scale_columns(ex_, back, values);
    return values;
  }

  double fed_back(const Consumer& c, ConstTensorView scaled, ConstTensorView factor, ConstTensorView h) const {
    const QuantSpec& spec = c.target.spec;
    const DeviceCodes q = make_codes(ex_, spec, scaled.rows(), scaled.cols());
    const Tensor rows = ex_.alloc(DType::f64, {scaled.rows()});
    error_feedback(ex_, {.w = scaled, .r = factor, .h_diag = h, .search = search_for(spec, rule_of(c))},
                   {.codes = q.codes,
                    .scales = q.scales,
                    .zeros = q.zeros,
                    .bits = spec.bits,
                    .group = spec.group_size(scaled.cols())},
                   rows);
    return sum_of(ex_, rows);
  }

  Exec& ex_;
  const Absorber& absorber_;
  const InputStats& stats_;
  const std::vector<Consumer>& consumers_;
  Features diagonal_;  // of the Gram matrix, by input feature
  Tensor factor_;      // of the damped Gram matrix; empty where nobody feeds errors back, or it has none
};

struct Exponents {
  float of_activation = 0, of_weight = 0;
};

class Search {
 public:
  Search(Exec& ex, const TransformJob& job, const BlockF32& block, const Absorber& a)
      : ex_(ex), job_(job), block_(block), absorber_(a), stats_(job.stats.at(a.name)) {
    for_consumers(job, block, a, [&](const LinearTarget& target, ConstTensorView w) {
      consumers_.push_back({.weight = w, .target = target, .some = spread_rows(ex, w, judged_rows(a))});
    });
    activation_ = mean_activation();
    weight_ = mean_weight();
  }

  // The best of the search, or nothing where no candidate beats leaving the block as it is.
  Features best() {
    const Judge judge(ex_, absorber_, stats_.input, consumers_);
    LeastLoss least(judge.losses({Features(weight_.size(), 1.f)}).front());
    // Which of them is the best so far, if one is.
    const auto tried = [&](const std::vector<Features>& all) {
      const std::vector<double> losses = judge.losses(all);
      std::optional<size_t> best;
      for (size_t i = 0; i < all.size(); ++i)
        if (least.take(all[i], losses[i])) best = i;
      return best;
    };
    std::vector<Features> lifted;
    for (const float lift : {1.f, 2.f, 4.f})
      if (Features s = recover_lost_columns(lift); !s.empty()) lifted.push_back(std::move(s));
    tried(lifted);
    if (!least.best().empty()) rebase(least.best());
    Exponents at;
    const auto best_of = [&](const std::vector<Exponents>& grid) {
      std::vector<Features> all;
      all.reserve(grid.size());
      for (const Exponents& e : grid) all.push_back(candidate(e));
      if (const std::optional<size_t> best = tried(all)) at = grid[*best];
    };
    std::vector<Exponents> coarse;
    for (float p = 0; p <= 1; p += kCoarse)
      for (float q = 0; q <= 1; q += kCoarse) coarse.push_back({p, q});
    best_of(coarse);
    for (float step = kCoarse / 2; step >= kFine; step /= 2) {
      std::vector<Exponents> around;
      for (const float p : {-step, 0.f, step})
        for (const float q : {-step, 0.f, step})
          if (p != 0 || q != 0) around.push_back({at.of_activation + p, at.of_weight + q});
      best_of(around);
    }
    return least.best();
  }

 private:
  // base * a^p / w^q, as the absorber can take it.
  Features candidate(Exponents e) const {
    Features s(activation_.size());
    parallel_for(static_cast<int64_t>(s.size()), 1024, [&](int64_t begin, int64_t end) {
      for (auto j = static_cast<size_t>(begin); j < static_cast<size_t>(end); ++j)
        s[j] = std::pow(activation_[j], e.of_activation) / std::pow(weight_[j], e.of_weight);
    });
    s = normalised(std::move(s));
    for (size_t j = 0; j < base_.size(); ++j) s[j] *= base_[j];
    return foldable_scale(block_, *job_.ops, absorber_, s);
  }

  // Brings the columns whose weights vanish beside those of their groups up to `lift` times the usual; empty where
  // there are none.
  Features recover_lost_columns(float lift) const {
    Features sorted;
    for (size_t j = 0; j < weight_.size(); ++j)
      if (activation_[j] > 0 && weight_[j] > 0) sorted.push_back(weight_[j]);
    if (sorted.empty()) return {};
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<int64_t>(sorted.size() / 2), sorted.end());
    const float usual = sorted[sorted.size() / 2];
    Features s(weight_.size(), 1.f);
    bool some = false;
    for (size_t j = 0; j < s.size(); ++j)
      if (activation_[j] > 0 && weight_[j] > 0 && kLost * weight_[j] < usual) {
        s[j] = lift * usual / weight_[j];
        some = true;
      }
    return some ? foldable_scale(block_, *job_.ops, absorber_, s) : Features{};
  }

  // Later candidates start from `base`: as if it had been folded already.
  void rebase(const Features& base) {
    base_ = base;
    for (size_t j = 0; j < base.size(); ++j) {
      activation_[j] /= base[j];
      weight_[j] *= base[j];
    }
  }

  Features mean_activation() const {
    const Tensor host = ex_.to_host(stats_.abssum);
    std::vector<double> mean(host.as<double>(), host.as<double>() + host.numel());
    for (double& m : mean) m /= static_cast<double>(stats_.input.tokens);
    return by_absorber_feature(absorber_, mean);
  }

  // Mean over all rows of |w| / max|w of its group|.
  Features mean_weight() const {
    const int64_t in = stats_.input.gram.cols();
    const Tensor absmax = ex_.alloc_zeros(DType::f32, {in}), sum = ex_.alloc_zeros(DType::f64, {in});
    double rows = 0;
    for (const Consumer& c : consumers_) {
      const int64_t group = c.target.spec.group_size(in), groups = c.target.spec.groups(in);
      ScaleSearch plain = default_search(4, true, ScaleRule::absmax);  // scales are group maxima / 7.5
      plain.scale_dtype = DType::f32;
      const Tensor unit = ex_.alloc(DType::f32, {c.weight.rows(), groups});
      choose_scales(ex_, c.weight, {}, group, plain, unit, {});
      column_stats(ex_, c.weight, {.unit = unit, .group = group}, absmax, sum);
      rows += static_cast<double>(c.weight.rows());
    }
    const Tensor host = ex_.to_host(sum);
    std::vector<double> mean(host.as<double>(), host.as<double>() + host.numel());
    for (double& m : mean) m /= 7.5 * rows;
    return by_absorber_feature(absorber_, mean);
  }

  // About 1 in the geometric middle; features that were never seen or have no weights are left alone.
  static Features normalised(Features s) {
    float low = INFINITY, high = 0;
    for (const float x : s) {
      if (!(x > 0) || !std::isfinite(x)) continue;
      low = std::min(low, x);
      high = std::max(high, x);
    }
    const float middle = std::sqrt(low) * std::sqrt(high);
    for (float& x : s) x = x > 0 && std::isfinite(x / middle) ? x / middle : 1.f;
    return s;
  }

  Exec& ex_;
  const TransformJob& job_;
  const BlockF32& block_;
  const Absorber& absorber_;
  const ActivationStats& stats_;
  std::vector<Consumer> consumers_;
  Features activation_, weight_;  // a and w of the base
  Features base_;                 // empty: 1
};

void apply(Exec& ex, const TransformJob& job, BlockF32& block) {
  for (const auto& [name, target] : job.targets)
    if (target.spec.grid != Grid::integer)
      fail(ErrorKind::unsupported, "linear " + name + ": awq searches for integer grids, not for " + target.spec.str());
  for (const Absorber& a : job.absorbers)
    if (const Features s = Search(ex, job, block, a).best(); !s.empty()) fold(ex, block, *job.ops, a, s);
}

// Data-free rounding gains from zero points; a method that feeds errors forward searches its own scales.
void fill_in(const Method& m, QuantSpec& spec) { spec.symmetric = has(m.needs, Needs::gram); }

}  // namespace

constinit const Transform transform_awq = {
    .name = "awq",
    .summary = "finer steps for input features that are large",
    .needs = Needs::gram | Needs::cross | Needs::columns,
    .takes_alpha = false,
    .fill_in = fill_in,
    .apply = apply,
};

}  // namespace fewbit

// AWQ (arXiv 2306.00978): input features that are large on average get finer steps. Their weights are
// multiplied by s before rounding and the producer of the input is divided by it. s comes from a grid over
// the mean magnitude a of the feature, s = a^r, and the duo form s = a^r / w^(1-r) with the mean magnitude w
// of the feature's weights inside their groups. The published search replays the block for every candidate;
// here a candidate is judged by tr(D H D^T) of its consumers, D the error of their rounding under their own
// recipe, which needs no replay and is exact for the consumers' own outputs. The published clipping is what
// the scale search of the rounding does.
#include <algorithm>
#include <cmath>

#include "kernels/column_stats.h"
#include "kernels/gram_loss.h"
#include "kernels/matrix_edit.h"
#include "src/quant/rounding.h"
#include "src/quant/transform.h"

namespace fewbit {
namespace {

constexpr int kSteps = 20;       // exponents i / kSteps
constexpr float kLeast = 1e-4f;  // of a candidate, and the guard of the duo form's denominator

using Features = std::vector<float>;  // one value per feature of the absorber

Tensor uploaded(Exec& ex, const Features& v) {
  return ex.to_device(Tensor::host_from<float>(DType::f32, {static_cast<int64_t>(v.size())}, v));
}

// The mean over the input features that share a feature of the absorber.
Features by_absorber_feature(const Absorber& a, const std::vector<double>& input) {
  std::vector<double> sum(static_cast<size_t>(a.features));
  for (size_t j = 0; j < input.size(); ++j)
    sum[static_cast<size_t>(a.source(static_cast<int64_t>(j)))] += input[j];
  Features mean(sum.size());
  for (size_t j = 0; j < sum.size(); ++j)
    mean[j] = static_cast<float>(sum[j] / static_cast<double>(a.repeat));
  return mean;
}

struct Consumer {
  ConstTensorView weight{};  // [out, in] f32
  LinearTarget target{};
};

class Search {
 public:
  Search(Exec& ex, const TransformJob& job, const BlockF32& block, const Absorber& a)
      : ex_(ex), job_(job), block_(block), absorber_(a), stats_(job.stats.at(a.consumers.front())) {
    for (const size_t i : a.consumers)
      for (const LinearDef& l : std::get<Linears>((*job.ops)[i]).items)
        consumers_.push_back({block.weights.at(l.name + ".weight"), job.targets.at(l.name)});
    const Tensor d = ex.alloc(DType::f32, {stats_.input.gram.cols()});
    diagonal(ex, stats_.input.gram, d);
    const Tensor host = ex.to_host(d);
    diagonal_.assign(host.as<float>(), host.as<float>() + host.numel());
  }

  // The best of the grid, or nothing where no candidate beats leaving the block as it is.
  Features best() {
    double least = loss(Features(static_cast<size_t>(absorber_.features), 1.f));
    Features chosen;
    for (Features& s : candidates())
      if (const double l = loss(s); l < least) {
        least = l;
        chosen = std::move(s);
      }
    return chosen;
  }

 private:
  std::vector<Features> candidates() const {
    const Features activation = mean_activation(), weight = mean_weight();
    std::vector<Features> all;
    for (const bool duo : {false, true})
      for (int i = duo ? 0 : 1; i < kSteps; ++i) {
        const float r = static_cast<float>(i) / kSteps;
        Features s(activation.size());
        for (size_t j = 0; j < s.size(); ++j)
          s[j] = std::pow(activation[j], r) / (duo ? std::pow(weight[j], 1 - r) + kLeast : 1.f);
        all.push_back(foldable_scale(block_, *job_.ops, absorber_, normalised(activation, std::move(s))));
      }
    return all;
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

  // About 1 in the geometric middle; features that were never seen are left alone.
  static Features normalised(const Features& activation, Features s) {
    float low = INFINITY, high = 0;
    for (size_t j = 0; j < s.size(); ++j) {
      if (!(activation[j] > 0) || !std::isfinite(s[j])) continue;
      s[j] = std::max(s[j], kLeast);
      low = std::min(low, s[j]);
      high = std::max(high, s[j]);
    }
    const float middle = std::sqrt(low) * std::sqrt(high);
    for (size_t j = 0; j < s.size(); ++j)
      s[j] = activation[j] > 0 && std::isfinite(s[j] / middle) ? s[j] / middle : 1.f;
    return s;
  }

  // Sum over the consumers of tr(D H D^T), D = W - Q(W s) / s; `plain`: scales by absmax whatever the recipe
  // says.
  double loss(const Features& s) const {
    const Features wide = by_consumer_feature(absorber_, s);
    Features inverse(wide), importance(diagonal_);
    for (size_t j = 0; j < wide.size(); ++j) {
      inverse[j] = 1 / wide[j];
      importance[j] *= inverse[j] * inverse[j];
    }
    const Tensor columns = uploaded(ex_, wide), back = uploaded(ex_, inverse), h = uploaded(ex_, importance);
    double sum = 0;
    for (const Consumer& c : consumers_) {
      Tensor scaled = ex_.alloc(DType::f32, c.weight.shape);
      ex_.copy(c.weight, scaled);
      scale_columns(ex_, columns, scaled);
      const ScaleRule rule = c.target.effort == Effort::reference ? ScaleRule::absmax : ScaleRule::diag_grid;
      const Tensor rounded = values_of(ex_, round_plain(ex_, scaled, h, c.target.spec, rule), c.target.spec);
      scale_columns(ex_, back, rounded);
      const Tensor rows = ex_.alloc(DType::f64, {c.weight.rows()});
      gram_loss(ex_, c.weight, rounded, stats_.input.gram, rows);
      const Tensor host = ex_.to_host(rows);
      for (int64_t o = 0; o < host.numel(); ++o) sum += host.as<double>()[o];
    }
    return sum;
  }

  Exec& ex_;
  const TransformJob& job_;
  const BlockF32& block_;
  const Absorber& absorber_;
  const ActivationStats& stats_;
  std::vector<Consumer> consumers_;
  Features diagonal_;  // of the Gram matrix, by input feature
};

void apply(Exec& ex, const TransformJob& job, BlockF32& block) {
  for (const auto& [name, target] : job.targets)
    if (target.spec.grid != Grid::integer)
      fail(ErrorKind::unsupported,
           "linear " + name + ": awq searches for integer grids, not for " + target.spec.str());
  for (const Absorber& a : job.absorbers)
    if (const Features s = Search(ex, job, block, a).best(); !s.empty()) fold(ex, block, *job.ops, a, s);
}

// Data-free rounding gains from zero points; a method that feeds errors forward searches its own scales.
bool symmetric_by_default(const Method& m) { return has(m.needs, Needs::gram); }

}  // namespace

constinit const Transform transform_awq = {.name = "awq",
                                           .summary = "finer steps for input features that are large",
                                           .needs = Needs::gram | Needs::columns,
                                           .symmetric_by_default = symmetric_by_default,
                                           .apply = apply};

}  // namespace fewbit

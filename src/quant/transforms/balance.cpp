// Balance: for inputs that a Hadamard matrix turns before they are rounded (QuantSpec::turn). Turned, every feature of
// a row has the same error: a share of the row's energy, sum_j h_j / s_j^2 for x_j / s_j, where h_j is the mean of
// x_j^2. The weights w_oj s_j bring it to the outputs, where its energy is that times sum_j e_j s_j^2, e_j the energy
// of column j; and the error of the turned weights meets the inputs with the same product. It is least where s_j^4 =
// h_j / e_j (Cauchy and Schwarz), so that nothing is searched for.
#include <algorithm>
#include <cmath>

#include "kernels/quantize/matrix_edit.h"
#include "kernels/statistics/column_energies.h"
#include "src/quant/search/feature_search.h"

namespace fewbit {
namespace {

// By feature of the absorber: of what shares one, the sum.
std::vector<double> by_feature(const Absorber& a, const std::vector<double>& wide) {
  std::vector<double> sums(static_cast<size_t>(a.features));
  for (size_t j = 0; j < wide.size(); ++j) sums[static_cast<size_t>(a.source(static_cast<int64_t>(j)))] += wide[j];
  return sums;
}

std::vector<double> input_energies(Exec& ex, const ActivationStats& stats) {
  const Tensor d = ex.alloc(DType::f32, {stats.input.gram.cols()});
  diagonal(ex, stats.input.gram, d);
  const Tensor host = ex.to_host(d);
  return {host.as<float>(), host.as<float>() + host.numel()};
}

// Of all linears behind the absorber; those of an input that is turned are one, or the experts' of a layer.
std::vector<double> column_energies_of(Exec& ex, const TransformJob& job, const BlockF32& block, const Absorber& a) {
  std::vector<double> sums;
  for_consumers(job, block, a, [&](const LinearTarget&, ConstTensorView w) {
    const Tensor sum = ex.alloc(DType::f64, {w.cols()});
    column_energies(ex, w, sum);
    const Tensor host = ex.to_host(sum);
    sums.resize(static_cast<size_t>(w.cols()));
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += host.as<double>()[j];
  });
  return sums;
}

// One over the geometric mean of them all, so that the absorber's rows keep their size; a feature without values in the
// input or in the weights is left alone.
Features scales_of(const std::vector<double>& h, const std::vector<double>& e) {
  std::vector<double> logs(h.size());
  double sum = 0, count = 0;
  for (size_t j = 0; j < h.size(); ++j)
    if (h[j] > 0 && e[j] > 0 && std::isfinite(h[j]) && std::isfinite(e[j])) {
      logs[j] = 0.25 * (std::log(h[j]) - std::log(e[j]));
      sum += logs[j];
      count += 1;
    } else {
      logs[j] = NAN;
    }
  Features s(h.size(), 1.f);
  for (size_t j = 0; j < s.size(); ++j)
    if (!std::isnan(logs[j])) s[j] = static_cast<float>(std::exp(logs[j] - sum / count));
  return s;
}

void apply(Exec& ex, const TransformJob& job, BlockF32& block) {
  for (const Absorber& a : job.absorbers) {
    const bool turned = std::all_of(a.linears.begin(), a.linears.end(),
                                    [&](const LinearDef& l) { return job.targets.at(l.name).spec.turn > 0; });
    if (!turned || a.linears.empty()) continue;
    const std::vector<double> h = by_feature(a, input_energies(ex, job.stats.at(a.name)));
    const std::vector<double> e = by_feature(a, column_energies_of(ex, job, block, a));
    fold(ex, block, *job.ops, a, foldable_scale(block, *job.ops, a, scales_of(h, e)));
  }
}

// Int4 weights and inputs.
void fill_in(const Method&, QuantSpec& spec) {
  spec.activations = ActQuant::token;
  spec.act_bits = 4;
}

}  // namespace

constinit const Transform transform_balance = {
    .name = "balance",
    .summary = "evens features of inputs that are turned with their weights",
    .needs = Needs::gram | Needs::columns,
    .takes_alpha = false,
    .fill_in = fill_in,
    .apply = apply,
};

}  // namespace fewbit

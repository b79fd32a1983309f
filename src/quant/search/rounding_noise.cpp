#include "src/quant/search/rounding_noise.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/exec/upload.h"
#include "kernels/grids/row_grid.h"
#include "kernels/statistics/scaled_peaks.h"
#include "src/core/parallel.h"

namespace fewbit {

namespace {

constexpr int kSteps = 60;
constexpr double kRate = 0.06;  // of the first step, in log s; it falls to zero

// The largest of every run of m * s: its column, and its square.
struct Peaks {
  std::vector<int64_t> at;
  std::vector<double> squared;
};

// Runs are `length` entries of a row; s has a value for every column.
Peaks peaks_of(Exec& ex, ConstTensorView m, int64_t length, const std::vector<float>& s) {
  const int64_t runs = m.numel() / length;
  const Tensor at = ex.alloc(DType::i32, {runs}), value = ex.alloc(DType::f32, {runs});
  scaled_peaks(ex, m, upload(ex, s), length, at, value);
  const Tensor columns = ex.to_host(at), values = ex.to_host(value);
  Peaks p{std::vector<int64_t>(static_cast<size_t>(runs)), std::vector<double>(static_cast<size_t>(runs))};
  for (size_t r = 0; r < p.at.size(); ++r) {
    p.at[r] = columns.as<int32_t>()[r];
    p.squared[r] = std::pow(static_cast<double>(values.as<float>()[r]) * s[static_cast<size_t>(p.at[r])], 2);
  }
  return p;
}

// Sums over the rows of the squares, column by column.
std::vector<double> energies(Exec& ex, ConstTensorView on_device) {
  const Tensor m = ex.to_host(on_device);
  std::vector<double> sum(static_cast<size_t>(m.cols()));
  parallel_for(m.cols(), 256, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < m.rows(); ++r)
      for (int64_t j = begin; j < end; ++j) {
        const double v = m.as<float>()[r * m.cols() + j];
        sum[static_cast<size_t>(j)] += v * v;
      }
  });
  return sum;
}

// The mean of a_t^2 * 127^2 and its slope by log s_j; of a static scale, the largest instead of the mean.
double input_step(const Peaks& p, bool fixed, std::vector<double>& slope) {
  std::fill(slope.begin(), slope.end(), 0.0);
  if (fixed) {
    const size_t t = static_cast<size_t>(std::max_element(p.squared.begin(), p.squared.end()) - p.squared.begin());
    slope[static_cast<size_t>(p.at[t])] = -2 * p.squared[t];
    return p.squared[t];
  }
  const double n = static_cast<double>(p.at.size());
  for (size_t t = 0; t < p.at.size(); ++t) slope[static_cast<size_t>(p.at[t])] -= 2 * p.squared[t] / n;
  return std::accumulate(p.squared.begin(), p.squared.end(), 0.0) / n;
}

// What does not change on the way down.
class Noise {
 public:
  Noise(Exec& ex, ConstTensorView x, const std::vector<NoisyLinear>& linears)
      : ex_(ex), x_(x), linears_(linears), h_(energies(ex, x)) {
    for (double& h : h_) h /= static_cast<double>(x.rows());
    for (const NoisyLinear& l : linears) columns_.push_back(energies(ex, l.rows));
  }

  double at(const Features& s, std::vector<double>& slope) const {
    slope.assign(s.size(), 0.0);
    const Peaks tokens = peaks_of(ex_, x_, x_.cols(), inverse_of(s));
    std::vector<double> by_input(s.size()), h(h_);
    for (size_t j = 0; j < s.size(); ++j) h[j] /= static_cast<double>(s[j]) * s[j];
    double sum = 0;
    for (size_t c = 0; c < linears_.size(); ++c) {
      const NoisyLinear& l = linears_[c];
      if (l.spec.activations != ActQuant::none) {
        const double step = input_step(tokens, l.spec.activations == ActQuant::tensor, by_input);
        const double levels = l.spec.act_bits == 4 ? kInt4Steps : 127.0;
        sum += add_inputs(step, by_input, columns_[c], s, 1 / (12 * levels * levels * l.energy), slope);
      }
      const double codes = l.spec.max_code();
      sum += add_weights(l, h, s, 4 / (12 * codes * codes * l.energy), slope);
    }
    return sum;
  }

 private:
  static double add_inputs(double step, const std::vector<double>& step_slope, const std::vector<double>& columns,
                           const Features& s, double factor, std::vector<double>& slope) {
    double energy = 0;
    for (size_t j = 0; j < s.size(); ++j) energy += columns[j] * s[j] * s[j];
    for (size_t j = 0; j < s.size(); ++j)
      slope[j] += factor * (2 * step * columns[j] * s[j] * s[j] + step_slope[j] * energy);
    return factor * step * energy;
  }

  double add_weights(const NoisyLinear& l, const std::vector<double>& h, const Features& s, double factor,
                     std::vector<double>& slope) const {
    const int64_t in = l.rows.cols(), group = l.spec.group_size(in);
    if (in % group != 0) return 0;  // a short last group: left to the judge
    const Peaks p = peaks_of(ex_, l.rows, group, s);
    std::vector<double> of_group(static_cast<size_t>(in / group)), energy(of_group.size());
    for (size_t j = 0; j < h.size(); ++j) energy[j / static_cast<size_t>(group)] += h[j];
    double sum = 0;
    for (size_t r = 0; r < p.at.size(); ++r) {
      const size_t g = r % of_group.size();
      of_group[g] += p.squared[r];
      sum += p.squared[r] * energy[g];
      slope[static_cast<size_t>(p.at[r])] += factor * 2 * p.squared[r] * energy[g];
    }
    for (size_t j = 0; j < h.size(); ++j) slope[j] -= factor * 2 * of_group[j / static_cast<size_t>(group)] * h[j];
    return factor * sum;
  }

  Exec& ex_;
  ConstTensorView x_;
  const std::vector<NoisyLinear>& linears_;
  std::vector<double> h_;                     // [in] mean of x_tj^2
  std::vector<std::vector<double>> columns_;  // by linear: [in] sum over its rows of w_oj^2
};

}  // namespace

double rounding_noise(Exec& ex, ConstTensorView x, const std::vector<NoisyLinear>& linears, const Features& wide,
                      std::vector<double>& slope) {
  return Noise(ex, x, linears).at(wide, slope);
}

Features least_noise(Exec& ex, const Absorber& a, ConstTensorView x, const std::vector<NoisyLinear>& linears,
                     const Features& start) {
  const Noise noise(ex, x, linears);
  Features s(start), best(start);
  std::vector<double> wide, first(s.size()), second(s.size());  // Adam's moments (arXiv 1412.6980)
  constexpr double kFirst = 0.9, kSecond = 0.99;
  double least = INFINITY;
  for (int step = 0; step <= kSteps; ++step) {
    const double e = noise.at(by_consumer_feature(a, s), wide);
    if (e < least) {
      least = e;
      best = s;
    }
    if (!(e > 0)) break;
    std::vector<double> slope(s.size());
    for (size_t j = 0; j < wide.size(); ++j)
      slope[static_cast<size_t>(a.source(static_cast<int64_t>(j)))] += wide[j] / e;
    const double rate = kRate * (1 - static_cast<double>(step) / kSteps);
    const double seen_first = 1 - std::pow(kFirst, step + 1), seen_second = 1 - std::pow(kSecond, step + 1);
    parallel_for(static_cast<int64_t>(s.size()), 1024, [&](int64_t begin, int64_t end) {
      for (auto j = static_cast<size_t>(begin); j < static_cast<size_t>(end); ++j) {
        first[j] = kFirst * first[j] + (1 - kFirst) * slope[j];
        second[j] = kSecond * second[j] + (1 - kSecond) * slope[j] * slope[j];
        if (!(second[j] > 0)) continue;  // a feature without values
        const double m = first[j] / seen_first, v = second[j] / seen_second;
        s[j] *= static_cast<float>(std::exp(-rate * m / std::sqrt(v)));
      }
    });
  }
  return best;
}

}  // namespace fewbit

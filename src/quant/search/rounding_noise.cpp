#include "src/quant/search/rounding_noise.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/exec/upload.h"
#include "kernels/grids/row_grid.h"
#include "kernels/statistics/column_energies.h"
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

// The peaks of several matrices with as many columns, of which the first has the inverse of the scales of the others:
// asked for together, so that a device is waited for once.
class ManyPeaks {
 public:
  // Runs are `length` entries of a row.
  struct Of {
    ConstTensorView matrix{};
    int64_t length = 0;
    int64_t runs() const { return matrix.numel() / length; }
  };
  ManyPeaks(Exec& ex, std::vector<Of> of) : ex_(ex), of_(std::move(of)), features_(of_.front().matrix.cols()) {
    for (const Of& o : of_) runs_ += o.runs();
    here_ = ex.alloc_pinned(DType::f32, {2 * features_ + 2 * runs_});
    there_ = ex.alloc(DType::f32, here_.shape());
  }

  std::vector<Peaks> at(const Features& s) {
    const Features inverse = inverse_of(s);
    std::copy(inverse.begin(), inverse.end(), here_.as<float>());
    std::copy(s.begin(), s.end(), here_.as<float>() + features_);
    ex_.copy(part(here_, 0, 2 * features_), part(there_, 0, 2 * features_));
    int64_t begin = 2 * features_;
    for (size_t i = 0; i < of_.size(); ++i, begin += 2 * of_[i - 1].runs()) {
      const int64_t n = of_[i].runs();
      TensorView columns = part(there_, begin, n);
      columns.dtype = DType::i32;
      scaled_peaks(ex_, of_[i].matrix, part(there_, i == 0 ? 0 : features_, features_), of_[i].length, columns,
                   part(there_, begin + n, n));
    }
    ex_.copy(part(there_, 2 * features_, 2 * runs_), part(here_, 2 * features_, 2 * runs_));
    std::vector<Peaks> all;
    begin = 2 * features_;
    for (size_t i = 0; i < of_.size(); ++i, begin += 2 * of_[i - 1].runs())
      all.push_back(from(begin, of_[i].runs(), i == 0 ? inverse : s));
    return all;
  }

 private:
  static TensorView part(const Tensor& t, int64_t begin, int64_t count) {
    return {t.as<float>() + begin, DType::f32, {count}, t.view().device};
  }

  Peaks from(int64_t begin, int64_t runs, const Features& s) const {
    const auto* columns = reinterpret_cast<const int32_t*>(here_.as<float>() + begin);
    const float* values = here_.as<float>() + begin + runs;
    Peaks p{std::vector<int64_t>(static_cast<size_t>(runs)), std::vector<double>(static_cast<size_t>(runs))};
    for (size_t r = 0; r < p.at.size(); ++r) {
      p.at[r] = columns[r];
      p.squared[r] = std::pow(static_cast<double>(values[r]) * s[static_cast<size_t>(p.at[r])], 2);
    }
    return p;
  }

  Exec& ex_;
  std::vector<Of> of_;
  int64_t features_, runs_ = 0;
  Tensor here_{}, there_{};  // scales, and of every matrix columns and values
};

// Sums over the rows of the squares, column by column.
std::vector<double> energies(Exec& ex, ConstTensorView on_device) {
  const Tensor sum = ex.alloc(DType::f64, {on_device.cols()});
  column_energies(ex, on_device, sum);
  const Tensor host = ex.to_host(sum);
  return {host.as<double>(), host.as<double>() + host.numel()};
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
  Noise(Exec& ex, ConstTensorView x, const std::vector<NoisyLinear>& linears) : linears_(linears), h_(energies(ex, x)) {
    for (double& h : h_) h /= static_cast<double>(x.rows());
    std::vector<ManyPeaks::Of> matrices{{x, x.cols()}};
    for (const NoisyLinear& l : linears) {
      columns_.push_back(energies(ex, l.rows));
      if (whole_groups(l)) matrices.push_back({l.rows, l.spec.group_size(l.rows.cols())});
    }
    peaks_.emplace(ex, std::move(matrices));
  }

  double at(const Features& s, std::vector<double>& slope) {
    slope.assign(s.size(), 0.0);
    const std::vector<Peaks> peaks = peaks_->at(s);
    const Peaks& tokens = peaks.front();
    size_t next = 1;
    std::vector<double> by_input(s.size()), h(h_);
    for (size_t j = 0; j < s.size(); ++j) h[j] /= static_cast<double>(s[j]) * s[j];
    double sum = 0;
    for (size_t c = 0; c < linears_.size(); ++c) {
      const NoisyLinear& l = linears_[c];
      if (l.spec.activations != ActQuant::none) {
        const double step = input_step(tokens, l.spec.activations == ActQuant::tensor, by_input);
        const double levels = l.spec.act_bits == 4 ? 100 * kInt4Steps / l.spec.act_clip : 127.0;
        sum += add_inputs(step, by_input, columns_[c], s, 1 / (12 * levels * levels * l.energy), slope);
      }
      const double codes = l.spec.max_code();
      if (whole_groups(l))  // a short last group is left to the judge
        sum += add_weights(l, peaks[next++], h, 4 / (12 * codes * codes * l.energy), slope);
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

  static bool whole_groups(const NoisyLinear& l) { return l.rows.cols() % l.spec.group_size(l.rows.cols()) == 0; }

  static double add_weights(const NoisyLinear& l, const Peaks& p, const std::vector<double>& h, double factor,
                            std::vector<double>& slope) {
    const int64_t in = l.rows.cols(), group = l.spec.group_size(in);
    std::vector<double> of_group(static_cast<size_t>(in / group)), energy(of_group.size());
    const auto each = [&](const auto& take) {
      for (size_t g = 0, j = 0; g < of_group.size(); ++g)
        for (const size_t end = j + static_cast<size_t>(group); j < end; ++j) take(g, j);
    };
    each([&](size_t g, size_t j) { energy[g] += h[j]; });
    double sum = 0;
    for (size_t r = 0, g = 0; r < p.at.size(); ++r, g = g + 1 == of_group.size() ? 0 : g + 1) {
      of_group[g] += p.squared[r];
      sum += p.squared[r] * energy[g];
      slope[static_cast<size_t>(p.at[r])] += factor * 2 * p.squared[r] * energy[g];
    }
    each([&](size_t g, size_t j) { slope[j] -= factor * 2 * of_group[g] * h[j]; });
    return factor * sum;
  }

  const std::vector<NoisyLinear>& linears_;
  std::optional<ManyPeaks> peaks_{};
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
  Noise noise(ex, x, linears);
  Features s(start), best(start), spread(static_cast<size_t>(x.cols()));
  std::vector<size_t> source(spread.size());
  for (size_t j = 0; j < source.size(); ++j) source[j] = static_cast<size_t>(a.source(static_cast<int64_t>(j)));
  std::vector<double> wide, first(s.size()), second(s.size());  // Adam's moments (arXiv 1412.6980)
  constexpr double kFirst = 0.9, kSecond = 0.99;
  double least = INFINITY;
  for (int step = 0; step <= kSteps; ++step) {
    for (size_t j = 0; j < source.size(); ++j) spread[j] = s[source[j]];
    const double e = noise.at(spread, wide);
    if (e < least) {
      least = e;
      best = s;
    }
    if (!(e > 0)) break;
    std::vector<double> slope(s.size());
    for (size_t j = 0; j < wide.size(); ++j) slope[source[j]] += wide[j] / e;
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

// Hyper-connections: the CPU half. A token is a task.
#include "kernels/streams/streams.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

float logistic(float x) { return 1 / (1 + std::exp(-x)); }

void divide_rows(float* m, int n, float eps) {
  for (int j = 0; j < n; ++j) {
    float sum = eps;
    for (int k = 0; k < n; ++k) sum += m[j * n + k];
    for (int k = 0; k < n; ++k) m[j * n + k] /= sum;
  }
}

void divide_columns(float* m, int n, float eps) {
  for (int k = 0; k < n; ++k) {
    float sum = eps;
    for (int j = 0; j < n; ++j) sum += m[j * n + k];
    for (int j = 0; j < n; ++j) m[j * n + k] /= sum;
  }
}

// The logits m [n, n] become the mixing matrix.
void sinkhorn(float* m, int n, const StreamArgs& a) {
  for (int j = 0; j < n; ++j) {
    float* row = m + j * n;
    const float top = *std::max_element(row, row + n);
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += row[k] = std::exp(row[k] - top);
    for (int k = 0; k < n; ++k) row[k] = row[k] / sum + a.eps;
  }
  divide_columns(m, n, a.eps);
  for (int round = 1; round < a.rounds; ++round) {
    divide_rows(m, n, a.eps);
    divide_columns(m, n, a.eps);
  }
}

}  // namespace

void read_streams(Exec&, ConstTensorView x, const StreamWeights& w, const StreamArgs& a, TensorView out,
                  TensorView mix) {
  const int64_t cols = x.cols(), hidden = out.cols(), rows = w.fn.rows();
  const int n = a.streams;
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.rows(), 1, [&](int64_t t, int64_t) {
      std::vector<float> v(static_cast<size_t>(cols)), m(static_cast<size_t>(rows)), sum(static_cast<size_t>(hidden));
      widen(x.as<T>() + t * cols, v.data(), cols);
      double squares = 0;
      for (const float f : v) squares += static_cast<double>(f) * f;
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(cols) + a.norm_eps);
      for (int64_t r = 0; r < rows; ++r) {
        const float* row = w.fn.as<float>() + r * cols;
        double dot = 0;
        for (int64_t c = 0; c < cols; ++c) dot += static_cast<double>(row[c]) * v[static_cast<size_t>(c)];
        const int64_t part = std::min<int64_t>(r / n, 2);
        m[static_cast<size_t>(r)] =
            static_cast<float>(dot * inverse) * w.scale.as<float>()[part] + w.base.as<float>()[r];
      }
      for (int i = 0; i < n; ++i) {
        const float read = logistic(m[static_cast<size_t>(i)]) + a.eps;
        for (int64_t c = 0; c < hidden; ++c)
          sum[static_cast<size_t>(c)] += read * v[static_cast<size_t>(i * hidden + c)];
      }
      narrow(sum.data(), out.as<T>() + t * hidden, hidden);
      if (!mix.data) return;
      for (int i = n; i < 2 * n; ++i) m[static_cast<size_t>(i)] = 2 * logistic(m[static_cast<size_t>(i)]);
      sinkhorn(m.data() + 2 * n, n, a);
      narrow(m.data() + n, mix.as<T>() + t * mix.cols(), mix.cols());
    });
  });
}

void write_streams(Exec&, ConstTensorView branch, ConstTensorView mix, TensorView x) {
  const int64_t cols = x.cols(), hidden = branch.cols(), n = cols / hidden;
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.rows(), 4, [&](int64_t begin, int64_t end) {
      std::vector<float> v(static_cast<size_t>(cols)), b(static_cast<size_t>(hidden)),
          m(static_cast<size_t>(n + n * n));
      std::vector<float> sum(static_cast<size_t>(hidden));
      for (int64_t t = begin; t < end; ++t) {
        widen(x.as<T>() + t * cols, v.data(), cols);
        widen(branch.as<T>() + t * hidden, b.data(), hidden);
        widen(mix.as<T>() + t * mix.cols(), m.data(), mix.cols());
        for (int64_t k = 0; k < n; ++k) {
          for (size_t c = 0; c < sum.size(); ++c) sum[c] = m[static_cast<size_t>(k)] * b[c];
          for (int64_t j = 0; j < n; ++j)
            for (size_t c = 0; c < sum.size(); ++c)
              sum[c] += m[static_cast<size_t>(n + j * n + k)] * v[static_cast<size_t>(j * hidden) + c];
          narrow(sum.data(), x.as<T>() + t * cols + k * hidden, hidden);
        }
      }
    });
  });
}

}  // namespace fewbit::cpu

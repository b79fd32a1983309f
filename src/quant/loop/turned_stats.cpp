#include "src/quant/loop/turned_stats.h"

#include <cmath>

#include "kernels/model/cast.h"
#include "kernels/model/hadamard.h"
#include "src/core/parallel.h"
#include "src/core/walsh_hadamard.h"

namespace fewbit {
namespace {

constexpr int64_t kStrip = 256;  // columns of some rows that stay in the cache

// Rows first to first + run of m [n, n], mixed among themselves: the columns of the matrix turned.
void turn_rows_of(float* m, int64_t n, int64_t run, int64_t begin, int64_t end) {
  const float scale = 1 / std::sqrt(static_cast<float>(run));
  for (int64_t first = 0; first < n; first += run) {
    walsh_hadamard(m + first * n + begin, run, n, end - begin);
    for (int64_t i = first; i < first + run; ++i)
      for (int64_t c = begin; c < end; ++c) m[i * n + c] *= scale;
  }
}

// The columns turned, and the rows too of a matrix of both inputs.
Tensor turned(Exec& ex, const Tensor& matrix, int64_t run, bool rows_too = true) {
  if (matrix.empty()) return {};
  const Tensor m = clone_host(ex.to_host(matrix));
  const int64_t n = m.cols();
  FEWBIT_ASSERT((!rows_too || m.rows() == n) && n % run == 0);
  parallel_for(m.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) cpu::hadamard_runs(m.view().as<float>() + r * n, n, run);
  });
  if (!rows_too) return ex.to_device(m);
  parallel_for((n + kStrip - 1) / kStrip, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s)
      turn_rows_of(m.view().as<float>(), n, run, s * kStrip, std::min(n, (s + 1) * kStrip));
  });
  return ex.to_device(m);
}

}  // namespace

InputStats turned_stats(Exec& ex, const InputStats& s, int64_t run) {
  InputStats t;
  t.tokens = s.tokens;
  t.borrowed = s.borrowed;
  t.gram = turned(ex, s.gram, run);
  t.cross = turned(ex, s.cross, run);
  t.residual = turned(ex, s.residual, run, false);
  t.input_scale = s.input_scale;
  t.input_reach = s.input_reach;
  if (s.sample) {
    t.sample = ex.alloc(s.sample.dtype(), s.sample.shape());
    ex.copy(s.sample, t.sample);
    hadamard(ex, t.sample, t.sample.view().row_range(0, 0), run);
  }
  return t;
}

}  // namespace fewbit

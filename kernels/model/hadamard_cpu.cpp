// The fast Walsh-Hadamard transform: log2(run) stages of sums and differences, scaled once at the end. The CUDA half
// does the same operations in the same order, so both choose the same codes afterwards.
#include "kernels/model/hadamard.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"
#include "src/core/walsh_hadamard.h"

namespace fewbit::cpu {
namespace {

void turn(float* x, int64_t run) {
  walsh_hadamard(x, run);
  const float scale = 1 / std::sqrt(static_cast<float>(run));
  for (int64_t i = 0; i < run; ++i) x[i] *= scale;
}

void turn_all(TensorView x, int64_t run) {
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.numel() / run, 64, [&](int64_t begin, int64_t end) {
      std::vector<float> wide(static_cast<size_t>(run));
      for (int64_t i = begin; i < end; ++i) {
        T* at = x.as<T>() + i * run;
        widen(static_cast<const T*>(at), wide.data(), run);
        turn(wide.data(), run);
        for (int64_t c = 0; c < run; ++c) at[c] = wide[static_cast<size_t>(c)];
      }
    });
  });
}

}  // namespace

void hadamard_runs(float* x, int64_t n, int64_t run) {
  for (int64_t i = 0; i < n; i += run) turn(x + i, run);
}

void hadamard(Exec&, TensorView q, TensorView k, int64_t head_dim) {
  FEWBIT_ASSERT(head_dim > 0 && q.cols() % head_dim == 0 && k.cols() % head_dim == 0 && q.dtype == k.dtype);
  turn_all(q, hadamard_run(head_dim));
  turn_all(k, hadamard_run(head_dim));
}

}  // namespace fewbit::cpu

// Ops on logits: the CPU half.
#include "kernels/statistics/nll.h"

#include <cmath>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

float capped(float z, float softcap) { return softcap * std::tanh(z / softcap); }

}  // namespace

void nll(Exec&, ConstTensorView logits, ConstTensorView targets, float softcap, TensorView out) {
  const int64_t rows = logits.rows(), vocab = logits.cols();
  FEWBIT_ASSERT(logits.dtype == DType::f32 && targets.dtype == DType::i32 && out.dtype == DType::f32);
  FEWBIT_ASSERT(targets.numel() == rows && out.numel() == rows);
  parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int32_t target = targets.as<int32_t>()[r];
      float* loss = out.as<float>() + r;
      *loss = 0;
      if (target < 0) continue;
      FEWBIT_ASSERT(target < vocab);
      const float* row = logits.as<float>() + r * vocab;
      if (softcap > 0) {
        float* own = scratch(Scratch::x, vocab);
        for (int64_t v = 0; v < vocab; ++v) own[v] = capped(row[v], softcap);
        row = own;
      }
      const float top = max_of(row, vocab);
      *loss = static_cast<float>(std::log(sum_of_exp(row, top, vocab)) + top - row[target]);
    }
  });
}

void cap_logits(Exec&, float softcap, TensorView logits) {
  FEWBIT_ASSERT(logits.dtype == DType::f32 && softcap > 0);
  parallel_for(logits.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) logits.as<float>()[i] = capped(logits.as<float>()[i], softcap);
  });
}

void argmax(Exec&, ConstTensorView logits, TensorView ids) {
  const int64_t rows = logits.rows(), vocab = logits.cols();
  FEWBIT_ASSERT(logits.dtype == DType::f32 && ids.dtype == DType::i32 && ids.numel() == rows && vocab > 0);
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = logits.as<float>() + r * vocab;
      const float top = max_of(row, vocab);
      int64_t first = 0;
      while (first + 1 < vocab && row[first] != top) ++first;
      ids.as<int32_t>()[r] = static_cast<int32_t>(row[first] == top ? first : 0);
    }
  });
}

void advance(Exec&, TensorView values, int32_t delta) {
  FEWBIT_ASSERT(values.dtype == DType::i32);
  for (int64_t i = 0; i < values.numel(); ++i) values.as<int32_t>()[i] += delta;
}

}  // namespace fewbit::cpu

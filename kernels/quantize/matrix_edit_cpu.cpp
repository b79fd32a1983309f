// Small matrix edits: the CPU half.
#include "kernels/quantize/matrix_edit.h"

#include <atomic>
#include <cmath>

#include "kernels/grids/two_of_four.h"
#include "src/core/mat.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void diagonal(Exec&, ConstTensorView h, TensorView d) {
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && d.numel() == n);
  for (int64_t i = 0; i < n; ++i) d.as<float>()[i] = h.as<float>()[i * n + i];
}

void add_diagonal(Exec&, ConstTensorView d, TensorView h) {
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && d.numel() == n);
  for (int64_t i = 0; i < n; ++i) h.as<float>()[i * n + i] += d.as<float>()[i];
}

void set_diagonal(Exec&, ConstTensorView d, TensorView h) {
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && d.numel() == n);
  for (int64_t i = 0; i < n; ++i) h.as<float>()[i * n + i] = d.as<float>()[i];
}

void zero_columns(Exec&, ConstTensorView marked, TensorView w) {
  const int64_t n = w.cols();
  FEWBIT_ASSERT(marked.numel() == n);
  for (int64_t r = 0; r < w.rows(); ++r)
    for (int64_t i = 0; i < n; ++i)
      if (marked.as<uint8_t>()[i]) w.as<float>()[r * n + i] = 0;
}

void prune_quads(Exec&, ConstTensorView s, TensorView w) {
  const int64_t n = w.cols();
  constexpr float kOnes[4] = {1, 1, 1, 1};
  parallel_for(w.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < n; i += 4) {
        float* quad = w.as<float>() + r * n + i;
        const float* weight = s.data ? s.as<float>() + i : kOnes;
        const int stay =
            larger_pair({quad[0], quad[1], quad[2], quad[3]}, {weight[0], weight[1], weight[2], weight[3]});
        for (int k = 0; k < 4; ++k)
          if (!(stay >> k & 1)) quad[k] = 0;
      }
  });
}

void scale_columns(Exec&, ConstTensorView s, TensorView w) {
  const int64_t n = w.cols();
  FEWBIT_ASSERT(s.numel() == n);
  parallel_for(w.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < n; ++i) w.as<float>()[r * n + i] *= s.as<float>()[i];
  });
}

void scale_rows(Exec&, ConstTensorView s, TensorView w) {
  const int64_t n = w.cols();
  FEWBIT_ASSERT(s.numel() == w.rows());
  parallel_for(w.rows(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = 0; i < n; ++i) w.as<float>()[r * n + i] *= s.as<float>()[r];
  });
}

namespace {
template <class T>
void permute_as(Mat<const T> x, const int32_t* row_of, const int32_t* col_of, Mat<T> y) {
  parallel_for(y.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* from = x.row(row_of ? row_of[i] : i);
      for (int64_t j = 0; j < y.cols; ++j) y(i, j) = from[col_of ? col_of[j] : j];
    }
  });
}
}  // namespace

void permute(Exec&, ConstTensorView x, ConstTensorView row_of, ConstTensorView col_of, TensorView y) {
  FEWBIT_ASSERT((row_of.data || x.rows() == y.rows()) && (col_of.data || x.cols() == y.cols()));
  FEWBIT_ASSERT(x.dtype == y.dtype && x.data != y.data);
  const int32_t* rows = row_of.data ? row_of.as<int32_t>() : nullptr;
  const int32_t* cols = col_of.data ? col_of.as<int32_t>() : nullptr;
  if (x.dtype == DType::f32)
    permute_as<float>(mat<float>(x), rows, cols, mat<float>(y));
  else
    permute_as<uint8_t>(mat<uint8_t>(x), rows, cols, mat<uint8_t>(y));
}

int64_t count_nonfinite(Exec&, ConstTensorView x) {
  std::atomic<int64_t> count{0};
  parallel_for(x.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    int64_t here = 0;
    for (int64_t i = begin; i < end; ++i) here += !std::isfinite(x.as<float>()[i]);
    count += here;
  });
  return count;
}

}  // namespace fewbit::cpu

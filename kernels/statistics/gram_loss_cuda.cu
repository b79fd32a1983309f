// The error of a coded linear under a Gram matrix: delta and strips of H's upper half widened to f64, their products,
// one dot per row. The kernels that cuBLAS chooses, and the bits of a row, depend on the width alone. The f64 tensor
// cores of a data-centre GPU make this as fast as f32 would be, and the terms of a good quantizer's error cancel.
#include <algorithm>

#include "kernels/device/reduce.cuh"
#include "kernels/device/split_product.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/gram_loss.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void difference_kernel(const float* __restrict__ a, const float* __restrict__ b, double* __restrict__ delta,
                                  int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count; k += step)
    delta[k] = static_cast<double>(a[k]) - static_cast<double>(b[k]);
}

// strip [gridDim.x, end - begin] = columns [begin, end) of the rows of h above `end`, those above `begin` twice. A
// block per row.
__global__ void upper_strip_kernel(const float* __restrict__ h, double* __restrict__ strip, int64_t n, int64_t begin,
                                   int64_t end) {
  const int64_t row = blockIdx.x;
  const double times = row < begin ? 2 : 1;
  for (int64_t j = begin + threadIdx.x; j < end; j += kThreads)
    strip[row * (end - begin) + j - begin] = times * static_cast<double>(h[row * n + j]);
}

// x [rows, n] = delta [rows, n] U, where U is the upper half of h by strips, its entries above a strip twice.
void upper_product(CudaState& s, const double* delta, int64_t rows, const WideCut& cut, const float* h, double* strip,
                   double* x) {
  for (int64_t i = 0; i < cut.strips(); ++i) {
    const int64_t begin = cut.begin(i), end = cut.end(i), width = end - begin;
    upper_strip_kernel<<<static_cast<unsigned>(end), kThreads, 0, s.stream>>>(h, strip, cut.n, begin, end);
    FEWBIT_CUDA_LAUNCHED();
    const RowFactors delta_and_strip[] = {{delta, strip}};
    row_product(s,
                {.type = CUDA_R_64F,
                 .rows = rows,
                 .inner = end,
                 .cols = width,
                 .a_ld = cut.n,
                 .b_ld = width,
                 .c = x + begin,
                 .c_ld = cut.n},
                delta_and_strip);
  }
}

// loss[row] = sum_i delta[row, i] * product[row, i]; a block per row.
__global__ void row_dot_kernel(const double* __restrict__ delta, const double* __restrict__ product,
                               double* __restrict__ loss, int64_t n) {
  __shared__ double room[32];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * n;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += delta[base + i] * product[base + i];
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) loss[blockIdx.x] = sum;
}

// The terms of delta = a - b, rows [0, gridDim.x), and of strips of the upper half of h as above.
__global__ void difference_terms_kernel(const float* __restrict__ a, const float* __restrict__ b, SplitTerms delta,
                                        int64_t n) {
  const int64_t row = blockIdx.x * n;
  for (int64_t j = threadIdx.x; j < n; j += kThreads)
    split_value(a[row + j] - b[row + j], delta.high[row + j], delta.low[row + j]);
}

__global__ void upper_terms_kernel(const float* __restrict__ h, SplitTerms strip, int64_t n, int64_t begin,
                                   int64_t end) {
  const int64_t row = blockIdx.x;
  const float times = row < begin ? 2 : 1;
  for (int64_t j = begin + threadIdx.x; j < end; j += kThreads)
    split_value(times * h[row * n + j], strip.high[row * strip.ld + j - begin], strip.low[row * strip.ld + j - begin]);
}

// loss[row] += sum_j (a - b)[row, j] * product[row, j] over the columns of a strip, where a and b begin and whose rows
// of a and b lie n apart; a block per row.
__global__ void error_dot_kernel(const float* __restrict__ a, const float* __restrict__ b,
                                 const float* __restrict__ product, double* __restrict__ loss, int64_t n, int64_t cols,
                                 bool first) {
  __shared__ double room[32];
  const int64_t row = blockIdx.x;
  double sum = 0;
  for (int64_t j = threadIdx.x; j < cols; j += kThreads)
    sum += static_cast<double>(a[row * n + j] - b[row * n + j]) * static_cast<double>(product[row * cols + j]);
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) loss[row] = first ? sum : loss[row] + sum;
}

void loss_by_terms(Exec& ex, ConstTensorView a, ConstTensorView b, ConstTensorView h, double* loss) {
  const int64_t out = a.rows(), n = a.cols(), panel = std::min(out, kLossRows), widest = std::min(n, kLossCols);
  CudaState& s = ex.cuda_state();
  const SplitMatrix delta(ex, panel, n), strip(ex, n, widest);
  const Tensor product = ex.alloc(DType::f32, {panel, widest});
  for (int64_t first = 0; first < out; first += panel) {
    const int64_t rows = std::min(panel, out - first);
    const float *of_a = a.as<float>() + first * n, *of_b = b.as<float>() + first * n;
    difference_terms_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s.stream>>>(of_a, of_b, delta.terms(), n);
    FEWBIT_CUDA_LAUNCHED();
    for (int64_t begin = 0; begin < n; begin += widest) {
      const int64_t end = std::min(n, begin + widest), cols = end - begin;
      upper_terms_kernel<<<static_cast<unsigned>(end), kThreads, 0, s.stream>>>(h.as<float>(), strip.terms(), n, begin,
                                                                                end);
      FEWBIT_CUDA_LAUNCHED();
      split_product(s, delta.terms(), strip.terms(), rows, end, cols, product.as<float>(), cols);
      error_dot_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s.stream>>>(
          of_a + begin, of_b + begin, product.as<float>(), loss + first, n, cols, begin == 0);
      FEWBIT_CUDA_LAUNCHED();
    }
  }
}

}  // namespace

void gram_loss(Exec& ex, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss, LossSums sums) {
  const int64_t out = a.rows(), n = a.cols();
  FEWBIT_ASSERT(a.shape == b.shape && h.rows() == n && h.cols() == n && loss.numel() == out);
  if (out == 0) return;
  if (sums != LossSums::f64) return loss_by_terms(ex, a, b, h, loss.as<double>());
  CudaState& s = ex.cuda_state();
  const WideCut cut = square_cut(Device::cuda, out, n);
  const Tensor delta = ex.alloc(DType::f64, {cut.rows, n}), product = ex.alloc(DType::f64, {cut.rows, n}),
               strip = ex.alloc(DType::f64, {n, cut.widest()});
  for (int64_t begin = 0; begin < out; begin += cut.rows) {
    const int64_t rows = std::min(cut.rows, out - begin);
    difference_kernel<<<grid_for(rows * n, kThreads, 8192), kThreads, 0, s.stream>>>(
        a.as<float>() + begin * n, b.as<float>() + begin * n, delta.as<double>(), rows * n);
    FEWBIT_CUDA_LAUNCHED();
    upper_product(s, delta.as<double>(), rows, cut, h.as<float>(), strip.as<double>(), product.as<double>());
    row_dot_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s.stream>>>(delta.as<double>(), product.as<double>(),
                                                                           loss.as<double>() + begin, n);
    FEWBIT_CUDA_LAUNCHED();
  }
}

}  // namespace fewbit::cuda

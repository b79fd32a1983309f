// Summed squares of columns: a block has 32 neighbouring columns, whose rows its warps take in turn; the warps' sums
// are added in their order.
#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/column_energies.h"

namespace fewbit::cuda {
namespace {

constexpr int kCols = 32, kWarps = 16;

__global__ void __launch_bounds__(kCols* kWarps) column_energies_kernel(const float* __restrict__ x,  // [rows, cols]
                                                                        double* __restrict__ energy,  // [cols]
                                                                        int64_t rows, int64_t cols) {
  __shared__ double part[kWarps][kCols];
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kCols + threadIdx.x;
  double sum = 0;
  if (j < cols)
    for (int64_t r = threadIdx.y; r < rows; r += kWarps) {
      const double v = x[r * cols + j];
      sum += v * v;
    }
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || j >= cols) return;
  for (int w = 1; w < kWarps; ++w) sum += part[w][threadIdx.x];
  energy[j] = sum;
}

}  // namespace

void column_energies(Exec& ex, ConstTensorView x, TensorView energy) {
  if (x.cols() == 0) return;
  const auto blocks = static_cast<unsigned>((x.cols() + kCols - 1) / kCols);
  column_energies_kernel<<<blocks, dim3(kCols, kWarps), 0, ex.cuda_state().stream>>>(x.as<float>(), energy.as<double>(),
                                                                                     x.rows(), x.cols());
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda

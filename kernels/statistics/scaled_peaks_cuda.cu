// Peaks of scaled runs: a warp per run. A lane keeps its first largest entry; lanes are merged by size, then by column,
// so that the first of equal entries wins as on the CPU.
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/scaled_peaks.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kAllLanes = 0xffffffffu;

__global__ void scaled_peaks_kernel(const float* __restrict__ x, const float* __restrict__ scale,
                                    int32_t* __restrict__ at, float* __restrict__ value, int64_t runs, int length,
                                    int runs_of_row) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (r >= runs) return;
  const int lane = threadIdx.x % 32, first = static_cast<int>(r % runs_of_row) * length;
  const float* run = x + r * length;
  float most = -1;
  int best = length;
  for (int i = lane; i < length; i += 32) {
    const float z = fabsf(__fmul_rn(run[i], scale[first + i]));
    if (z > most) {
      most = z;
      best = i;
    }
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const float z = __shfl_xor_sync(kAllLanes, most, d);
    const int i = __shfl_xor_sync(kAllLanes, best, d);
    if (z > most || (z == most && i < best)) {
      most = z;
      best = i;
    }
  }
  if (lane == 0) {
    at[r] = first + best;
    value[r] = run[best];
  }
}

}  // namespace

void scaled_peaks(Exec& ex, ConstTensorView x, ConstTensorView scale, int64_t length, TensorView at, TensorView value) {
  const int64_t runs = at.numel();
  if (runs == 0) return;
  constexpr int64_t kWarps = kThreads / 32;
  scaled_peaks_kernel<<<static_cast<unsigned>((runs + kWarps - 1) / kWarps), kThreads, 0, ex.cuda_state().stream>>>(
      x.as<float>(), scale.as<float>(), at.as<int32_t>(), value.as<float>(), runs, static_cast<int>(length),
      static_cast<int>(x.cols() / length));
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda

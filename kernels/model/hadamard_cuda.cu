// The rotation of queries and keys: a warp has a run, in registers where a head is one run of 64, 128 or 256 values.
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/hadamard.cuh"
#include "kernels/model/hadamard.h"

namespace fewbit::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxRun = 1024;  // above the widest head: weights along turned inputs

template <class T>
__global__ void hadamard_kernel(T* q, T* k, int64_t q_runs, int64_t runs, int run, float scale) {
  __shared__ float room[kWarps][kMaxRun];
  allow_successor();
  await_predecessor();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (i >= runs) return;
  T* at = i < q_runs ? q + i * run : k + (i - q_runs) * run;
  hadamard_head(at, at, room[threadIdx.y], run, run, scale, threadIdx.x);
}

}  // namespace

void hadamard(Exec& ex, TensorView q, TensorView k, int64_t head_dim) {
  FEWBIT_ASSERT(head_dim > 0 && q.cols() % head_dim == 0 && k.cols() % head_dim == 0 && q.dtype == k.dtype);
  const int64_t run = hadamard_run(head_dim), q_runs = q.numel() / run, runs = q_runs + k.numel() / run;
  FEWBIT_ASSERT(run <= kMaxRun);
  if (runs == 0) return;
  dispatch_f32_bf16(q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_overlapping(ex.cuda_state(), hadamard_kernel<T>, dim3(static_cast<unsigned>((runs + kWarps - 1) / kWarps)),
                       dim3(32, kWarps), 0, q.as<T>(), k.as<T>(), q_runs, runs, static_cast<int>(run),
                       1 / std::sqrt(static_cast<float>(run)));
  });
}

}  // namespace fewbit::cuda

// A branch times the logistic function of its gate: a thread has a value; bound by memory.
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/sigmoid_gate.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void sigmoid_gate_kernel(const T* gate, const T* x, T* out, int64_t cols, int64_t gates, int64_t n) {
  allow_successor();
  await_predecessor();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t g = gates == cols ? i : i / cols * gates + i % cols / (cols / gates);
  out[i] = from_f32<T>(to_f32(x[i]) / (1.f + expf(-to_f32(gate[g]))));
}

}  // namespace

void sigmoid_gate(Exec& ex, ConstTensorView gate, ConstTensorView x, TensorView out) {
  const int64_t n = x.numel();
  if (n == 0) return;
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_overlapping(ex.cuda_state(), sigmoid_gate_kernel<T>,
                       dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)), dim3(kThreads), 0, gate.as<T>(),
                       x.as<T>(), out.as<T>(), x.cols(), gate.cols(), n);
  });
}

}  // namespace fewbit::cuda

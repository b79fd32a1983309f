// Gradient of the gated activation: a thread has a value; bound by memory. The formula is that of
// kernels/model/gated_act_grad_cpu.cpp.
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/model/gated_act_grad.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void gated_act_grad_kernel(const float* __restrict__ gate, const float* __restrict__ up, float scale,
                                      float cubic, const float* __restrict__ dy, float* __restrict__ d_gate,
                                      float* __restrict__ d_up, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    const float g = gate[i], grad = dy[i];
    const float s = 1.f / (1.f + expf(-scale * (g + cubic * g * g * g)));
    const float slope = s + g * s * (1.f - s) * scale * (1.f + 3.f * cubic * g * g);
    d_gate[i] = grad * up[i] * slope;
    d_up[i] = grad * g * s;
  }
}

}  // namespace

void gated_act_grad(Exec& ex, ConstTensorView gate, ConstTensorView up, ActKind act, ConstTensorView dy,
                    TensorView d_gate, TensorView d_up) {
  const int64_t n = dy.numel();
  FEWBIT_ASSERT(gate.numel() == n && up.numel() == n && d_gate.numel() == n && d_up.numel() == n);
  if (n == 0) return;
  const SigmoidForm form = sigmoid_form(act);
  gated_act_grad_kernel<<<grid_for(n, kThreads), kThreads, 0, ex.cuda_state().stream>>>(
      gate.as<float>(), up.as<float>(), form.scale, form.cubic, dy.as<float>(), d_gate.as<float>(), d_up.as<float>(),
      n);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda

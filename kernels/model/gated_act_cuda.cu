// The gated activation: a thread has eight neighbours of gate and up; bound by memory. It reads both before it writes,
// so out may be either of them.
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/gated_act.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kN = 8;  // values per thread

template <class T, ActKind kAct>
__global__ void gated_act_kernel(const T* gate, const T* up, T* out, int64_t n, bool vectors) {
  allow_successor();
  await_predecessor();
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN;
  if (vectors && begin + kN <= n) {
    const auto g = load_vec<T, kN>(gate + begin), u = load_vec<T, kN>(up + begin);
    Vec<T, kN> y;
#pragma unroll
    for (int i = 0; i < kN; ++i) y[i] = from_f32<T>(activate<kAct>(to_f32(g[i])) * to_f32(u[i]));
    store_vec(out + begin, y);
    return;
  }
  for (int64_t i = begin; i < n && i < begin + kN; ++i)
    out[i] = from_f32<T>(activate<kAct>(to_f32(gate[i])) * to_f32(up[i]));
}

template <class T>
__global__ void clamped_swiglu_kernel(const T* gate, const T* up, SwigluClamp clamp, T* out, int64_t n) {
  allow_successor();
  await_predecessor();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float g = fminf(to_f32(gate[i]), clamp.limit), u = fminf(fmaxf(to_f32(up[i]), -clamp.limit), clamp.limit);
  out[i] = from_f32<T>((u + clamp.shift) * g / (1.f + expf(-clamp.slope * g)));
}

}  // namespace

void gated_act(Exec& ex, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView out) {
  const int64_t n = out.numel();
  FEWBIT_ASSERT(gate.numel() == n && up.numel() == n && gate.dtype == out.dtype && up.dtype == out.dtype);
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>((n + kThreads * kN - 1) / (kThreads * kN));
  dispatch_f32_bf16(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool vectors = aligned16(gate.as<T>()) && aligned16(up.as<T>()) && aligned16(out.as<T>());
    auto* kernel = act == ActKind::silu        ? gated_act_kernel<T, ActKind::silu>
                   : act == ActKind::gelu_tanh ? gated_act_kernel<T, ActKind::gelu_tanh>
                   : act == ActKind::relu      ? gated_act_kernel<T, ActKind::relu>
                                               : gated_act_kernel<T, ActKind::none>;
    launch_overlapping(ex.cuda_state(), kernel, dim3(blocks), dim3(kThreads), 0, gate.as<T>(), up.as<T>(), out.as<T>(),
                       n, vectors);
  });
}

void clamped_swiglu(Exec& ex, ConstTensorView gate, ConstTensorView up, const SwigluClamp& clamp, TensorView out) {
  const int64_t n = out.numel();
  if (n == 0) return;
  dispatch_f32_bf16(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_overlapping(ex.cuda_state(), clamped_swiglu_kernel<T>,
                       dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)), dim3(kThreads), 0, gate.as<T>(),
                       up.as<T>(), clamp, out.as<T>(), n);
  });
}

}  // namespace fewbit::cuda

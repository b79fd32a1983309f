// The short causal convolution: a thread has one channel of one token and reads its few inputs, of which all but one
// are in the cache; bound by memory. A second launch, where there is a tail, moves on: a thread has one channel of one
// sequence and reads all that it overwrites first.
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/recurrent/short_conv.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct Conv {
  const T* x;
  const float* w;
  const float* bias;  // or null
  T* tail;            // or null
  T* y;
  int64_t len, channels;
  int taps;
  bool silu;
};

// The input of channel c at token t of sequence s; t may lie in the tail.
template <class T>
__device__ __forceinline__ float input_at(const Conv<T>& a, int64_t s, int64_t t, int64_t c) {
  if (t >= 0) return to_f32(a.x[(s * a.len + t) * a.channels + c]);
  return a.tail ? to_f32(a.tail[(s * (a.taps - 1) + a.taps - 1 + t) * a.channels + c]) : 0.f;
}

template <class T>
__global__ void short_conv_kernel(Conv<T> a, int64_t values) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= values) return;
  const int64_t row = i / a.channels, c = i % a.channels, s = row / a.len, t = row % a.len;
  float sum = a.bias ? a.bias[c] : 0.f;
  for (int k = 0; k < a.taps; ++k) sum += a.w[c * a.taps + k] * input_at(a, s, t - a.taps + 1 + k, c);
  a.y[i] = from_f32<T>(a.silu ? sum / (1.f + expf(-sum)) : sum);
}

template <class T>
__global__ void tail_kernel(Conv<T> a, int64_t values) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= values) return;
  const int64_t s = i / a.channels, c = i % a.channels;
  const int before = a.taps - 1;
  float kept[kMostTaps];
  for (int k = 0; k < before; ++k) kept[k] = input_at(a, s, a.len - before + k, c);
  for (int k = 0; k < before; ++k) a.tail[(s * before + k) * a.channels + c] = from_f32<T>(kept[k]);
}

}  // namespace

void short_conv(Exec& ex, ConstTensorView x, ConstTensorView w, ConstTensorView bias, int64_t seqs, ConvAct act,
                TensorView tail, TensorView y) {
  if (x.numel() == 0) return;
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Conv<T> a{x.as<T>(),
                    w.as<float>(),
                    bias.data ? bias.as<float>() : nullptr,
                    tail.data ? tail.as<T>() : nullptr,
                    y.as<T>(),
                    x.rows() / seqs,
                    x.cols(),
                    static_cast<int>(w.cols()),
                    act == ConvAct::silu};
    const auto blocks = [](int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); };
    short_conv_kernel<T><<<blocks(x.numel()), kThreads, 0, ex.cuda_state().stream>>>(a, x.numel());
    FEWBIT_CUDA_LAUNCHED();
    if (!a.tail || a.taps < 2) return;
    tail_kernel<T><<<blocks(seqs * a.channels), kThreads, 0, ex.cuda_state().stream>>>(a, seqs * a.channels);
    FEWBIT_CUDA_LAUNCHED();
  });
}

}  // namespace fewbit::cuda

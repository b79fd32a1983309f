// Hyper-connections: a block has a token. Its warps share the rows of fn; one thread projects the mixing matrix, which
// has at most 64 values. Bytes: a token's streams twice, fn once a token from L2.
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/streams/streams.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostRows = (2 + kMostStreams) * kMostStreams;

__device__ __forceinline__ float logistic(float x) { return 1.f / (1.f + expf(-x)); }

// Divides every row of m [n, n] (step between its values 1, between rows n) or column (n, 1) by its sum + eps.
__device__ void divide(float* m, int n, int inner, int outer, float eps) {
  for (int j = 0; j < n; ++j) {
    float sum = eps;
    for (int k = 0; k < n; ++k) sum += m[j * outer + k * inner];
    for (int k = 0; k < n; ++k) m[j * outer + k * inner] /= sum;
  }
}

__device__ void sinkhorn(float* m, int n, float eps, int rounds) {
  for (int j = 0; j < n; ++j) {
    float *row = m + j * n, top = row[0], sum = 0;
    for (int k = 1; k < n; ++k) top = fmaxf(top, row[k]);
    for (int k = 0; k < n; ++k) sum += row[k] = expf(row[k] - top);
    for (int k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
  }
  divide(m, n, n, 1, eps);
  for (int round = 1; round < rounds; ++round) {
    divide(m, n, 1, n, eps);
    divide(m, n, n, 1, eps);
  }
}

// Grid: tokens. `mix` may be null: fn has n rows then.
template <class T>
__global__ void __launch_bounds__(kThreads)
    read_streams_kernel(const T* x, const float* fn, const float* base, const float* scale, int rows, int n,
                        int64_t hidden, float norm_eps, float eps, int rounds, T* out, T* mix) {
  __shared__ float m[kMostRows], reduce[32];
  const int64_t t = blockIdx.x, cols = n * hidden;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  x += t * cols;
  float squares = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) squares = fmaf(to_f32(x[c]), to_f32(x[c]), squares);
  const float inverse = rsqrtf(block_sum(squares, reduce) / static_cast<float>(cols) + norm_eps);
  for (int r = warp; r < rows; r += kWarps) {
    float dot = 0;
    for (int64_t c = lane; c < cols; c += 32) dot = fmaf(fn[r * cols + c], to_f32(x[c]), dot);
    dot = warp_sum(dot);
    const int part = r / n < 2 ? r / n : 2;
    if (lane == 0) m[r] = dot * inverse * scale[part] + base[r];
  }
  __syncthreads();
  if (threadIdx.x < n) {
    m[threadIdx.x] = logistic(m[threadIdx.x]) + eps;
    if (mix) m[n + threadIdx.x] = 2.f * logistic(m[n + threadIdx.x]);
  }
  if (mix && threadIdx.x == 0) sinkhorn(m + 2 * n, n, eps, rounds);
  __syncthreads();
  for (int64_t c = threadIdx.x; c < hidden; c += kThreads) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum = fmaf(m[i], to_f32(x[i * hidden + c]), sum);
    out[t * hidden + c] = from_f32<T>(sum);
  }
  const int each = n + n * n;
  for (int i = threadIdx.x; mix && i < each; i += kThreads) mix[t * each + i] = from_f32<T>(m[n + i]);
}

// Grid: tokens. A thread has one feature of all streams, so that x can be overwritten.
template <class T>
__global__ void __launch_bounds__(kThreads)
    write_streams_kernel(const T* branch, const T* mix, int n, int64_t hidden, T* x) {
  __shared__ float m[kMostStreams + kMostStreams * kMostStreams];
  const int64_t t = blockIdx.x;
  const int each = n + n * n;
  for (int i = threadIdx.x; i < each; i += kThreads) m[i] = to_f32(mix[t * each + i]);
  __syncthreads();
  x += t * n * hidden;
  for (int64_t c = threadIdx.x; c < hidden; c += kThreads) {
    const float b = to_f32(branch[t * hidden + c]);
    float v[kMostStreams];
#pragma unroll
    for (int j = 0; j < kMostStreams; ++j) v[j] = j < n ? to_f32(x[j * hidden + c]) : 0.f;
    for (int k = 0; k < n; ++k) {
      float sum = m[k] * b;
#pragma unroll
      for (int j = 0; j < kMostStreams; ++j)
        if (j < n) sum = fmaf(m[n + j * n + k], v[j], sum);
      x[k * hidden + c] = from_f32<T>(sum);
    }
  }
}

}  // namespace

void read_streams(Exec& ex, ConstTensorView x, const StreamWeights& w, const StreamArgs& a, TensorView out,
                  TensorView mix) {
  if (x.rows() == 0) return;
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    read_streams_kernel<T><<<static_cast<unsigned>(x.rows()), kThreads, 0, ex.cuda_state().stream>>>(
        x.as<T>(), w.fn.as<float>(), w.base.as<float>(), w.scale.as<float>(), static_cast<int>(w.fn.rows()), a.streams,
        out.cols(), a.norm_eps, a.eps, a.rounds, out.as<T>(), mix.data ? mix.as<T>() : nullptr);
  });
  FEWBIT_CUDA_LAUNCHED();
}

void write_streams(Exec& ex, ConstTensorView branch, ConstTensorView mix, TensorView x) {
  if (x.rows() == 0) return;
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    write_streams_kernel<T><<<static_cast<unsigned>(x.rows()), kThreads, 0, ex.cuda_state().stream>>>(
        branch.as<T>(), mix.as<T>(), static_cast<int>(x.cols() / branch.cols()), branch.cols(), x.as<T>());
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda

// Attention over keys that all heads share: a block has one head of one query. Its scores stand in shared memory; a
// warp has a key of the scores, a thread some features of the mean.
#include <algorithm>
#include <string>

#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/shared_keys/shared_key_attention.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <class T>
struct Job {
  const T *q, *keys, *far;  // far or null
  const int32_t *chosen, *positions;
  const float* sinks;
  int choices, d, window, every;
  int64_t len, capacity, most;  // most: scores that shared memory has room for
  float scale;
  T* out;

  // The i-th key of query t: near ones first.
  __device__ const T* key(int64_t t, int i, int first_near, int near) const {
    const int64_t row = t / len * capacity;
    if (i < near) return keys + (row + first_near + i) * d;
    const int64_t b = chosen ? chosen[t * choices + i - near] : i - near;
    return far + (row + b * every + every - 1) * d;
  }
};

// Grid: tokens x heads. Shared: scores [most], the query [d].
template <class T>
__global__ void __launch_bounds__(kThreads) shared_key_attention_kernel(Job<T> j) {
  extern __shared__ float scores[];
  __shared__ float reduce[32];
  float* query = scores + j.most;
  const int64_t t = blockIdx.x, row = (t * gridDim.y + blockIdx.y) * j.d;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int p = j.positions[t], first_near = max(0, p + 1 - j.window), near = p + 1 - first_near;
  int far = j.far ? (p + 1) / j.every : 0;
  if (j.chosen) {
    int mine = 0;
    for (int i = threadIdx.x; i < j.choices; i += kThreads) mine += j.chosen[t * j.choices + i] >= 0;
    far = static_cast<int>(block_sum(static_cast<float>(mine), reduce));
  }
  for (int c = threadIdx.x; c < j.d; c += kThreads) query[c] = to_f32(j.q[row + c]) * j.scale;
  __syncthreads();
  for (int i = warp; i < near + far; i += kWarps) {
    const T* key = j.key(t, i, first_near, near);
    float dot = 0;
    for (int c = lane; c < j.d; c += 32) dot = fmaf(query[c], to_f32(key[c]), dot);
    dot = warp_sum(dot);
    if (lane == 0) scores[i] = dot;
  }
  __syncthreads();
  const float sink = j.sinks[blockIdx.y];
  float top = sink, sum = 0;
  for (int i = threadIdx.x; i < near + far; i += kThreads) top = fmaxf(top, scores[i]);
  top = block_max(top, reduce);
  __syncthreads();
  for (int i = threadIdx.x; i < near + far; i += kThreads) sum += scores[i] = expf(scores[i] - top);
  sum = block_sum(sum, reduce) + expf(sink - top);
  __syncthreads();
  for (int c = threadIdx.x; c < j.d; c += kThreads) {
    float mean = 0;
    for (int i = 0; i < near + far; ++i) mean = fmaf(scores[i], to_f32(j.key(t, i, first_near, near)[c]), mean);
    j.out[row + c] = from_f32<T>(mean / sum);
  }
}

}  // namespace

void shared_key_attention(Exec& ex, ConstTensorView q, const SharedKeys& k, ConstTensorView sinks,
                          ConstTensorView positions, const SharedKeyArgs& a, TensorView out) {
  if (q.rows() == 0) return;
  CudaState& s = ex.cuda_state();
  const int64_t capacity = k.keys.shape[1], d = k.keys.shape[2];
  const int64_t choices = k.chosen.data ? k.chosen.cols() : 0;
  const int64_t far = !k.far.data ? 0 : k.chosen.data ? choices : capacity / a.every;
  const int64_t most = std::min(capacity, a.window) + far;
  const size_t shared = sizeof(float) * static_cast<size_t>(most + d);
  if (shared > s.max_shared())
    fail(ErrorKind::unsupported, "shared_key_attention: " + std::to_string(most) +
                                     " keys of a query do not fit into the GPU's shared memory; expected a shorter "
                                     "context");
  dispatch_f32_bf16(q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    FEWBIT_CUDA_CALL(cudaFuncSetAttribute(shared_key_attention_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared)));
    const Job<T> job{q.as<T>(),
                     k.keys.as<T>(),
                     k.far.data ? k.far.as<T>() : nullptr,
                     k.chosen.data ? k.chosen.as<int32_t>() : nullptr,
                     positions.as<int32_t>(),
                     sinks.as<float>(),
                     static_cast<int>(choices),
                     static_cast<int>(d),
                     static_cast<int>(std::min(a.window, capacity)),
                     static_cast<int>(a.every),
                     q.rows() / k.keys.shape[0],
                     capacity,
                     most,
                     a.scale,
                     out.as<T>()};
    const dim3 grid(static_cast<unsigned>(q.rows()), static_cast<unsigned>(a.heads));
    shared_key_attention_kernel<T><<<grid, kThreads, shared, s.stream>>>(job);
    FEWBIT_CUDA_LAUNCHED();
  });
}

}  // namespace fewbit::cuda

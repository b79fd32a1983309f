// One key for every block of tokens: a block of threads has a token, a thread some of the key's features. The tail is
// written by a second launch, when every key has read it.
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/shared_keys/compress_keys.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct Job {
  const T *offer, *gate;
  const float* ape;
  const T* norm;
  const float* inv_freq;
  const int32_t* positions;
  T* tail;  // or null
  int64_t len;
  int d, width, every, members;
  float eps;
  T* out;
};

// Grid: tokens. Shared: the key [d].
template <class T>
__global__ void __launch_bounds__(kThreads) compress_keys_kernel(Job<T> j) {
  extern __shared__ float key[];
  __shared__ float reduce[32];
  const int64_t t = blockIdx.x, s = t / j.len;
  const int position = j.positions[t], start = j.positions[s * j.len];
  if ((position + 1) % j.every != 0) {
    for (int c = threadIdx.x; c < j.d; c += kThreads) j.out[t * j.d + c] = from_f32<T>(0.f);
    return;
  }
  const bool overlap = j.members > j.every;
  const int first = position + 1 - j.every, begin = max(0, position + 1 - j.members);
  float squares = 0;
  for (int c = threadIdx.x; c < j.d; c += kThreads) {
    float top = -INFINITY, sum = 0, mean = 0;
    for (int p = begin; p <= position; ++p) {
      const int at = (overlap && p >= first ? j.d : 0) + c;
      const T* before = j.tail + (s * j.members + p % j.members) * 2 * j.width;
      const int64_t row = (s * j.len + p - start) * j.width;
      const float x = to_f32(p >= start ? j.offer[row + at] : before[at]);
      const float g = to_f32(p >= start ? j.gate[row + at] : before[j.width + at]) + j.ape[p % j.every * j.width + at];
      const float higher = fmaxf(top, g), old = expf(top - higher), weight = expf(g - higher);
      sum = fmaf(sum, old, weight);
      mean = fmaf(mean, old, weight * x);
      top = higher;
    }
    key[c] = mean / sum;
    squares = fmaf(key[c], key[c], squares);
  }
  const float inverse = rsqrtf(block_sum(squares, reduce) / static_cast<float>(j.d) + j.eps);
  __syncthreads();
  for (int i = threadIdx.x; i < j.d / 2; i += kThreads) {
    const float angle = static_cast<float>(first) * j.inv_freq[i], c = cosf(angle), sine = sinf(angle);
    const float u = key[2 * i] * inverse * to_f32(j.norm[2 * i]);
    const float v = key[2 * i + 1] * inverse * to_f32(j.norm[2 * i + 1]);
    j.out[t * j.d + 2 * i] = from_f32<T>(u * c - v * sine);
    j.out[t * j.d + 2 * i + 1] = from_f32<T>(v * c + u * sine);
  }
}

// Grid: tokens.
template <class T>
__global__ void __launch_bounds__(kThreads) keep_tail_kernel(Job<T> j) {
  const int64_t t = blockIdx.x, s = t / j.len;
  if (t % j.len < j.len - j.members) return;  // a later token takes its place
  T* row = j.tail + (s * j.members + j.positions[t] % j.members) * 2 * j.width;
  for (int c = threadIdx.x; c < j.width; c += kThreads) {
    row[c] = j.offer[t * j.width + c];
    row[j.width + c] = j.gate[t * j.width + c];
  }
}

}  // namespace

void compress_keys(Exec& ex, const CompressInputs& in, ConstTensorView positions, int64_t seqs, const CompressArgs& a,
                   TensorView tail, TensorView out) {
  if (out.rows() == 0) return;
  CudaState& s = ex.cuda_state();
  const auto tokens = static_cast<unsigned>(out.rows());
  dispatch_f32_bf16(out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const Job<T> job{in.offer.as<T>(),
                     in.gate.as<T>(),
                     in.ape.as<float>(),
                     in.norm.as<T>(),
                     in.inv_freq.as<float>(),
                     positions.as<int32_t>(),
                     tail.data ? tail.as<T>() : nullptr,
                     out.rows() / seqs,
                     static_cast<int>(out.cols()),
                     static_cast<int>(in.offer.cols()),
                     static_cast<int>(a.every),
                     static_cast<int>(a.members()),
                     a.eps,
                     out.as<T>()};
    compress_keys_kernel<T><<<tokens, kThreads, sizeof(float) * static_cast<size_t>(out.cols()), s.stream>>>(job);
    FEWBIT_CUDA_LAUNCHED();
    if (!job.tail) return;
    keep_tail_kernel<T><<<tokens, kThreads, 0, s.stream>>>(job);
    FEWBIT_CUDA_LAUNCHED();
  });
}

}  // namespace fewbit::cuda

// Ops on logits: a block has a row (argmax: several have one where rows are few), 16-byte loads where rows are aligned.
// The log-sum-exp takes one pass: each thread keeps its running maximum and the sum about it, and the threads' pairs
// are merged about the row's maximum in a fixed order.
#include <algorithm>
#include <cfloat>

#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/statistics/nll.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kNone = 0x7fffffff;

__device__ __forceinline__ float capped(float z, float softcap) {
  return softcap > 0 ? softcap * tanhf(z / softcap) : z;
}

// Calls f(value, index) for this thread's values in columns [begin, end) of a row, in ascending order of the index;
// `begin` a multiple of kN.
template <int kN, class F>
__device__ __forceinline__ void for_row(const float* row, int64_t begin, int64_t end, F f) {
  for (int64_t c = begin + static_cast<int64_t>(threadIdx.x) * kN; c < end; c += static_cast<int64_t>(kThreads) * kN) {
    const auto v = load_vec<float, kN>(row + c);
#pragma unroll
    for (int i = 0; i < kN; ++i) f(v[i], static_cast<int>(c) + i);
  }
}

template <int kN>
__global__ void nll_kernel(const float* __restrict__ logits,     // [rows, vocab]
                           const int32_t* __restrict__ targets,  // [rows]
                           float softcap,
                           float* __restrict__ out,  // [rows]
                           int64_t vocab) {
  __shared__ float partial[32];
  const float* row = logits + blockIdx.x * vocab;
  const int32_t target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) out[blockIdx.x] = 0;
    return;
  }
  float max = -FLT_MAX, sum = 0;  // finite, so that logits of minus infinity count as nothing
  for_row<kN>(row, 0, vocab, [&](float z, int) {
    z = capped(z, softcap);
    if (z > max) {
      sum = sum * expf(max - z) + 1.f;
      max = z;
    } else {
      sum += expf(z - max);  // a NaN ends here and stays
    }
  });
  const float row_max = block_max(max, partial);
  const float total = block_sum(sum * expf(max - row_max), partial);
  if (threadIdx.x == 0) out[blockIdx.x] = logf(total) + (row_max - capped(row[target], softcap));
}

struct Best {
  float value;
  int index;
};
__device__ __forceinline__ Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}
__device__ __forceinline__ Best warp_best(Best x) {
  for (int lane = 16; lane > 0; lane /= 2)
    x = better(x, {__shfl_xor_sync(0xffffffffu, x.value, lane), __shfl_xor_sync(0xffffffffu, x.index, lane)});
  return x;
}

__global__ void cap_logits_kernel(float softcap, float* logits, int64_t n) {
  allow_successor();
  await_predecessor();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) logits[i] = capped(logits[i], softcap);
}

constexpr int kMostSplits = 32;  // of a row: a lane of the last block for each

// Block (row, split): the best of its split, and that of the row by the block that finishes last (an arrival counter).
template <int kN>
__global__ void argmax_kernel(const float* __restrict__ logits,  // [rows, vocab]
                              Best* found,                       // [rows, splits]; unused with one split
                              uint32_t* counters,                // [rows], zero before and after
                              int32_t* __restrict__ ids,         // [rows]
                              int64_t vocab, int64_t split_size) {
  allow_successor();
  await_predecessor();
  __shared__ Best partial[kThreads / 32];
  const int64_t begin = blockIdx.y * split_size, end = min(begin + split_size, vocab);
  Best best{-INFINITY, kNone};
  for_row<kN>(logits + blockIdx.x * vocab, begin, end, [&](float z, int i) {
    if (z > best.value) best = {z, i};
  });
  best = warp_best(best);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const Best none{-INFINITY, kNone};
  best = warp_best(threadIdx.x < kThreads / 32 ? partial[threadIdx.x] : none);
  if (gridDim.y > 1) {
    Best* of_row = found + blockIdx.x * gridDim.y;
    uint32_t before = 0;
    if (threadIdx.x == 0) {
      of_row[blockIdx.y] = best;
      __threadfence();
      before = atomicAdd(counters + blockIdx.x, 1u);
    }
    if (__shfl_sync(0xffffffffu, before, 0) != gridDim.y - 1) return;
    __threadfence();
    const volatile Best* theirs = of_row + threadIdx.x;
    best = warp_best(threadIdx.x < gridDim.y ? Best{theirs->value, theirs->index} : none);
    if (threadIdx.x == 0) counters[blockIdx.x] = 0;
  }
  if (threadIdx.x == 0) ids[blockIdx.x] = best.index == kNone ? 0 : best.index;  // no value above -infinity
}

__global__ void advance_kernel(int32_t* values, int32_t delta, int64_t n) {
  allow_successor();
  await_predecessor();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) values[i] += delta;
}

}  // namespace

void nll(Exec& ex, ConstTensorView logits, ConstTensorView targets, float softcap, TensorView out) {
  const int64_t rows = logits.rows(), vocab = logits.cols();
  FEWBIT_ASSERT(logits.dtype == DType::f32 && out.dtype == DType::f32 && targets.dtype == DType::i32);
  FEWBIT_ASSERT(targets.numel() == rows && out.numel() == rows);
  if (rows == 0) return;
  auto* kernel = aligned16(logits.as<float>(), vocab) ? nll_kernel<4> : nll_kernel<1>;
  kernel<<<static_cast<unsigned>(rows), kThreads, 0, ex.cuda_state().stream>>>(
      logits.as<float>(), targets.as<int32_t>(), softcap, out.as<float>(), vocab);
  FEWBIT_CUDA_LAUNCHED();
}

void cap_logits(Exec& ex, float softcap, TensorView logits) {
  FEWBIT_ASSERT(logits.dtype == DType::f32 && softcap > 0);
  const int64_t n = logits.numel();
  if (n == 0) return;
  launch_overlapping(ex.cuda_state(), cap_logits_kernel, dim3(grid_for(n, kThreads)), dim3(kThreads), 0, softcap,
                     logits.as<float>(), n);
}

void argmax(Exec& ex, ConstTensorView logits, TensorView ids) {
  const int64_t rows = logits.rows(), vocab = logits.cols();
  FEWBIT_ASSERT(logits.dtype == DType::f32 && ids.dtype == DType::i32 && ids.numel() == rows);
  if (rows == 0) return;
  auto* kernel = aligned16(logits.as<float>(), vocab) ? argmax_kernel<4> : argmax_kernel<1>;
  CudaState& s = ex.cuda_state();
  constexpr int64_t kStep = 4 * kThreads;  // values that a block takes at once
  const int64_t wanted =
      std::clamp<int64_t>(s.sms() / rows, 1, std::min<int64_t>(kMostSplits, (vocab + kStep - 1) / kStep));
  const int64_t split_size = (vocab + wanted * kStep - 1) / (wanted * kStep) * kStep;
  const int64_t splits = (vocab + split_size - 1) / split_size;
  Best* found = splits > 1 ? s.scratch_of<Best>(rows * splits) : nullptr;
  launch_overlapping(s, kernel, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(splits)), dim3(kThreads), 0,
                     logits.as<float>(), found, s.counters, ids.as<int32_t>(), vocab, split_size);
}

void advance(Exec& ex, TensorView values, int32_t delta) {
  FEWBIT_ASSERT(values.dtype == DType::i32);
  const int64_t n = values.numel();
  if (n == 0) return;
  launch_overlapping(ex.cuda_state(), advance_kernel, dim3(grid_for(n, 128)), dim3(128), 0, values.as<int32_t>(), delta,
                     n);
}

}  // namespace fewbit::cuda

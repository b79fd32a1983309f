#pragma once
// Attention in f32 arithmetic for every dtype and head_dim up to 256: the path of float32 and of shapes that the
// kernels on tensor cores do not take. A block of 256 threads has 32 query rows of one head and walks over the keys 32
// at a time; eight neighbouring threads share a row, each with four scores of a tile and every eighth column of the
// output. It is written to be plainly right: its products run on the ordinary arithmetic units.
#include "kernels/attention/attention_source.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda::attention_plain {

inline constexpr int kRows = 32, kKeys = 32, kThreads = 256;
inline constexpr int kRowThreads = kThreads / kRows;  // 8

// Q and K with rows one value longer than d, so that a column falls into different banks; V; the weights.
inline size_t shared_bytes(int d) {
  return sizeof(float) * static_cast<size_t>(kRows * (d + 1) + kKeys * (d + 1) + kKeys * d + kRows * kKeys);
}

// Grid: tiles of 32 query rows x heads x sequences. kColumns: output columns a thread can own; head_dim <= 8 *
// kColumns.
template <class T, class C, int kColumns>
__global__ void __launch_bounds__(kThreads) plain_attention_kernel(const __grid_constant__ AttentionSource<T, C> a) {
  extern __shared__ float f32_shared[];
  const int d = a.d, stride = d + 1;
  float* q_sh = f32_shared;             // [32, d + 1]
  float* k_sh = q_sh + kRows * stride;  // [32, d + 1]
  float* v_sh = k_sh + kKeys * stride;  // [32, d]
  float* p_sh = v_sh + kKeys * d;       // [32, 32]
  const int row = threadIdx.x / kRowThreads, sub = threadIdx.x % kRowThreads, lane = threadIdx.x % 32;
  const int row0 = blockIdx.x * kRows, seq = blockIdx.z, head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
  const C* k = a.k + seq * a.kv_seq + kv_head * a.kv_head;
  const C* v = a.v + seq * a.kv_seq + kv_head * a.kv_head;
  const int64_t scales_at = kIsCode<C> ? a.scales_of(seq, kv_head) : 0;
  const float *k_scales = a.k_scales + scales_at, *v_scales = a.v_scales + scales_at;
  const auto position_of = [&](int r) { return a.position_of(seq, row0 + r); };
  const auto query_row = [&](int r) {
    return (static_cast<int64_t>(seq) * a.len + row0 + r) * a.heads * d + static_cast<int64_t>(head) * d;
  };
  const KeyRange range = key_range(position_of(lane), -1, a.window, a.keys);
  const int position = position_of(row), first = a.first_key(position);
  for (int e = threadIdx.x; e < kRows * d; e += kThreads) {
    const int r = e / d;
    q_sh[r * stride + e % d] = row0 + r < a.len ? to_f32(a.q[query_row(r) + e % d]) : 0.f;
  }

  // A sink is a score that was seen first and has no value; one of a row's threads holds its weight.
  float o[kColumns] = {}, m = a.sinks ? a.sinks[head] : -INFINITY, l = a.sinks && sub == 0 ? 1.f : 0.f;
  for (int key0 = a.first_key(range.low) / kKeys * kKeys; key0 < range.end; key0 += kKeys) {
    __syncthreads();  // the tile before has been used
    for (int e = threadIdx.x; e < kKeys * d; e += kThreads) {
      const int key = key0 + e / d, col = e % d;
      const bool there = key < range.end;
      k_sh[e / d * stride + col] = there ? stored_value(a, k, k_scales, key, col) : 0.f;
      v_sh[e] = there ? stored_value(a, v, v_scales, key, col) : 0.f;
    }
    __syncthreads();
    float s[kKeys / kRowThreads], top = m;
#pragma unroll
    for (int i = 0; i < kKeys / kRowThreads; ++i) {
      const int j = sub + i * kRowThreads, key = key0 + j;
      float dot = 0;
      for (int c = 0; c < d; ++c) dot = fmaf(q_sh[row * stride + c], k_sh[j * stride + c], dot);
      dot *= a.scale;
      if (a.softcap > 0) dot = a.softcap * tanhf(dot / a.softcap);
      const bool visible = key <= position && key < range.end && key >= first;
      s[i] = visible ? dot : -INFINITY;
      top = fmaxf(top, s[i]);
    }
    for (int other = kRowThreads / 2; other > 0; other /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, other));
    const float reference = top == -INFINITY ? 0.f : top;  // a row that has seen no key yet
    const float rescale = expf(m - reference);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kKeys / kRowThreads; ++i) {
      const float p = expf(s[i] - reference);
      p_sh[row * kKeys + sub + i * kRowThreads] = p;
      sum += p;
    }
    m = top;
    l = l * rescale + sum;
    __syncwarp();  // a row's weights are written and read inside one warp
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int col = sub + i * kRowThreads;
      if (col >= d) break;
      float add = 0;
      for (int j = 0; j < kKeys; ++j) add = fmaf(p_sh[row * kKeys + j], v_sh[j * d + col], add);
      o[i] = fmaf(o[i], rescale, add);
    }
  }
  for (int other = kRowThreads / 2; other > 0; other /= 2) l += __shfl_xor_sync(0xffffffffu, l, other);
  if (row0 + row >= a.len) return;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int col = sub + i * kRowThreads;
    if (col < d) a.out[query_row(row) + col] = from_f32<T>(o[i] / l);
  }
}

template <class T, class C>
void launch(CudaState& s, const AttentionSource<T, C>& a) {
  if (a.d > 256)
    fail(ErrorKind::unsupported, "attention: head_dim " + std::to_string(a.d) + " on the GPU; up to 256 is built in");
  auto* kernel = a.d <= 64    ? plain_attention_kernel<T, C, 8>
                 : a.d <= 128 ? plain_attention_kernel<T, C, 16>
                              : plain_attention_kernel<T, C, 32>;
  const size_t shared = shared_bytes(a.d);
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  const dim3 grid((a.len + kRows - 1) / kRows, a.heads, a.seqs);
  kernel<<<grid, kThreads, shared, s.stream>>>(a);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda::attention_plain

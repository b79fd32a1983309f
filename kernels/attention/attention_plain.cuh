#pragma once
// Attention in f32 arithmetic for every dtype and head_dim up to 256: the path of float32 and of shapes that
// the tensor kernels do not take. A block of 256 threads has 32 query rows of one head and walks over the
// keys 32 at a time; eight neighbouring threads share a row, each with four scores of a tile and every eighth
// column of the output. Written to be right first: the products run on the ordinary units.
#include "kernels/attention/attention_tile.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {

inline constexpr int kPlainRows = 32, kPlainKeys = 32, kPlainThreads = 256;
inline constexpr int kPlainPerRow = kPlainThreads / kPlainRows;  // threads of a row: 8

inline size_t plain_shared(int d) {  // Q and K rows one value longer than d, for the banks; V; the weights
  return sizeof(float) *
         static_cast<size_t>(kPlainRows * (d + 1) + kPlainKeys * (d + 1) + kPlainKeys * d + kPlainRows * kPlainKeys);
}

// kColumns: output columns a thread can own; head_dim <= 8 * kColumns.
template <class T, class C, int kColumns>
__global__ void __launch_bounds__(kPlainThreads)
    plain_attention_kernel(const __grid_constant__ AttentionSource<T, C> a) {
  extern __shared__ float f32_shared[];
  const int d = a.d, stride = d + 1;
  float* q_sh = f32_shared;                  // [32, d + 1]
  float* k_sh = q_sh + kPlainRows * stride;  // [32, d + 1]
  float* v_sh = k_sh + kPlainKeys * stride;  // [32, d]
  float* p_sh = v_sh + kPlainKeys * d;       // [32, 32]
  const int row = threadIdx.x / kPlainPerRow, sub = threadIdx.x % kPlainPerRow, lane = threadIdx.x % 32;
  const int row0 = blockIdx.x * kPlainRows, head = blockIdx.y, seq = blockIdx.z;
  const int kv_head = head / (a.heads / a.kv_heads);
  const C* k = a.k + seq * a.kv_seq + kv_head * a.kv_head;
  const C* v = a.v + seq * a.kv_seq + kv_head * a.kv_head;
  const auto value_of = [&, scales_at = a.scales_of(seq, kv_head)](C x, const float* scales, int key) {
    if constexpr (kIsCode<C>) return to_f32(x) * scales[scales_at + (kTokenScales<C> ? key : 0)];
    return to_f32(x);
  };
  const auto position_of = [&](int r) {
    const int i = row0 + r;
    return i >= a.len ? -1 : a.positions ? a.positions[static_cast<int64_t>(seq) * a.len + i] : i;
  };
  const auto query_row = [&](int r) {
    return (static_cast<int64_t>(seq) * a.len + row0 + r) * a.heads * d + static_cast<int64_t>(head) * d;
  };
  const KeyRange range = key_range(position_of(lane), -1, a.window, a.keys);
  const int position = position_of(row);
  for (int e = threadIdx.x; e < kPlainRows * d; e += kPlainThreads) {
    const int r = e / d;
    q_sh[r * stride + e % d] = row0 + r < a.len ? to_f32(a.q[query_row(r) + e % d]) : 0.f;
  }

  float o[kColumns], m = -INFINITY, l = 0;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) o[i] = 0;
  for (int key0 = range.begin / kPlainKeys * kPlainKeys; key0 < range.end; key0 += kPlainKeys) {
    __syncthreads();  // the tile before has been used
    for (int e = threadIdx.x; e < kPlainKeys * d; e += kPlainThreads) {
      const int key = key0 + e / d, col = e % d;
      const bool there = key < range.end;
      k_sh[e / d * stride + col] = there ? value_of(k[key * a.kv_token + col], a.k_scales, key) : 0.f;
      v_sh[e] = there ? value_of(v[key * a.kv_token + col], a.v_scales, key) : 0.f;
    }
    __syncthreads();
    float s[kPlainKeys / kPlainPerRow], top = m;
#pragma unroll
    for (int i = 0; i < kPlainKeys / kPlainPerRow; ++i) {
      const int j = sub + i * kPlainPerRow, key = key0 + j;
      float dot = 0;
      for (int c = 0; c < d; ++c) dot = fmaf(q_sh[row * stride + c], k_sh[j * stride + c], dot);
      dot *= a.scale;
      if (a.softcap > 0) dot = a.softcap * tanhf(dot / a.softcap);
      const bool seen = key <= position && key < range.end && (a.window == 0 || key > position - a.window);
      s[i] = seen ? dot : -INFINITY;
      top = fmaxf(top, s[i]);
    }
    for (int other = kPlainPerRow / 2; other > 0; other /= 2)
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, other));
    const float about = top == -INFINITY ? 0.f : top, keep = expf(m - about);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPlainKeys / kPlainPerRow; ++i) {
      const float p = expf(s[i] - about);
      p_sh[row * kPlainKeys + sub + i * kPlainPerRow] = p;
      sum += p;
    }
    m = top;
    l = l * keep + sum;
    __syncwarp();  // a row's weights are written and read inside one warp
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int col = sub + i * kPlainPerRow;
      if (col >= d) break;
      float add = 0;
      for (int j = 0; j < kPlainKeys; ++j) add = fmaf(p_sh[row * kPlainKeys + j], v_sh[j * d + col], add);
      o[i] = fmaf(o[i], keep, add);
    }
  }
  for (int other = kPlainPerRow / 2; other > 0; other /= 2) l += __shfl_xor_sync(0xffffffffu, l, other);
  if (row0 + row >= a.len) return;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int col = sub + i * kPlainPerRow;
    if (col < d) a.out[query_row(row) + col] = from_f32<T>(o[i] / l);
  }
}

template <class T, class C>
void launch_plain(CudaState& s, const AttentionSource<T, C>& a) {
  if (a.d > 256)
    fail(ErrorKind::unsupported, "attention: head_dim " + std::to_string(a.d) + " on the GPU; up to 256 is built in");
  auto* kernel = a.d <= 64    ? plain_attention_kernel<T, C, 8>
                 : a.d <= 128 ? plain_attention_kernel<T, C, 16>
                              : plain_attention_kernel<T, C, 32>;
  const size_t shared = plain_shared(a.d);
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  const dim3 grid((a.len + kPlainRows - 1) / kPlainRows, a.heads, a.seqs);
  kernel<<<grid, kPlainThreads, shared, s.stream>>>(a);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda

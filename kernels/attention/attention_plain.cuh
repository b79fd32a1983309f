#pragma once
// Attention in f32 arithmetic for every dtype and head_dim up to 512: the path of float32 and of shapes that the
// kernels on tensor cores do not take. A block of 256 threads has 32 query rows of one head and walks over the keys 32
// at a time; eight neighbouring threads share a row, each with four scores of a tile and every eighth column of the
// output. Above a head_dim of 256, as some layers of Gemma 4 have, it is 16 rows and keys, so that a tile of both fits
// into the shared memory of every GPU. It is written to be plainly right: its products run on the ordinary arithmetic
// units. Over pages a block has one query row.
#include "kernels/attention/attention_source.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda::attention_plain {

inline constexpr int kThreads = 256;

// Query rows of a block, and keys at a time.
inline constexpr int tile_for(int d) { return d <= 256 ? 32 : 16; }

// Q and K with rows one value longer than d, so that a column falls into different banks; V; the weights.
inline size_t shared_bytes(int d) {
  const int tile = tile_for(d);
  return sizeof(float) * static_cast<size_t>(2 * tile * (d + 1) + tile * d + tile * tile);
}

template <class T, class C, bool kPages>
using Source = std::conditional_t<kPages, PagedSource<T, C>, AttentionSource<T, C>>;

template <class T, class C, int kRows, bool kPages>
__device__ __forceinline__ auto tile_of(const Source<T, C, kPages>& a, int kv_head) {
  if constexpr (kPages)
    return PagedTile<T, C>(a, blockIdx.x, 1, a.table_of_row(blockIdx.x), kv_head);
  else
    return RowTile<T, C>(a, blockIdx.z, blockIdx.x * kRows, kv_head);
}

// Grid: tiles of kRows query rows x heads x sequences; over pages query rows x heads. kColumns: output columns a thread
// can own; head_dim <= kThreads / kRows * kColumns.
template <class T, class C, int kRows, int kColumns, bool kPages>
__global__ void __launch_bounds__(kThreads) plain_attention_kernel(const __grid_constant__ Source<T, C, kPages> a) {
  constexpr int kKeys = kRows, kRowThreads = kThreads / kRows;
  extern __shared__ float f32_shared[];
  const int d = a.d, stride = d + 1;
  float* q_sh = f32_shared;             // [kRows, d + 1]
  float* k_sh = q_sh + kRows * stride;  // [kKeys, d + 1]
  float* v_sh = k_sh + kKeys * stride;  // [kKeys, d]
  float* p_sh = v_sh + kKeys * d;       // [kRows, kKeys]
  const int row = threadIdx.x / kRowThreads, sub = threadIdx.x % kRowThreads, lane = threadIdx.x % 32;
  const int head = blockIdx.y;
  const auto block = tile_of<T, C, kRows, kPages>(a, head / (a.heads / a.kv_heads));
  const float *k_scales = a.k_scales + block.scales_at, *v_scales = a.v_scales + block.scales_at;
  const auto position_of = [&](int r) { return block.position_of(r); };
  const auto query_row = [&](int r) { return (static_cast<int64_t>(block.first_row + r) * a.heads + head) * d; };
  const auto value_of = [&](const C* base, const float* scales, int key, int col) {
    const C* key_row = block.key_row(base, key);
    return key_row ? stored_value(key_row, scales + block.scale_of(key), col) : 0.f;
  };
  const KeyRange range = key_range(lane < kRows ? position_of(lane) : -1, -1, a.window, a.keys);
  const int position = position_of(row), first = a.first_key(position);
  for (int e = threadIdx.x; e < kRows * d; e += kThreads) {
    const int r = e / d;
    q_sh[r * stride + e % d] = r < block.rows ? to_f32(a.q[query_row(r) + e % d]) : 0.f;
  }

  // A sink is a score that was seen first and has no value; one of a row's threads holds its weight.
  float o[kColumns] = {}, m = a.sinks ? a.sinks[head] : -INFINITY, l = a.sinks && sub == 0 ? 1.f : 0.f;
  for (int key0 = a.first_key(range.low) / kKeys * kKeys; key0 < range.end; key0 += kKeys) {
    __syncthreads();  // the tile before has been used
    for (int e = threadIdx.x; e < kKeys * d; e += kThreads) {
      const int key = key0 + e / d, col = e % d;
      const bool there = key < range.end;
      k_sh[e / d * stride + col] = there ? value_of(block.k, k_scales, key, col) : 0.f;
      v_sh[e] = there ? value_of(block.v, v_scales, key, col) : 0.f;
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
  if (row >= block.rows) return;
  if (kPages && position < 0) l = INFINITY;  // a row that is none: zeros
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int col = sub + i * kRowThreads;
    if (col < d) a.out[query_row(row) + col] = from_f32<T>(o[i] / l);
  }
}

template <class T, class C, bool kPages>
void launch_grid(CudaState& s, const Source<T, C, kPages>& a, dim3 grid) {
  if (a.d > 512)
    fail(ErrorKind::unsupported, "attention: head_dim " + std::to_string(a.d) + " on the GPU; up to 512 is built in");
  auto* kernel = a.d <= 64    ? plain_attention_kernel<T, C, 32, 8, kPages>
                 : a.d <= 128 ? plain_attention_kernel<T, C, 32, 16, kPages>
                 : a.d <= 256 ? plain_attention_kernel<T, C, 32, 32, kPages>
                              : plain_attention_kernel<T, C, 16, 32, kPages>;
  const size_t shared = shared_bytes(a.d);
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  kernel<<<grid, kThreads, shared, s.stream>>>(a);
  FEWBIT_CUDA_LAUNCHED();
}
template <class T, class C>
void launch(CudaState& s, const AttentionSource<T, C>& a) {
  const int rows = tile_for(a.d);
  launch_grid<T, C, false>(s, a, dim3((a.len + rows - 1) / rows, a.heads, a.seqs));
}
template <class T, class C>
void launch(CudaState& s, const PagedSource<T, C>& a) {
  launch_grid<T, C, true>(s, a, dim3(a.seqs, a.heads));
}

}  // namespace fewbit::cuda::attention_plain

// Norms of heads, RoPE, the Hadamard matrix and the append to the cache in one launch. A warp has one head of one
// token: a query head is turned in place, a key head on its way to the cache, and a value head only goes there. Keys
// and values of 4 bits have a block each, since the fit of their codes would take a warp longer than all else. The
// token's cosines and sines are worked out once a block, as in rope_cuda.cu. With one new token the time is that of the
// launch.
#include <algorithm>
#include <cmath>

#include "kernels/attention/cache_place.cuh"
#include "kernels/attention/kv_quantize.cuh"
#include "kernels/attention/rope_head.cuh"
#include "kernels/device/launch.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kWarps = 8;     // heads of a block
constexpr int kFitWarps = 4;  // for a group of features of 4 bits

struct RopeSizes {
  int heads, kv_heads;
  CachePlace place;
  HeadSizes head;
};

// Blocks of a token: groups of kWarps heads, those of q, then of k, then of v; where rows have 4 bits, groups of those
// of q, then a block for each of the others.
template <class C>
int blocks_of(int heads, int kv_heads) {
  const int others = 2 * kv_heads;
  return kGroupScales<C> ? (heads + kWarps - 1) / kWarps + others : (heads + others + kWarps - 1) / kWarps;
}

// Grid: tokens x blocks of a token.
template <class T, class C>
__global__ void __launch_bounds__(32 * kWarps)
    rope_append_kernel(T* __restrict__ q,        // [tokens, heads * d]
                       const T* __restrict__ k,  // [tokens, kv_heads * d]
                       const T* __restrict__ v, const int32_t* __restrict__ positions,
                       const float* __restrict__ inv_freq, C* __restrict__ k_cache,  // [batch, kv_heads, capacity, d]
                       C* __restrict__ v_cache, float* __restrict__ k_scales, float* __restrict__ v_scales,
                       Norms<T> norms, RopeSizes s) {
  // cosines, sines: table_size(half); then a row of T for each warp, and one of f32 where there is a Hadamard matrix.
  extern __shared__ float table[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = s.head.d, half = s.head.half;
  const int64_t token = blockIdx.x;
  const int q_blocks = (s.heads + kWarps - 1) / kWarps;
  const bool together = kGroupScales<C> && blockIdx.y >= q_blocks;  // the whole block has one head
  const int head = together ? s.heads + static_cast<int>(blockIdx.y) - q_blocks : blockIdx.y * kWarps + warp;
  const int kv_head = (head - s.heads) % s.kv_heads;
  const bool has_head = head < s.heads + (kGroupScales<C> && !together ? 0 : 2 * s.kv_heads);
  const bool of_q = head < s.heads, of_v = head >= s.heads + s.kv_heads;
  const HeadNorm<T> norm = of_v ? HeadNorm<T>{} : of_q ? norms.q : norms.k;
  if (norm.weight && lane * 8 < d) asm volatile("prefetch.global.L1 [%0];" ::"l"(norm.weight + lane * 8));
  // Both have been driven out of the L2 by the weights since the layer before. Positions may still be written, which is
  // seen in the L2: they come no nearer.
  if (threadIdx.x == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(positions + token));
  if (threadIdx.x * 32 < half) asm volatile("prefetch.global.L1 [%0];" ::"l"(inv_freq + threadIdx.x * 32));
  // In this order: the next launch then begins only when all before this one have ended (AttentionArgs::behind_append).
  await_predecessor();
  allow_successor();
  const int64_t row = (token * s.kv_heads + kv_head) * d;
  T* q_row = q + (token * s.heads + head) * d;
  const T* own_row = of_q ? q_row : (of_v ? v : k) + row;
  // The head is on its way while the angles are worked out.
  if (has_head && lane * 8 < d) asm volatile("prefetch.global.L1 [%0];" ::"l"(own_row + lane * 8));
  const int position = positions[token];
  if (!together || !of_v)
    rope_angles(table, static_cast<float>(position), inv_freq, half, s.head.attention_scale, threadIdx.x, 32 * kWarps);
  __syncthreads();
  if (!has_head) return;
  T* rows = reinterpret_cast<T*>(table + table_size(half));
  T* turned = rows + (together ? 0 : warp) * d;
  float* wide = reinterpret_cast<float*>(rows + kWarps * d) + warp * d;
  const T* ready = turned;
  if (!together || warp == 0)  // one warp for all that have the head together
    ready = prepare_head(own_row, turned, of_q ? q_row : turned, wide, table, norm, norms, s.head, of_v);
  if (of_q) return;
  const int64_t at = s.place.row(token, kv_head, s.kv_heads, position);
  if (at < 0) return;  // the same for all that have the head together
  if (together) ready = of_v && !(s.head.run > 0 && s.head.turn_values) ? own_row : turned;  // for all of its warps
  C* cache = of_v ? v_cache : k_cache;
  float* scales = of_v ? v_scales : k_scales;
  if constexpr (kGroupScales<C>) {
    __shared__ nibble_rows::FitRoom<kWarps, kFitWarps> room;
    __syncthreads();
    store_int4_row<kFitWarps>(ready, cache, scales, at, d, room, kWarps, warp);
  } else {
    store_row(ready, cache, scales, at, kv_head, d);
  }
}

void append(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
            const HeadNorms& norms, const RopeTable& rope, const KvCache& cache, const CachePlace& place) {
  const int64_t tokens = q.rows(), kv_heads = cache.k.shape[1], d = head_dim_of(cache), half = rope.inv_freq.numel();
  FEWBIT_ASSERT(consistent(cache, k.dtype) && q.dtype == k.dtype && v.dtype == k.dtype && k.shape == v.shape);
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == tokens && k.rows() == tokens);
  FEWBIT_ASSERT(rope.inv_freq.dtype == DType::f32 && 2 * half <= d && k.cols() == kv_heads * d && q.cols() % d == 0);
  FEWBIT_ASSERT(rope.hadamard || !rope.turn_values);
  if (tokens == 0) return;
  const RopeSizes sizes{.heads = static_cast<int>(q.cols() / d),
                        .kv_heads = static_cast<int>(kv_heads),
                        .place = place,
                        .head = head_sizes(rope, d)};
  const size_t shared = static_cast<size_t>(table_size(sizes.head.half)) * sizeof(float) +
                        static_cast<size_t>(kWarps * d) * (bytes_of(k.dtype) + (rope.hadamard ? sizeof(float) : 0));
  dispatch_cache(k.dtype, cache.k.dtype, [&](auto type, auto code) {
    using T = typename decltype(type)::type;
    using C = typename decltype(code)::type;
    const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(blocks_of<C>(sizes.heads, sizes.kv_heads)));
    launch_overlapping(ex.cuda_state(), rope_append_kernel<T, C>, grid, dim3(32 * kWarps), shared, q.as<T>(), k.as<T>(),
                       v.as<T>(), positions.as<int32_t>(), rope.inv_freq.as<float>(), cache.k.as<C>(), cache.v.as<C>(),
                       static_cast<float*>(cache.k_scales.data), static_cast<float*>(cache.v_scales.data),
                       norms_of<T>(norms, q, k, d), sizes);
  });
}

}  // namespace

void rope_append(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                 const HeadNorms& norms, const RopeTable& rope, const KvCache& cache) {
  const int64_t batch = cache.k.shape[0];
  FEWBIT_ASSERT(q.rows() % batch == 0);
  append(ex, q, k, v, positions, norms, rope, cache,
         {.len = static_cast<int>(std::max<int64_t>(q.rows() / batch, 1)), .capacity = cache.k.shape[2]});
}

void rope_append_paged(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows& rows,
                       const HeadNorms& norms, const RopeTable& rope, const KvCache& cache) {
  append(ex, q, k, v, rows.positions, norms, rope, cache, place_of(rows, cache, q.rows()));
}

}  // namespace fewbit::cuda

#pragma once
// The new token's heads in the kernel of decode_layers_kernel.cuh: queries, keys and values from the product q k v,
// normed, turned and rounded where the ops round, and the append to the cache.
#include "kernels/attention/kv_quantize.cuh"
#include "kernels/decode/decode_layers_product.cuh"
#include "kernels/model/hadamard.cuh"
#include "kernels/model/rope.cuh"

namespace fewbit::cuda::decode_step {

// Shared memory with attention apart: a head for each warp.
template <int D>
struct AppendShared {
  float wide[kConsumerWarps][D];
  __nv_bfloat16 rows[kConsumerWarps][D];
};

// One head of the new token, the work of a warp. which: 0 a query, 1 a key, 2 a value. row [D]: the result; wide [D]:
// working space. kWords: as words under `stamp`.
template <int D, bool kWords = false>
__device__ __forceinline__ void make_head_row(const Job& job, const LayerRecord& layer, int which, int head,
                                              const float* angles, __nv_bfloat16* row, float* wide,
                                              uint32_t stamp = 0) {
  const int lane = threadIdx.x % 32, first = ((which == 0 ? 0 : job.heads + (which - 1) * job.kv_heads) + head) * D;
  const auto* from = reinterpret_cast<const unsigned short*>(job.qkv) + first;
  // Of words a lane has neighbours, so that one trip brings all of them. What the norm multiplies with is asked for
  // before, so that it is there by then.
  constexpr int kEach = D / 32;
  const auto at = [&](int i) { return kWords ? kEach * lane + i : lane + 32 * i; };
  const __nv_bfloat16* norm = which < 2 ? layer.head_norm[which] : nullptr;
  float v[kEach], of_norm[kEach] = {};
  if (norm)
#pragma unroll
    for (int i = 0; i < kEach; ++i) of_norm[i] = to_f32(norm[at(i)]);
  if constexpr (kWords) {
    await_values(job.qkv_words + first + kEach * lane, stamp, true, v);
  } else {  // not as bf16: that overload of __ldcg is not volatile and was moved out of the loop over layers
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = __uint_as_float(static_cast<uint32_t>(__ldcg(from + at(i))) << 16);
  }
  if (norm) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) squares = fmaf(v[i], v[i], squares);
    const float mean = warp_sum(squares) / D + job.head_eps, inv = kWords ? rsqrtf(mean) : 1.f / sqrtf(mean);
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = rounded(v[i] * inv * (of_norm[i] + job.weight_offset));
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) row[at(i)] = __float2bfloat16_rn(v[i]);
  __syncwarp();
  if (which == 2) return;
  turn_head(row, row, angles, job.rope_pairs, lane);
  __syncwarp();
  if (job.hadamard_run == 0) return;
  hadamard_head(row, row, wide, D, job.hadamard_run, job.hadamard_scale, lane);
  __syncwarp();
}

// With attention apart: leaves the new token's queries in job.qkv as attention reads them, its keys and values in the
// cache. A head at a time for each warp, neighbouring heads in different blocks.
template <int D, class C>
__device__ __forceinline__ void append_new_token(const Job& job, const LayerRecord& layer, int position,
                                                 const float* angles, uint8_t* shared) {
  auto& space = *reinterpret_cast<AppendShared<D>*>(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x;
  __nv_bfloat16* row = space.rows[warp];
#pragma unroll 1
  for (int of_all = blockIdx.x + warp * blocks; of_all < job.heads + 2 * job.kv_heads;
       of_all += kConsumerWarps * blocks) {
    const int which = (of_all >= job.heads) + (of_all >= job.heads + job.kv_heads);
    const int head = of_all - (which == 0 ? 0 : job.heads + (which - 1) * job.kv_heads);
    make_head_row<D>(job, layer, which, head, angles, row, space.wide[warp]);
    if (which == 0)
      for (int i = lane; i < D; i += 32) job.qkv[head * D + i] = row[i];
    else
      store_row(row, static_cast<C*>(which == 2 ? layer.v : layer.k), which == 2 ? layer.v_scales : layer.k_scales,
                head * job.capacity + position, head, D);
    __syncwarp();
  }
}

}  // namespace fewbit::cuda::decode_step

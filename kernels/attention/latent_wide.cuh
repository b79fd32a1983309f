#pragma once
// Attention over a cache of latents by wgmma (compute capability 9.0a): latents of 512 values and a turned part of 64,
// bf16, all keys up to the query's position. A block has 64 heads of one token and a split of its keys, so that a
// latent is read once for 64 heads; its two consumer warpgroups have 32 of a tile's 64 keys each for the scores, and
// half of the latent each for the sums, a producer thread copies tiles by boxes. Bound by the products: 2 (2 rank +
// rope) of them for each head and key.
#include <algorithm>

#include "kernels/device/exponential.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/tensor_map.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/device/wgmma_shared.cuh"

namespace fewbit::cuda::latent_wide {

inline constexpr int kRank = 512, kRope = 64, kHeads = 64, kKeys = 64, kStages = 2, kConsumers = 2;
inline constexpr int kThreads = 128 * (kConsumers + 1);
inline constexpr int kLatentPlanes = kRank / 64, kPlanes = kLatentPlanes + 1;  // a plane: 64 values of 64 rows
inline constexpr uint32_t kPlane = 64 * 128, kTileBytes = kPlanes * kPlane;
// The queries, tiles of keys, the weights of a tile.
inline constexpr size_t kShared = 1024 + (1 + kStages) * kTileBytes + kPlane;
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

struct Maps {
  CUtensorMap q, q_rope, latent, k_rope;  // [tokens, heads, values]; [sequences, capacity, values]
};
struct Job {
  const int32_t* positions;  // [tokens]
  int64_t len, before;       // tokens of a sequence; rows in front of these
  int heads;
  float scale;
  float *mean, *top, *weight;  // [tokens, heads, splits, rank], [tokens, heads, splits] twice
};

#ifdef FEWBIT_SM90A

struct Barriers {
  uint64_t q_full, full[kStages], empty[kStages];
  __device__ __forceinline__ void init() {
    barrier_init(&q_full, 1);
    for (int i = 0; i < kStages; ++i) barrier_init(full + i, 1), barrier_init(empty + i, kConsumers);
    barrier_publish();
  }
};

// What a block works on.
struct Block {
  uint8_t *q_sh, *tiles, *weights;
  int token, head0, seq, keys, first, last;  // tiles [first, last)

  __device__ __forceinline__ Block(const Job& job, uint8_t* shared) {
    q_sh = shared + (1024 - shared_address(shared) % 1024) % 1024;
    tiles = q_sh + kTileBytes, weights = tiles + kStages * kTileBytes;
    token = blockIdx.z, head0 = blockIdx.y * kHeads;
    seq = static_cast<int>((job.before + token) / job.len);
    keys = job.positions[token] + 1;
    const int all = (keys + kKeys - 1) / kKeys, each = (all + gridDim.x - 1) / gridDim.x;
    first = min(static_cast<int>(blockIdx.x) * each, all), last = min(first + each, all);
  }
  __device__ __forceinline__ int stage_of(int tile) const { return (tile - first) % kStages; }
  __device__ __forceinline__ uint32_t parity_of(int tile) const { return (tile - first) / kStages % 2; }
  __device__ __forceinline__ uint8_t* tile_at(int tile) const { return tiles + stage_of(tile) * kTileBytes; }
};

__device__ __forceinline__ void produce(const Block& block, const Maps& maps, Barriers& barriers) {
  const auto load = [&](uint8_t* to, const CUtensorMap* wide, const CUtensorMap* turned, int row, int plane,
                        uint64_t* full) {
    barrier_expect(full, kTileBytes);
    for (int p = 0; p < kLatentPlanes; ++p) bulk_copy_box(to + p * kPlane, wide, 64 * p, row, plane, full);
    bulk_copy_box(to + kLatentPlanes * kPlane, turned, 0, row, plane, full);
  };
  load(block.q_sh, &maps.q, &maps.q_rope, block.head0, block.token, &barriers.q_full);
  for (int tile = block.first; tile < block.last; ++tile) {
    const int stage = block.stage_of(tile);
    barrier_await(shared_address(barriers.empty + stage), block.parity_of(tile) ^ 1);
    load(block.tile_at(tile), &maps.latent, &maps.k_rope, tile * kKeys, block.seq, barriers.full + stage);
  }
}

__device__ __forceinline__ void consumers_sync() { named_barrier_sync(1, 128 * kConsumers); }

// A consumer warpgroup. A lane has parts of two rows (heads) of the scores and of the sums.
struct Consumer {
  const Job& job;
  const Block& block;
  Barriers& barriers;
  float (*exchange)[kConsumers][kHeads];  // [2]: what the warpgroups tell each other of rows
  int group, lane, row;                   // row: the lane's first; the other is 8 further
  float low[64] = {}, high[64] = {};      // sums over the group's half of the latent, by quarters of it
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  __device__ __forceinline__ Consumer(const Job& j, const Block& b, Barriers& of_block,
                                      float (*rows)[kConsumers][kHeads])
      : job(j), block(b), barriers(of_block), exchange(rows) {
    group = threadIdx.x / 128, lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
  }

  // Past the last key the cache may hold anything, and zero times a NaN is a NaN.
  __device__ __forceinline__ void clear_past_end(int tile) const {
    const int there = block.keys - tile * kKeys;
    for (int i = threadIdx.x; i < kLatentPlanes * kKeys * 8; i += 128 * kConsumers)
      if (i / 8 % kKeys >= there) reinterpret_cast<uint4*>(block.tile_at(tile))[i] = {0, 0, 0, 0};
    publish_shared();
    consumers_sync();
  }
  // s = the scores of the group's keys, raw.
  __device__ __forceinline__ void scores(float (&s)[16], int tile) const {
    const uint64_t q = wgmma_matrix(block.q_sh), k = wgmma_matrix(block.tile_at(tile)) + group * (kKeys / 2 * 128 >> 4);
#pragma unroll
    for (int i = 0; i < 4 * kPlanes; ++i) {
      const int at = i / 4 * (kPlane >> 4) + i % 4 * 2;
      wgmma_shared(s, q + at, k + at, i > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void add_values(int tile) {
    const uint64_t p = wgmma_matrix(block.weights);
    const uint8_t* half = block.tile_at(tile) + group * (kLatentPlanes / 2) * kPlane;
    const uint64_t first = wgmma_matrix_transposed(half, kPlane),
                   second = wgmma_matrix_transposed(half + 2 * kPlane, kPlane);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      wgmma_shared_transposed(low, p + 2 * i, first + 128 * i);
      wgmma_shared_transposed(high, p + 2 * i, second + 128 * i);
    }
    wgmma_commit();
  }
  // The largest of the group's scores of each row, then of both groups.
  __device__ __forceinline__ void find_tops(const float (&s)[16], int tile, float (&most)[2]) const {
    float(&own)[kConsumers][kHeads] = exchange[tile % 2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = -INFINITY;
#pragma unroll
      for (int n = 0; n < 16; n += 4) m = fmaxf(m, fmaxf(s[n + 2 * r], s[n + 2 * r + 1]));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      if (lane % 4 == 0) own[group][row + 8 * r] = m;
    }
    consumers_sync();
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = fmaxf(own[0][row + 8 * r], own[1][row + 8 * r]);
  }
  // Scores become weights relative to the new maximum; sums from before are to be multiplied by `rescale`.
  __device__ __forceinline__ void weigh(float (&s)[16], const float (&most)[2], float (&rescale)[2]) {
    const float factor = job.scale * kLog2e;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float now = fmaxf(top[r], most[r]), seen = now == -INFINITY ? 0.f : now, reference = seen * factor;
      rescale[r] = exp2_fast((top[r] - seen) * factor);
      top[r] = now;
      float added = 0;
#pragma unroll
      for (int n = 0; n < 16; n += 4)
#pragma unroll
        for (int i = n + 2 * r; i < n + 2 * r + 2; ++i) s[i] = exp2_fast(fmaf(s[i], factor, -reference)), added += s[i];
      sum[r] = fmaf(sum[r], rescale[r], added);
    }
  }
  __device__ __forceinline__ void rescale_sums(const float (&rescale)[2]) {
#pragma unroll
    for (int n = 0; n < 64; ++n) low[n] *= rescale[n / 2 % 2], high[n] *= rescale[n / 2 % 2];
  }
  // The group's weights as an operand in shared memory, once both groups' products no longer read those before.
  __device__ __forceinline__ void put_weights(const float (&s)[16]) const {
    consumers_sync();
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
      const int at = row + 8 * (n / 2 % 2), chunk = group * 4 + n / 4;
      *reinterpret_cast<uint32_t*>(block.weights + at * 128 + (chunk ^ at % 8) * 16 + lane % 4 * 4) =
          pack_bf16(s[n], s[n + 1]);
    }
    publish_shared();
    consumers_sync();
  }
  __device__ __forceinline__ void await_tile(int tile) const {
    barrier_await(shared_address(barriers.full + block.stage_of(tile)), block.parity_of(tile));
    if (block.keys - tile * kKeys < kKeys) clear_past_end(tile);
  }
  __device__ __forceinline__ void mask(float (&s)[16], int tile) const {
    const int there = block.keys - tile * kKeys - group * (kKeys / 2) - lane % 4 * 2;
    if (there >= kKeys) return;
#pragma unroll
    for (int n = 0; n < 16; ++n)
      if (n / 4 * 8 + n % 2 >= there) s[n] = -INFINITY;
  }
  // In a step of the loop the sums over the tile before and the scores of one are under way together: sums first, so
  // that the tile after next is on its way while the scores are made.
  __device__ __forceinline__ void attend() {
    float s[16], most[2], rescale[2];
    barrier_await(shared_address(&barriers.q_full), 0);
    await_tile(block.first);
    wgmma_fence();
    scores(s, block.first);
    wgmma_wait<0>();
    pin(s);
    mask(s, block.first);
    find_tops(s, block.first, most);
    weigh(s, most, rescale);
    put_weights(s);
    for (int tile = block.first + 1; tile < block.last; ++tile) {
      await_tile(tile);
      wgmma_fence();
      add_values(tile - 1);
      scores(s, tile);
      wgmma_wait<1>();
      pin(low), pin(high);
      if (threadIdx.x % 128 == 0) barrier_arrive(barriers.empty + block.stage_of(tile - 1));
      wgmma_wait<0>();
      pin(s);
      mask(s, tile);
      find_tops(s, tile, most);
      weigh(s, most, rescale);
      rescale_sums(rescale);
      put_weights(s);
    }
    wgmma_fence();
    add_values(block.last - 1);
    wgmma_wait<0>();
    pin(low), pin(high);
  }
  __device__ __forceinline__ void store() {
    float(&own)[kConsumers][kHeads] = exchange[block.last % 2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
      if (lane % 4 == 0) own[group][row + 8 * r] = sum[r];
    }
    consumers_sync();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = block.head0 + row + 8 * r;
      if (head >= job.heads) continue;
      const int64_t at = (static_cast<int64_t>(block.token) * job.heads + head) * gridDim.x + blockIdx.x;
      if (group == 0 && lane % 4 == 0)
        job.top[at] = top[r] * job.scale, job.weight[at] = own[0][row + 8 * r] + own[1][row + 8 * r];
      float* to = job.mean + at * kRank + group * (kRank / 2) + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < 64; n += 4) {
        *reinterpret_cast<float2*>(to + 2 * n) = make_float2(low[n + 2 * r], low[n + 2 * r + 1]);
        *reinterpret_cast<float2*>(to + 128 + 2 * n) = make_float2(high[n + 2 * r], high[n + 2 * r + 1]);
      }
    }
  }
};

#endif

// Grid: splits x heads / 64 x tokens.
__global__ void __launch_bounds__(kThreads, 1)
    latent_wide_kernel(const __grid_constant__ Job job, const __grid_constant__ Maps maps) {
#ifdef FEWBIT_SM90A
  extern __shared__ uint8_t shared[];
  __shared__ Barriers barriers;
  __shared__ float exchange[2][kConsumers][kHeads];
  if (threadIdx.x == 0) barriers.init();
  allow_successor();
  await_predecessor();
  const Block block(job, shared);
  __syncthreads();
  if (block.first == block.last) {  // a split behind the last key
    const int head = block.head0 + threadIdx.x;
    if (threadIdx.x >= kHeads || head >= job.heads) return;
    const int64_t at = (static_cast<int64_t>(block.token) * job.heads + head) * gridDim.x + blockIdx.x;
    job.top[at] = -INFINITY, job.weight[at] = 0;
    return;
  }
  if (threadIdx.x / 128 == kConsumers) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x / 32 % 4 > 0 || !elected()) return;
    return produce(block, maps, barriers);
  }
  take_registers<kConsumerRegisters>();
  Consumer consumer(job, block, barriers, exchange);
  consumer.attend();
  consumer.store();
#endif
}

// absorbed[t, h, r] = sum_i q_nope[t, h, i] W[h (nope + value) + i, r]. Grid: rank / 256 x heads x tokens / 8. A warp
// has an eighth of the i, a lane eight r.
inline constexpr int kAbsorbThreads = 256, kAbsorbWarps = kAbsorbThreads / 32, kTogether = 8;  // tokens that share W
__global__ void __launch_bounds__(kAbsorbThreads)
    absorb_kernel(const __nv_bfloat16* __restrict__ q_nope, const __nv_bfloat16* __restrict__ w, int heads, int nope,
                  int value, int64_t tokens, __nv_bfloat16* __restrict__ absorbed) {
  extern __shared__ float query[];  // [kTogether, nope]
  __shared__ float parts[kAbsorbWarps][256];
  allow_successor();
  await_predecessor();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
  const int64_t t0 = static_cast<int64_t>(blockIdx.z) * kTogether;
  const int some = static_cast<int>(min(int64_t{kTogether}, tokens - t0));
  for (int i = threadIdx.x; i < some * nope; i += kAbsorbThreads)
    query[i] = to_f32(q_nope[((t0 + i / nope) * heads + head) * nope + i % nope]);
  __syncthreads();
  const __nv_bfloat16* rows = w + static_cast<int64_t>(head) * (nope + value) * kRank + blockIdx.x * 256 + lane * 8;
  float sum[kTogether][8] = {};
#pragma unroll 8
  for (int i = warp; i < nope; i += kAbsorbWarps) {
    const auto x = load_vec<__nv_bfloat16, 8>(rows + static_cast<int64_t>(i) * kRank);
#pragma unroll
    for (int t = 0; t < kTogether; ++t)
      if (t < some)
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[t][j] = fmaf(query[t * nope + i], to_f32(x.v[j]), sum[t][j]);
  }
#pragma unroll
  for (int t = 0; t < kTogether; ++t) {
    if (t >= some) break;
    __syncthreads();  // the token before has been added up
#pragma unroll
    for (int j = 0; j < 8; ++j) parts[warp][lane * 8 + j] = sum[t][j];
    __syncthreads();
    float all = 0;
#pragma unroll
    for (int i = 0; i < kAbsorbWarps; ++i) all += parts[i][threadIdx.x];
    absorbed[((t0 + t) * heads + head) * kRank + blockIdx.x * 256 + threadIdx.x] = __float2bfloat16_rn(all);
  }
}

// Merges the splits of a head and multiplies by its value weights. Grid: heads x tokens; a thread for each value of the
// latent.
inline constexpr int kMostSplits = 256;
__global__ void __launch_bounds__(kRank)
    values_kernel(const __grid_constant__ Job job, int splits, const __nv_bfloat16* __restrict__ w, int nope, int value,
                  __nv_bfloat16* __restrict__ out) {
  __shared__ float share[kMostSplits], latent[kRank], reduce[32];
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t th = static_cast<int64_t>(blockIdx.y) * job.heads + head, at = th * splits;
  allow_successor();
  await_predecessor();
  float top = -INFINITY, all = 0;
  for (int s = threadIdx.x; s < splits; s += kRank) top = fmaxf(top, job.top[at + s]);
  top = block_max(top, reduce);
  for (int s = threadIdx.x; s < splits; s += kRank) {
    share[s] = expf(job.top[at + s] - top);
    all = fmaf(share[s], job.weight[at + s], all);
  }
  __syncthreads();
  all = block_sum(all, reduce);
  float mean = 0;
#pragma unroll 8
  for (int s = 0; s < splits; ++s)
    if (share[s] > 0) mean = fmaf(share[s], job.mean[(at + s) * kRank + threadIdx.x], mean);
  latent[threadIdx.x] = mean / all;
  __syncthreads();
  float own[16];
#pragma unroll
  for (int j = 0; j < 16; ++j) own[j] = latent[j / 8 * 256 + lane * 8 + j % 8];
  const __nv_bfloat16* rows = w + (static_cast<int64_t>(head) * (nope + value) + nope) * kRank + lane * 8;
#pragma unroll 4
  for (int c = warp; c < value; c += kRank / 32) {
    const auto low = load_vec<__nv_bfloat16, 8>(rows + static_cast<int64_t>(c) * kRank),
               high = load_vec<__nv_bfloat16, 8>(rows + static_cast<int64_t>(c) * kRank + 256);
    float dot = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) dot = fmaf(own[j], to_f32(low.v[j]), fmaf(own[8 + j], to_f32(high.v[j]), dot));
    dot = warp_sum(dot);
    if (lane == 0) out[th * value + c] = __float2bfloat16_rn(dot);
  }
}

inline bool takes(CudaState& s, int64_t rank, int64_t rope) {
  return s.sm90() && rank == kRank && rope == kRope && tensor_map_encoder() != nullptr && s.max_shared() >= kShared;
}

// A block on every multiprocessor, each with a tile of a full cache at least.
inline int splits_for(const CudaState& s, int heads, int64_t tokens, int64_t keys) {
  const int64_t blocks = tokens * ((heads + kHeads - 1) / kHeads);
  return static_cast<int>(std::clamp<int64_t>(s.sms() / blocks, 1, (keys + kKeys - 1) / kKeys));
}

// q, q_rope [tokens, heads, .]; latent, k_rope [seqs, capacity, .].
inline void launch(CudaState& s, const Job& job, const __nv_bfloat16* q, const __nv_bfloat16* q_rope,
                   const __nv_bfloat16* latent, const __nv_bfloat16* k_rope, int64_t tokens, int64_t seqs,
                   int64_t capacity, int splits) {
  const auto map = [](const __nv_bfloat16* data, int64_t values, int64_t rows, int64_t planes) {
    const auto n = [](int64_t v) { return static_cast<cuuint64_t>(v); };
    return map_of<3>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, {n(values), n(rows), n(planes)},
                     {n(2 * values), n(2 * values * rows)}, {64, 64, 1}, CU_TENSOR_MAP_SWIZZLE_128B);
  };
  const Maps maps{.q = map(q, kRank, job.heads, tokens),
                  .q_rope = map(q_rope, kRope, job.heads, tokens),
                  .latent = map(latent, kRank, capacity, seqs),
                  .k_rope = map(k_rope, kRope, capacity, seqs)};
  FEWBIT_CUDA_CALL(
      cudaFuncSetAttribute(latent_wide_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)));
  const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>((job.heads + kHeads - 1) / kHeads),
                  static_cast<unsigned>(tokens));
  launch_overlapping(s, latent_wide_kernel, grid, dim3(kThreads), kShared, job, maps);
}

}  // namespace fewbit::cuda::latent_wide

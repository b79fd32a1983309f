#pragma once
// Attention over a cache of latents by wgmma (compute capability 9.0a): latents of 512 values and a turned part of 64,
// bf16, all keys up to the query's position. A block has 64 heads of one token and a split of its keys. Its two
// consumer warpgroups take the tiles of 64 keys in turn for the scores, and each has half of the latent for the sums,
// over all tiles: while one makes weights of its scores, the other's products are under way (as FlashMLA does it,
// DeepSeek 2025). A producer thread copies tiles by planes of 64 values; where heads allow it, two blocks with the
// heads of one token copy half of the planes each, to both. Bound by the products: 2 (2 rank + rope) of them for each
// head and key.
#include <algorithm>

#include "kernels/device/exponential.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/tensor_map.cuh"
#include "kernels/device/wgmma_shared.cuh"

namespace fewbit::cuda::latent_wide {

inline constexpr int kRank = 512, kRope = 64, kHeads = 64, kKeys = 64, kStages = 2, kConsumers = 2;
inline constexpr int kThreads = 128 * (kConsumers + 1);
inline constexpr int kHalf = kRank / 128;  // planes of half a latent; a plane: 64 values of 64 rows
inline constexpr int kTurned = 2 * kHalf, kPlanes = kTurned + 1;
inline constexpr uint32_t kPlane = 64 * 128, kTileBytes = kPlanes * kPlane;
inline constexpr size_t kShared = 1024 + (1 + kStages) * kTileBytes;  // the queries, tiles of keys
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240, kMostSplits = 256;
// Weights are powers of two relative to a reference of their row, which follows the row's largest score only where that
// is 2^kSlack times beyond it: sums are seldom to be rescaled.
inline constexpr float kSlack = 8;

struct Maps {
  CUtensorMap q, q_rope, latent, k_rope;  // [tokens, heads, values]; [sequences, capacity, values]
};
struct Job {
  const int32_t* positions;  // [tokens]
  int64_t len, before;       // tokens of a sequence; rows in front of these
  int heads, splits;
  float scale;
  // [tokens, heads, splits, 2, rank / 16], the others [tokens, heads, splits]. mean: sums as bf16, of each half of a
  // latent vector i has the values 32 (i / 4) + 8 j + 2 (i % 4) and their neighbours, j from 0 to 3: what a lane has of
  // them. weight: the sums of weights of both warpgroups.
  uint4* mean;
  float* top;
  float2* weight;
  const __nv_bfloat16 *latent, *k_rope;  // [sequences, capacity, .]
  int64_t capacity;
  const __nv_bfloat16* w;  // [heads * (nope + value), rank]
  int nope, value;
};

// The tiles [first, last) of a split.
struct Tiles {
  int first, last;
  __device__ __forceinline__ Tiles(int keys, int split, int splits) {
    const int all = (keys + kKeys - 1) / kKeys, each = (all + splits - 1) / splits;
    first = min(split * each, all), last = min(first + each, all);
  }
};

#ifdef FEWBIT_SM90A

// Asks for the tile that begins at a row of a sequence.
__device__ __forceinline__ void prefetch_tile(const Job& job, int64_t seq, int64_t row) {
  const auto rows = static_cast<uint32_t>(min(int64_t{kKeys}, job.capacity - row));
  bulk_prefetch(job.latent + (seq * job.capacity + row) * kRank, rows * kRank * 2);
  bulk_prefetch(job.k_rope + (seq * job.capacity + row) * kRope, rows * kRope * 2);
}

struct Barriers {
  // empty: of a tile's halves, the second to be free with the turned keys; handed: a group's weights are there.
  uint64_t q_full, full[kStages][kPlanes], empty[kStages][2], handed[kConsumers];
  template <int kBlocks>
  __device__ __forceinline__ void init() {
    barrier_init(&q_full, 1);
    for (int i = 0; i < kConsumers; ++i) barrier_init(handed + i, 4 * kArrivingLanes);
    for (int i = 0; i < kStages; ++i) {
      for (int p = 0; p < kPlanes; ++p) barrier_init(&full[i][p], 1);
      barrier_init(&empty[i][0], kBlocks), barrier_init(&empty[i][1], kBlocks);
    }
    barrier_publish();
  }
};

// What a block works on; its tiles are counted from its first.
struct Block {
  uint8_t *q_sh, *stages;
  int token, head0, seq, keys, first, tiles;  // keys: from the first tile on

  __device__ __forceinline__ Block(const Job& job, uint8_t* shared) {
    q_sh = shared + (1024 - shared_address(shared) % 1024) % 1024;
    stages = q_sh + kTileBytes;
    token = blockIdx.z, head0 = blockIdx.x * kHeads;
    seq = static_cast<int>((job.before + token) / job.len);
    keys = __ldcg(job.positions + token) + 1;
    const Tiles own(keys, blockIdx.y, job.splits);
    first = own.first, tiles = own.last - own.first, keys -= first * kKeys;
  }
  __device__ __forceinline__ uint8_t* stage(int tile) const { return stages + tile % kStages * kTileBytes; }
};
__device__ __forceinline__ uint32_t parity_of(int tile) { return tile / kStages % 2; }

template <int kBlocks>
__device__ __forceinline__ void produce(const Block& block, const Job& job, const Maps& maps, Barriers& barriers) {
  const auto load_plane = [&](int tile, int plane) {
    uint64_t* full = &barriers.full[tile % kStages][plane];
    const CUtensorMap* map = plane == kTurned ? &maps.k_rope : &maps.latent;
    const int column = plane == kTurned ? 0 : 64 * plane, row = (block.first + tile) * kKeys;
    uint8_t* to = block.stage(tile) + plane * kPlane;
    barrier_expect(full, kPlane);
    if constexpr (kBlocks == 1)
      bulk_copy_box(to, map, column, row, block.seq, full);
    else if (plane % kBlocks == blockIdx.x % kBlocks)
      bulk_copy_box_to_all<kBlocks>(shared_address(to), map, column, row, block.seq, shared_address(full));
  };
  for (int tile = 0; tile < block.tiles; ++tile) {
    const int stage = tile % kStages;
    for (int part = 0; part < 2; ++part) {
      const int half = part ^ stage;  // the half is free first that belongs to the warpgroup of the tile's scores
      barrier_await(shared_address(&barriers.empty[stage][half]), parity_of(tile) ^ 1);
      for (int p = 0; p < kHalf; ++p) load_plane(tile, half * kHalf + p);
    }
    load_plane(tile, kTurned);
    // Tiles that are to be copied later, by the two blocks in turn. More of them would drive each other out of the L2.
    if (const int next = tile + kStages;
        kBlocks > 1 && tile > 0 && next < block.tiles && next % kBlocks == blockIdx.x % kBlocks)
      prefetch_tile(job, block.seq, (block.first + next) * kKeys);
    if (tile == 0) {
      await_predecessor();  // which makes the queries; keys were there before it
      barrier_expect(&barriers.q_full, kTileBytes);
      for (int p = 0; p < kTurned; ++p)
        bulk_copy_box(block.q_sh + p * kPlane, &maps.q, 64 * p, block.head0, block.token, &barriers.q_full);
      bulk_copy_box(block.q_sh + kTurned * kPlane, &maps.q_rope, 0, block.head0, block.token, &barriers.q_full);
    }
  }
}

// A consumer warpgroup. A lane has parts of two rows (heads) of the scores and of the sums. Its own tiles are those
// whose scores it makes.
template <int kBlocks>
struct Consumer {
  const Job& job;
  const Block& block;
  Barriers& barriers;
  float (*references)[kHeads];  // [kConsumers]: as each group had them at its last tile
  int group, lane, row;         // row: the lane's first; the other is 8 further
  float o[128] = {};            // sums over the group's half of the latent
  uint32_t p[4][4];             // the weights of the own tile, by 16 keys
  float reference[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // sum: over own tiles and the lane's keys

  __device__ __forceinline__ Consumer(const Job& j, const Block& b, Barriers& of_block, float (*rows)[kHeads])
      : job(j), block(b), barriers(of_block), references(rows) {
    group = threadIdx.x / 128, lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
  }

  __device__ __forceinline__ void await_plane(int tile, int plane) const {
    barrier_await(shared_address(&barriers.full[tile % kStages][plane]), parity_of(tile));
  }
  __device__ __forceinline__ void group_sync() const { named_barrier_sync(1 + group, 128); }
  // Past the last key the cache may hold anything, and zero times a NaN is a NaN.
  __device__ __forceinline__ void clear_past_end(int tile) const {
    const int there = block.keys - tile * kKeys;
    for (int i = 0; i < kPlanes; ++i) await_plane(tile, i);
    for (int i = threadIdx.x % 128; i < kTurned * kKeys * 8; i += 128)
      if (i / 8 % kKeys >= there) reinterpret_cast<uint4*>(block.stage(tile))[i] = {0, 0, 0, 0};
    publish_shared();
    group_sync();
  }
  // Begins the scores of an own tile, raw, as its planes arrive.
  __device__ __forceinline__ void begin_scores(float (&s)[32], int tile) const {
    if (block.keys - tile * kKeys < kKeys) clear_past_end(tile);
    const uint64_t q = wgmma_matrix(block.q_sh), k = wgmma_matrix(block.stage(tile));
#pragma unroll
    for (int i = 0; i < kPlanes; ++i) {
      const int plane = i == kTurned ? i : i ^ group * kHalf, at = plane * static_cast<int>(kPlane >> 4);
      await_plane(tile, plane);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 8; j += 2) wgmma_shared(s, q + at + j, k + at + j, i + j > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void mask(float (&s)[32], int tile) const {
    const int there = block.keys - tile * kKeys - lane % 4 * 2;
    if (there >= kKeys) return;
#pragma unroll
    for (int n = 0; n < 32; ++n)
      if (n / 4 * 8 + n % 2 >= there) s[n] = -INFINITY;
  }
  // The largest of each row.
  __device__ __forceinline__ void find_most(const float (&s)[32], float (&most)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = -INFINITY;
#pragma unroll
      for (int n = 2 * r; n < 32; n += 4) most[r] = fmaxf(most[r], fmaxf(s[n], s[n + 1]));
      most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
    }
  }
  // Scores become weights, and the reference moves on if it must; sums from before are to be multiplied by `rescale`.
  __device__ __forceinline__ void weigh(float (&s)[32], const float (&most)[2], float (&rescale)[2]) {
    const float factor = job.scale * kLog2e;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      move_to((most[r] - reference[r]) * factor > kSlack ? most[r] : reference[r], r, rescale[r]);
      const float seen = reference[r] == -INFINITY ? 0.f : reference[r] * factor;
      float added = 0;
#pragma unroll
      for (int n = 2 * r; n < 32; n += 4)
#pragma unroll
        for (int i = n; i < n + 2; ++i) s[i] = exp2_fast(fmaf(s[i], factor, -seen)), added += s[i];
      sum[r] += added;
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) p[i / 4][i % 4] = pack_bf16(s[2 * i], s[2 * i + 1]);
  }
  __device__ __forceinline__ void move_to(float next, int r, float& rescale) {
    rescale = reference[r] == next ? 1.f : exp2_fast((reference[r] - next) * job.scale * kLog2e);
    reference[r] = next, sum[r] *= rescale;
  }
  __device__ __forceinline__ void rescale_sums(const float (&rescale)[2]) {
    if (!__any_sync(0xffffffffu, rescale[0] != 1.f || rescale[1] != 1.f)) return;
#pragma unroll
    for (int n = 0; n < 128; ++n) o[n] *= rescale[n / 2 % 2];
  }
  // The weights of an own tile for the other group, in the place of its turned keys, which nothing reads any more.
  __device__ __forceinline__ void hand_over(int tile) const {
    group_sync();  // the scores of all warps are made
    uint8_t* to = block.stage(tile) + kTurned * kPlane;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int at = row + 8 * (i % 2);
      *reinterpret_cast<uint32_t*>(to + at * 128 + ((i / 2) ^ at % 8) * 16 + lane % 4 * 4) = p[i / 4][i % 4];
    }
    if (lane % 4 == 0) references[group][row] = reference[0], references[group][row + 8] = reference[1];
    publish_shared();
    __syncwarp();
    if (lane < kArrivingLanes) barrier_arrive(barriers.handed + group);
  }
  __device__ __forceinline__ uint64_t values(int tile) const {
    return wgmma_matrix_transposed(block.stage(tile) + group * kHalf * kPlane, kPlane);
  }
  __device__ __forceinline__ void begin_own_values(int tile) {
    const uint64_t first = values(tile);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) wgmma_transposed(o, p[i], first + 128 * i);
    wgmma_commit();
  }
  // Waits for the weights of a tile of the other group, and for its references.
  __device__ __forceinline__ void meet(int tile, float (&rescale)[2]) {
    barrier_await(shared_address(barriers.handed + (group ^ 1)), parity_of(tile));
#pragma unroll
    for (int r = 0; r < 2; ++r) move_to(references[group ^ 1][row + 8 * r], r, rescale[r]);
  }
  __device__ __forceinline__ void begin_other_values(int tile) {
    const uint64_t first = values(tile), weights = wgmma_matrix(block.stage(tile) + kTurned * kPlane);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) wgmma_shared_transposed(o, weights + 2 * i, first + 128 * i);
    wgmma_commit();
  }
  // The group needs its half of a tile no more.
  __device__ __forceinline__ void release(int tile) const {
    if (tile + kStages >= block.tiles || threadIdx.x % 128 > 0) return;
    const uint32_t empty = shared_address(&barriers.empty[tile % kStages][group]);
    for (int i = 0; i < kBlocks; ++i) barrier_arrive_in_cluster(address_in_cluster(empty, i));
  }
  // Sums over an own tile whose scores have been made, while those over the one before are under way. That one's place
  // is given back as soon as they are done: a tile on its way is what this kernel waits for most.
  __device__ __forceinline__ void finish(float (&s)[32], int tile) {
    float most[2], rescale[2];
    mask(s, tile);
    find_most(s, most);
    wgmma_wait<0>();
    pin(o);
    if (tile > 0) release(tile - 1);
    weigh(s, most, rescale);
    hand_over(tile);
    rescale_sums(rescale);
    begin_own_values(tile);
    wgmma_wait<0>();
    pin(o);
    release(tile);
  }
  __device__ __forceinline__ void attend() {
    float s[32], rescale[2];
    barrier_await(shared_address(&barriers.q_full), 0);
    for (int tile = group; tile < block.tiles; tile += 2) {
      begin_scores(s, tile);
      wgmma_wait<0>();
      pin(s);
      if (tile > 0) {
        meet(tile - 1, rescale);
        rescale_sums(rescale);
        begin_other_values(tile - 1);
      }
      finish(s, tile);
    }
    if ((block.tiles - 1) % 2 == group) return;
    meet(block.tiles - 1, rescale);
    rescale_sums(rescale);
    begin_other_values(block.tiles - 1);
    wgmma_wait<0>();
    pin(o);
  }
  // Both groups have moved to the same references.
  __device__ __forceinline__ void store() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
      const int head = block.head0 + row + 8 * r;
      if (head >= job.heads) continue;
      const int64_t at = (static_cast<int64_t>(block.token) * job.heads + head) * job.splits + blockIdx.y;
      if (lane % 4 == 0) (group == 0 ? job.weight[at].x : job.weight[at].y) = sum[r];
      if (lane % 4 == 0 && group == 0) job.top[at] = reference[r] * job.scale;
      uint4* to = job.mean + (at * 2 + group) * (kRank / 16) + lane % 4;
#pragma unroll
      for (int n = 2 * r; n < 128; n += 16)
        to[n / 16 * 4] = {pack_bf16(o[n], o[n + 1]), pack_bf16(o[n + 4], o[n + 5]), pack_bf16(o[n + 8], o[n + 9]),
                          pack_bf16(o[n + 12], o[n + 13])};
    }
  }
};

#endif

// Grid: heads / 64 x splits x tokens, in clusters of kBlocks along the heads.
template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    latent_wide_kernel(const __grid_constant__ Job job, const __grid_constant__ Maps maps) {
#ifdef FEWBIT_SM90A
  extern __shared__ uint8_t shared[];
  __shared__ Barriers barriers;
  __shared__ float references[kConsumers][kHeads];
  if (threadIdx.x == 0) barriers.init<kBlocks>();
  allow_successor();
  const Block block(job, shared);
  if (block.tiles == 0) {  // a split behind the last key
    await_predecessor();
    const int head = block.head0 + threadIdx.x;
    if (threadIdx.x >= kHeads || head >= job.heads) return;
    const int64_t at = (static_cast<int64_t>(block.token) * job.heads + head) * job.splits + blockIdx.y;
    job.top[at] = -INFINITY, job.weight[at] = {0, 0};
    return;
  }
  kBlocks == 1 ? __syncthreads() : cluster_sync();
  if (threadIdx.x / 128 == kConsumers) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x / 32 % 4 > 0 || !elected()) return;
    return produce<kBlocks>(block, job, maps, barriers);
  }
  take_registers<kConsumerRegisters>();
  await_predecessor();
  Consumer<kBlocks> consumer(job, block, barriers, references);
  consumer.attend();
  consumer.store();
#endif
}

inline bool takes(CudaState& s, int64_t nope, int64_t rope, int64_t rank) {
  return s.sm90() && nope % 2 == 0 && rope == kRope && rank == kRank && tensor_map_encoder() != nullptr &&
         s.max_shared() >= kShared;
}

// A block on every multiprocessor, each with a tile of a full cache at least.
inline int splits_for(const CudaState& s, int heads, int64_t tokens, int64_t keys) {
  const int64_t blocks = tokens * ((heads + kHeads - 1) / kHeads);
  return static_cast<int>(
      std::clamp<int64_t>(s.sms() / blocks, 1, std::min<int64_t>(kMostSplits, (keys + kKeys - 1) / kKeys)));
}

// Right behind a kernel that lets it begin after its own wait (launch.cuh). q, q_rope [tokens, heads, .].
inline void launch(CudaState& s, const Job& job, const __nv_bfloat16* q, const __nv_bfloat16* q_rope, int64_t tokens,
                   int64_t seqs) {
  const auto map = [](const __nv_bfloat16* data, int64_t values, int64_t rows, int64_t planes) {
    const auto n = [](int64_t v) { return static_cast<cuuint64_t>(v); };
    return map_of<3>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, {n(values), n(rows), n(planes)},
                     {n(2 * values), n(2 * values * rows)}, {64, 64, 1}, CU_TENSOR_MAP_SWIZZLE_128B);
  };
  const Maps maps{.q = map(q, kRank, job.heads, tokens),
                  .q_rope = map(q_rope, kRope, job.heads, tokens),
                  .latent = map(job.latent, kRank, job.capacity, seqs),
                  .k_rope = map(job.k_rope, kRope, job.capacity, seqs)};
  const dim3 grid(static_cast<unsigned>((job.heads + kHeads - 1) / kHeads), static_cast<unsigned>(job.splits),
                  static_cast<unsigned>(tokens));
  const int blocks = grid.x % 2 == 0 ? 2 : 1;
  auto* kernel = blocks == 2 ? latent_wide_kernel<2> : latent_wide_kernel<1>;
  FEWBIT_CUDA_CALL(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)));
  launch_clusters(s, blocks, kernel, grid, dim3(kThreads), kShared, job, maps);
}

}  // namespace fewbit::cuda::latent_wide

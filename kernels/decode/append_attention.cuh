#pragma once
// The decode kernel of kernels/attention/attention_decode.cuh for tokens whose queries, keys and values are as the
// product has left them, over a cache of 4 bits. Every block turns the queries of its kv head itself, while its first
// keys are on their way; the block with the last keys in sight fits the new key and value and appends them before it
// loads the tile that they are in, and has fewer tiles for it. What is read besides keys is asked for before them: it
// would wait behind them in memory, some 3 us.
#include "kernels/decode/append_attention_ring.cuh"

namespace fewbit::cuda::append_decode {

// Block::tiles_of() with fewer tiles for the last split: whole rounds of the warps, and at most two thirds of a split.
template <class S>
__device__ __forceinline__ int2 tiles_of(const Block<S>& block, const KeyRange& range) {
  const int splits = block.job.splits;
  const int begin = range.begin / S::kKeys, all = (range.end + S::kKeys - 1) / S::kKeys - begin;
  const int lighter = min(block.job.lighter, 2 * all / (3 * splits)) / S::kWarps * S::kWarps;
  const int each = (all + lighter) / splits, more = (all + lighter) % splits;
  const auto cut = [&](int i) { return begin + min(i * each + min(i, more), all); };
  return int2{cut(block.split), cut(block.split + 1)};
}

// What no launch of the stream writes, before its predecessor has ended. A thread reads back only the frequency that it
// has stored itself.
template <class S>
__device__ __forceinline__ void read_weights(Room<S>& room, const Fresh& fresh) {
  const int warp = threadIdx.x / 32;
  if (threadIdx.x < fresh.head.half) room.inv_freq[threadIdx.x] = fresh.inv_freq[threadIdx.x];
  const __nv_bfloat16* weight = warp == 0 ? fresh.norms.q.weight : warp == 1 ? fresh.norms.k.weight : nullptr;
  if (weight)
    for (int i = threadIdx.x % 32; i < S::kDim; i += 32) room.norms[warp][i] = weight[i];
}

// The block's query heads, its new key and its new value, in this order; a warp has every kWarps-th.
template <class S>
struct Heads {
  using T = __nv_bfloat16;
  static constexpr int kWords = S::kDim / 64, kEach = (S::kRows + 2 + S::kWarps - 1) / S::kWarps;
  const Block<S>& block;
  const Fresh& fresh;
  uint32_t words[kEach][kWords];  // of a head, this lane's

  __device__ __forceinline__ Heads(const Block<S>& of, const Fresh& as_they_came) : block(of), fresh(as_they_came) {}
  __device__ __forceinline__ int64_t fresh_row() const {
    return static_cast<int64_t>(block.seq) * block.a.kv_heads + block.kv_head;
  }
  // Calls f(i, head) for those of the warp.
  template <class F>
  __device__ __forceinline__ void for_own(F&& f) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (const int h = threadIdx.x / 32 + i * S::kWarps; h < block.rows + 2) f(i, h);
  }
  __device__ __forceinline__ void load() {
    for_own([&](int i, int h) {
      const T* head = h < block.rows ? block.a.q + block.query_row(h)
                                     : (h == block.rows ? fresh.k : fresh.v) + fresh_row() * S::kDim;
#pragma unroll
      for (int j = 0; j < kWords; ++j)
        words[i][j] = reinterpret_cast<const uint32_t*>(head)[kWords * (threadIdx.x % 32) + j];
    });
  }
  // To shared memory, where turn() finds them.
  __device__ __forceinline__ void store(Room<S>& room) {
    for_own([&](int i, int h) {
#pragma unroll
      for (int j = 0; j < kWords; ++j)
        reinterpret_cast<uint32_t*>(room.heads[h])[kWords * (threadIdx.x % 32) + j] = words[i][j];
    });
  }
  // The new key and value only where `appends`; room.table is there. Other warps may read them behind a barrier.
  __device__ __forceinline__ void turn(Room<S>& room, bool appends) const {
#pragma unroll 1
    for (int h = threadIdx.x / 32; h < block.rows + (appends ? 2 : 0); h += S::kWarps) {
      const bool of_v = h > block.rows;
      T* head = room.heads[h];
      HeadNorm<T> norm = of_v ? HeadNorm<T>{} : h < block.rows ? fresh.norms.q : fresh.norms.k;
      if (norm.weight) norm.weight = room.norms[h < block.rows ? 0 : 1];
      prepare_head<T>(head, head, head, nullptr, room.table, norm, fresh.norms, fresh.head, of_v);
    }
  }
  // Fits and stores the new key and the new value, by half of the warps each.
  __device__ __forceinline__ void append(Room<S>& room, int position) const {
    constexpr int kHalf = S::kWarps / 2;
    const int warp = threadIdx.x / 32;
    const bool of_v = warp >= kHalf;
    store_int4_row<kFitWarps>(room.heads[block.rows + of_v], of_v ? fresh.v_cache : fresh.k_cache,
                              of_v ? fresh.v_scales : fresh.k_scales, fresh_row() * block.a.keys + position, S::kDim,
                              room.fit, kHalf, warp % kHalf);
    publish_stored<S>();
  }
};

// Leaves the result of the split, or of one without keys.
template <class S>
__device__ __forceinline__ void finish(const Block<S>& block, typename S::Warp& w, uint8_t* shared, Room<S>& room) {
  const bool cluster = block.job.cluster;
  attention_decode::merge_block(block, w, shared, room.ml, 1.f, [&](int row, int col, float m, float l, float2 sum) {
    if (!cluster) return attention_decode::leave_result(block, row, col, m, l, sum);
    *reinterpret_cast<float2*>(&room.result.o[row][col]) = sum;
    if (col == 0) room.result.ml[row] = {m, l};
  });
  if (cluster) merge_cluster<S>(block, room.result);
}
template <class S>
__device__ __forceinline__ void finish_empty(const Block<S>& block, Room<S>& room) {
  if (!block.job.cluster) return block.store_nothing();
  for (int e = threadIdx.x; e < S::kRows * S::kDim; e += S::kThreads) room.result.o[e / S::kDim][e % S::kDim] = 0;
  if (threadIdx.x < S::kRows) room.result.ml[threadIdx.x] = {kNoKeys, 0};
  merge_cluster<S>(block, room.result);
}

// A block's work.
template <class S>
__device__ __forceinline__ void run(const typename S::Source& a, const Job& job, const Fresh& fresh, const Maps& maps,
                                    uint8_t* shared, Room<S>& room) {
  allow_successor();
  const Block<S> block(a, job);
  begin_rings(room, maps);
  // Driven out of the L2 since the layer before. Positions may still be written, which is seen in the L2.
  if (threadIdx.x == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(block.positions));
  read_weights(room, fresh);
  await_predecessor();
  Heads<S> heads(block, fresh);
  heads.load();
  const int position = *block.positions;
  const KeyRange range = block.keys_in_sight(position);
  const int2 tiles = tiles_of(block, range);
  if (tiles.x >= tiles.y) return finish_empty(block, room);
  auto ring = ring_of<S>(block, range, tiles, shared, room, maps);
  const int old = ring.stages_of_old_keys(S::kStages), first = min(old, job.early);
  fill(ring, 0, first);

  const bool appends = tiles.y * S::kKeys >= range.end;
  rope_angles(room.table, static_cast<float>(position), room.inv_freq, fresh.head.half, fresh.head.attention_scale,
              threadIdx.x, S::kThreads);
  heads.store(room);
  __syncthreads();
  heads.turn(room, appends);
  fill(ring, first, old);
  __syncthreads();
  if (appends) {
    heads.append(room, position);
    __syncthreads();
  }
  fill(ring, old, S::kStages);

  typename S::Warp w;
  const int query = threadIdx.x % 32 / 4 % S::kQueries;
  w.q_row[0] = room.heads[min(query, block.rows - 1)];
  w.is_query[0] = query < block.rows;
  w.init(S::kDim);
  w.finish_queries(a.scale, a.softcap);
  attend(ring, w, position, a.scale);
  finish(block, w, shared, room);
}

// Grid: splits x kv_heads x sequences.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    append_decode_kernel(const __grid_constant__ typename S::Source a, const __grid_constant__ Job job,
                         const __grid_constant__ Fresh fresh, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ Room<S> room;
  if constexpr (!S::kBoxes)
    run<S>(a, job, fresh, maps, shared, room);
  else if constexpr (kHasBoxes)  // the swizzle counts from a multiple of 1,024 bytes
    run<S>(a, job, fresh, maps, shared + (1024 - shared_address(shared) % 1024) % 1024, room);
}

// Tiles that the block which appends has less than the others, so that it ends with them.
inline constexpr int kLighter = 16;

// Returns whether the output is turned back where that is asked.
template <class S>
bool launch(CudaState& s, const AttentionSource<__nv_bfloat16, I4Codes>& a, const Fresh& fresh) {
  Job job = attention_decode::job_of<S>(s, a, 0);
  job.behind_append = true;  // the position comes with the call of keys_in_sight()
  job.early = 1;
  job.lighter = kLighter;
  job.cluster = S::kBoxes && job.splits > 1 && job.splits <= kMostInCluster;
  Maps maps{};
  if (S::kBoxes) maps = maps_of<S>(a);
  attention_decode::launch_job<S>(s, append_decode_kernel<S>, a, job, fresh, maps);
  return job.turn_back != 0;
}

}  // namespace fewbit::cuda::append_decode

#pragma once
// Attention of few query rows over the cache (decode), bf16 queries: split-K over the keys, as in Flash-Decoding (Dao,
// Haziza, Massa, Sizov, 2023). The query heads that share a kv head, for all new tokens, are the 8 or 16 columns of one
// tile (attention_columns.cuh), so that K and V are read once for all of them. The keys in sight are cut into `splits`
// equal runs of tiles of 16 keys (of 4 bits 32), one run a block. Inside a block the warps take tiles in turn; each
// warp loads its own ring of shared memory, and they meet at no barrier until the end. The number of splits is fixed by
// the shapes; how many keys each gets follows from the positions on the device, so that a recorded launch serves every
// position. With several splits each block leaves (m, l, O) in f32 and attention_combine.cuh merges them. Memory
// traffic: the keys and values in sight, once.
#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_columns.cuh"
#include "kernels/attention/attention_combine.cuh"
#include "kernels/device/launch.cuh"

namespace fewbit::cuda::attention_decode {

// What is fixed for one kind of launch. D: head_dim rounded up; C: what keys and values are stored as; kGroups: groups
// of eight query rows in a tile.
template <int D, class C, int kGroups>
struct Config {
  using Stored = C;
  static constexpr int kDim = D, kRowGroups = kGroups;
  static constexpr int kRows = 8 * kGroups, kKeys = kGroupScales<C> && kGroups == 1 ? 32 : 16;
  using Warp = attention_columns::WarpColumns<D, kKeys, C, kGroups>;
  // With the registers of one group of rows and the shared memory of codes 16 warps fit on a multiprocessor. A block
  // takes at most 99 KiB of shared memory, what compute capability 8.6 has.
  static constexpr bool kMany = kIsCode<C> && kGroups == 1;
  static constexpr int kWarps = D <= 128 ? (kMany ? 8 : 4) : (kIsCode<C> ? 4 : 2), kThreads = 32 * kWarps;
  static constexpr int kBlocks = D <= 128 && !kMany ? 3 : 2;  // on a multiprocessor
  static constexpr int kStages = D <= 128 && kIsCode<C> && !kMany ? 4 : 2;
  static constexpr int kTile = kKeys * kRowStride<C, D>;  // values of a warp's K or V tile
  static constexpr int kSumStride = D + 4;                // floats: eight bytes of 16 lanes fall into different banks
  // Bytes of a warp: its ring, and later its sums.
  static constexpr int kWarpSpace = std::max<int>(sizeof(C) * 2 * kStages * kTile, sizeof(float) * kRows * kSumStride);
  // Scales of a key: one, or a word for each group of its features.
  static constexpr int kKeyScales = kGroupScales<C> ? static_cast<int>(int4_groups(D)) : kTokenScales<C> ? 1 : 0;
  static constexpr int kTileScales = kKeys * kKeyScales;
  static constexpr int kScales = kWarps * kStages * 2 * kTileScales;
  static constexpr size_t kShared = kWarps * kWarpSpace + sizeof(float) * kScales;
};

// The scales that all codes of a kv head share, the scores' one times AttentionArgs::scale.
struct StaticScales {
  float score = 0, value = 0;
};

// What a block works on: a tile of query rows of one kv head of one sequence, and one split of the keys.
template <class S>
struct Block {
  using C = typename S::Stored;
  const AttentionSource<__nv_bfloat16, C>& a;
  const Job& job;
  int kv_head, row0, seq, split, rows;
  const C *k, *v;  // of the kv head
  int64_t scales_at;
  const int32_t* positions;  // of the sequence's new tokens
  int64_t first_row;         // row 0 of the tile among the query rows of all sequences and kv heads

  __device__ __forceinline__ Block(const AttentionSource<__nv_bfloat16, C>& source, const Job& of_launch)
      : a(source), job(of_launch) {
    kv_head = blockIdx.y / job.row_tiles, row0 = blockIdx.y % job.row_tiles * S::kRows, seq = blockIdx.z;
    split = blockIdx.x, rows = min(S::kRows, job.rows - row0);
    k = a.k + seq * a.kv_seq + kv_head * a.kv_head;
    v = a.v + seq * a.kv_seq + kv_head * a.kv_head;
    scales_at = a.scales_of(seq, kv_head);
    positions = a.positions + static_cast<int64_t>(seq) * a.len;
    first_row = (static_cast<int64_t>(seq) * a.kv_heads + kv_head) * job.rows + row0;
  }

  // Row r of the tile is head (row0 + r) % group of the group, for new token (row0 + r) / group.
  __device__ __forceinline__ int token_of(int r) const { return a.len == 1 ? 0 : (row0 + r) / job.group; }
  __device__ __forceinline__ int64_t query_row(int r) const {  // as an offset into q and out
    const int token = token_of(r), head = kv_head * job.group + row0 + r - token * job.group;
    return ((static_cast<int64_t>(seq) * a.len + token) * a.heads + head) * a.d;
  }
  __device__ __forceinline__ int position_of(int r) const { return r < rows ? positions[token_of(r)] : -1; }
  __device__ __forceinline__ int64_t partial_of(int r) const {  // where the split's result of row r goes
    return (first_row + r) * job.splits + split;
  }
  __device__ __forceinline__ StaticScales read_scales() const {
    return {a.scale * static_scale<C>(a.k_scales, scales_at), static_scale<C>(a.v_scales, scales_at)};
  }
  // The keys in sight. `early_position`: of the only new token, where it was read ahead.
  __device__ __forceinline__ KeyRange keys_in_sight(int early_position) const {
    const auto of_one = [&](int p) {
      return KeyRange{p, p, a.window > 0 ? max(0, p - a.window + 1) : 0, min(p + 1, a.keys)};
    };
    return job.behind_append ? of_one(early_position)
           : a.len == 1      ? of_one(*positions)
                             : key_range(position_of(threadIdx.x % 32), -1, a.window, a.keys);
  }
  // Key tiles [x, y) of this split; the first splits have one more where they do not come out even.
  __device__ __forceinline__ int2 tiles_of(const KeyRange& range) const {
    const int begin = range.begin / S::kKeys, all = (range.end + S::kKeys - 1) / S::kKeys - begin;
    const int each = all / job.splits, more = all % job.splits;
    const auto cut = [&](int i) { return begin + i * each + min(i, more); };
    return int2{cut(split), cut(split + 1)};
  }
  // The result of a split without keys.
  __device__ __forceinline__ void store_nothing() const {
    for (int e = threadIdx.x; e < rows * a.d; e += S::kThreads) {
      const int64_t at = partial_of(e / a.d);
      job.o[at * a.d + e % a.d] = 0;
      if (e % a.d == 0) job.ml[at * 2] = kNoKeys, job.ml[at * 2 + 1] = 0;
    }
  }
};

// A warp's ring of stages in shared memory. A stage holds a K tile and a V tile, each with the scales of its keys where
// tokens have their own; each is one group of asynchronous copies, and an empty one past the last tile, so that the
// number of groups under way is always the same.
template <class S>
struct KeyRing {
  using C = typename S::Stored;
  const Block<S>& block;
  const KeyRange& range;
  int first, end;  // this warp's first tile, and the end of the block's
  C* tiles;        // [kStages, 2, kKeys, stride]
  float* scales;   // [kStages, 2, kKeys, scales of a key]
  int lane;
  const float *k_scales, *v_scales;  // of the kv head

  // `tiles_of_block`: [x, y). The rings of all warps lie one after another, and behind them the scales.
  __device__ __forceinline__ KeyRing(const Block<S>& of, const KeyRange& in_sight, int2 tiles_of_block, uint8_t* shared)
      : block(of), range(in_sight) {
    const int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    first = tiles_of_block.x + warp, end = tiles_of_block.y;
    tiles = reinterpret_cast<C*>(shared + warp * S::kWarpSpace);
    scales = reinterpret_cast<float*>(shared + S::kWarps * S::kWarpSpace) + warp * S::kStages * 2 * S::kTileScales;
    k_scales = block.a.k_scales + block.scales_at, v_scales = block.a.v_scales + block.scales_at;
  }

  // Asks for a tile of `base` (K or V); `place` counts tiles in the ring.
  __device__ __forceinline__ void load_tile(const C* base, int tile, int place) const {
    if (tile >= end) return;
    constexpr int D = S::kDim, kRow = stored<C>(D);
    const int first_key = tile * S::kKeys;
    C* to = tiles + place * S::kTile;
    if (block.a.d == D && first_key + S::kKeys <= range.end) {  // whole, and its rows one after another
      constexpr int kPiece = 16 / static_cast<int>(sizeof(C)), kChunks = kRow / kPiece, kAll = S::kKeys * kChunks;
      const C* from = base + static_cast<int64_t>(first_key) * kRow + lane * kPiece;
      if constexpr (32 % kChunks == 0) {
        to += lane / kChunks * kRowStride<C, D> + lane % kChunks * kPiece;
#pragma unroll
        for (int i = 0; i < kAll; i += 32) cp_async16(to + i / kChunks * kRowStride<C, D>, from + i * kPiece);
      } else {
#pragma unroll
        for (int i = 0; i < kAll; i += 32)
          if (const int c = i + lane; c < kAll)
            cp_async16(to + c / kChunks * kRowStride<C, D> + c % kChunks * kPiece, from + i * kPiece);
      }
    } else {
      copy_rows<D, S::kKeys, 32>(to, lane, stored<C>(block.a.d), base, [&](int row) -> const C* {
        return first_key + row < range.end ? base + (first_key + row) * block.a.kv_token : nullptr;
      });
    }
  }
  __device__ __forceinline__ void load_scales(const float* from, int tile, int place) const {
    if constexpr (S::kKeyScales > 0) {
#pragma unroll
      for (int base = 0; base < S::kTileScales; base += 32) {
        const int i = base + lane, at = tile * S::kTileScales + i;
        const bool there = at < range.end * S::kKeyScales;
        if (tile < end && i < S::kTileScales)
          cp_async4(scales + place * S::kTileScales + i, there ? from + at : from, there);
      }
    }
  }
  // The K tile, or the V tile, of a stage.
  __device__ __forceinline__ void load_keys(int tile, int stage, bool with_scales = true) const {
    load_tile(block.k, tile, 2 * stage);
    if (with_scales) load_scales(k_scales, tile, 2 * stage);
    cp_async_commit();
  }
  __device__ __forceinline__ void load_values(int tile, int stage, bool with_scales = true) const {
    load_tile(block.v, tile, 2 * stage + 1);
    if (with_scales) load_scales(v_scales, tile, 2 * stage + 1);
    cp_async_commit();
  }
  // Stages [begin, end) for the first time.
  __device__ __forceinline__ void fill(int begin_stage, int end_stage, bool with_scales) const {
#pragma unroll 1
    for (int stage = begin_stage; stage < end_stage; ++stage) {
      load_keys(first + stage * S::kWarps, stage, with_scales);
      load_values(first + stage * S::kWarps, stage, with_scales);
    }
  }
  // Keys older than the new one may be read before the kernel has ended that writes the new one (behind_append). Only
  // the first stage is loaded so early: what that kernel still has to do, and the queries, queue behind it in memory.
  // Returns whether it was.
  __device__ __forceinline__ bool load_early() const {
    if (!block.job.behind_append || min(first + 1, end) * S::kKeys >= range.end) return false;
    fill(0, 1, false);
    if constexpr (S::kKeyScales > 0) {  // past the first-level cache, where a line may hold the new key's place too
#pragma unroll
      for (int base = 0; base < S::kTileScales; base += 32) {
        const int i = base + lane, at = first * S::kTileScales + i;
        const bool there = first < end && i < S::kTileScales;
        const float of_k = there ? __ldcg(k_scales + at) : 0.f, of_v = there ? __ldcg(v_scales + at) : 0.f;
        if (i < S::kTileScales) scales[i] = of_k, scales[S::kTileScales + i] = of_v;
      }
    }
    return true;
  }
  __device__ __forceinline__ const C* keys_at(int stage) const { return tiles + 2 * stage * S::kTile; }
  __device__ __forceinline__ const C* values_at(int stage) const { return tiles + (2 * stage + 1) * S::kTile; }
};

// The addresses of this lane's queries, and the positions of those whose scores it holds.
template <class S>
__device__ __forceinline__ void place_queries(const Block<S>& block, const KeyRange& range, typename S::Warp& w,
                                              int (&positions)[S::kRowGroups][2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < S::kRowGroups; ++j) {
    const int r = 8 * j + lane / 4;
    w.q_row[j] = block.a.q + block.query_row(min(r, block.rows - 1));
    w.is_query[j] = r < block.rows;
#pragma unroll
    for (int c = 0; c < 2; ++c)
      positions[j][c] = block.a.len == 1 ? range.high : block.position_of(8 * j + lane % 4 * 2 + c);
  }
}

// The warp's tiles through its ring.
template <class S>
__device__ __forceinline__ void attend(const KeyRing<S>& ring, typename S::Warp& w,
                                       const int (&positions)[S::kRowGroups][2], float score_scale) {
  const auto& a = ring.block.a;
  int stage = 0;
  for (int tile = ring.first; tile < ring.end; tile += S::kWarps) {
    const int first_key = tile * S::kKeys, next = tile + S::kStages * S::kWarps;
    const bool masked =
        first_key + S::kKeys - 1 > ring.range.low || (a.window > 0 && first_key <= ring.range.high - a.window);
    const float* key_scales = ring.scales + 2 * stage * S::kTileScales;
    typename S::Warp::Scores s;
    cp_async_wait<2 * S::kStages - 1>();
    __syncwarp();
    w.scores(s, ring.keys_at(stage), key_scales);
    w.finish_scores(s, key_scales, score_scale, a.softcap, masked, first_key, positions, a.window);
    __syncwarp();  // all lanes have read these keys before they are replaced
    ring.load_keys(next, stage);
    w.softmax(s);
    cp_async_wait<2 * S::kStages - 1>();
    __syncwarp();
    w.add_values(s, key_scales + S::kTileScales, ring.values_at(stage));
    __syncwarp();
    ring.load_values(next, stage);
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  __syncwarp();
}

// Leaves the warp's sums, the O where its own tiles were, for merge_warps().
template <class S>
__device__ __forceinline__ void store_warp(const typename S::Warp& w, uint8_t* shared, float* ml_sh,
                                           float value_scale) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  w.store(reinterpret_cast<float*>(shared) + warp * (S::kWarpSpace / sizeof(float)), S::kSumStride, value_scale);
  if (lane < 4)
#pragma unroll
    for (int j = 0; j < S::kRowGroups; ++j)
      *reinterpret_cast<float4*>(ml_sh + (warp * S::kRows + 8 * j + 2 * lane) * 2) = {w.m[j][0], w.l[j][0], w.m[j][1],
                                                                                      w.l[j][1]};
}

// Merges the results of the warps, which are splits of the block's keys: O [kRows, kSumStride] in each warp's space of
// o_sh, (m, l) in ml_sh [kWarps, kRows, 2]. Calls put(row, column, m, l, O of two columns) for the rows that exist.
template <class S, class F>
__device__ __forceinline__ void merge_warps(const float* o_sh, const float* ml_sh, int rows, int d, F&& put) {
  constexpr int kSpace = S::kWarpSpace / sizeof(float);
  const int half = d / 2;
  for (int e = threadIdx.x; e < rows * half; e += S::kThreads) {
    const int row = e / half, col = e % half * 2;
    float2 ml[S::kWarps], sum = {0, 0};
    float weight[S::kWarps], l = 0;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) ml[w] = *reinterpret_cast<const float2*>(ml_sh + (w * S::kRows + row) * 2);
    const float m = merged_reference(ml);
    merge_weights(weight, ml, m, l);
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float2 o = *reinterpret_cast<const float2*>(o_sh + w * kSpace + row * S::kSumStride + col);
      sum.x += weight[w] * o.x;
      sum.y += weight[w] * o.y;
    }
    put(row, col, m, l, sum);
  }
}

// Grid: splits x (kv_heads * row tiles) x sequences.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    decode_kernel(const __grid_constant__ AttentionSource<__nv_bfloat16, typename S::Stored> a,
                  const __grid_constant__ Job job) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(16) float ml_sh[S::kWarps * S::kRows * 2];
  allow_successor();
  const Block<S> block(a, job);
  // Past the first-level cache, which may not be asked for what others still write beside it.
  const int early_position = job.behind_append ? __ldcg(block.positions) : 0;
  StaticScales scales;
  if (job.behind_append)
    scales = block.read_scales();
  else
    await_predecessor();
  const KeyRange range = block.keys_in_sight(early_position);
  const int2 tiles = block.tiles_of(range);
  if (tiles.x >= tiles.y) {  // the whole block: nothing in sight for this split
    if (job.behind_append) await_predecessor();
    return block.store_nothing();
  }

  const KeyRing<S> ring(block, range, tiles, shared);
  const bool early = ring.load_early();
  typename S::Warp w;
  int positions[S::kRowGroups][2];
  place_queries(block, range, w, positions);  // before the wait: working out addresses takes time
  if (job.behind_append) await_predecessor();
  w.init(a.d);
  ring.fill(early ? 1 : 0, S::kStages, true);
  w.finish_queries();
  if (!job.behind_append) scales = block.read_scales();

  attend(ring, w, positions, scales.score);
  w.finish_sums();
  store_warp<S>(w, shared, ml_sh, scales.value);
  __syncthreads();
  merge_warps<S>(reinterpret_cast<const float*>(shared), ml_sh, block.rows, a.d,
                 [&](int row, int col, float m, float l, float2 sum) {
                   if (job.splits == 1) {
                     l = with_sink(l, m, a.sinks, static_cast<int>(block.query_row(row) / a.d % a.heads));
                     *reinterpret_cast<uint32_t*>(a.out + block.query_row(row) + col) = pack_bf16(sum.x / l, sum.y / l);
                     return;
                   }
                   const int64_t at = block.partial_of(row);
                   *reinterpret_cast<float2*>(job.o + at * a.d + col) = sum;
                   if (col == 0) *reinterpret_cast<float2*>(job.ml + at * 2) = {m, l};
                 });
}

// How many splits a launch has: as many blocks as run at once, but never fewer keys than one round of the warps. Where
// three quarters of the multiprocessors have a block already and keys are few, one: merging splits would take longer
// than they save.
template <class S>
int split_count(int sms, int64_t tiles, int64_t keys) {
  constexpr int64_t kFewKeys = 2048;
  if (keys <= kFewKeys && tiles >= sms * 3 / 4) return 1;
  const int64_t wanted = S::kBlocks * sms / tiles;
  const int64_t most = (keys + S::kKeys * S::kWarps - 1) / (S::kKeys * S::kWarps);
  return static_cast<int>(std::max<int64_t>(1, std::min({wanted, most, int64_t{kMaxSplits}})));
}

// Returns whether the output is turned back where that is asked.
template <class S>
bool launch_config(CudaState& s, const AttentionSource<__nv_bfloat16, typename S::Stored>& a, bool behind_append) {
  FEWBIT_ASSERT(a.kv_token == stored<typename S::Stored>(a.d));  // the keys of a kv head are one piece of the cache
  auto* kernel = decode_kernel<S>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  const int rows = a.len * (a.heads / a.kv_heads), row_tiles = (rows + S::kRows - 1) / S::kRows;
  const int64_t tiles = static_cast<int64_t>(a.seqs) * a.kv_heads * row_tiles;
  Job job{.ml = nullptr,
          .o = nullptr,
          .splits = split_count<S>(s.sms(), tiles, a.keys),
          .group = a.heads / a.kv_heads,
          .rows = rows,
          .row_tiles = row_tiles,
          .behind_append = behind_append && a.len == 1,
          .turn_back = 0};
  const bool turns = a.turn_back && job.splits > 1 && combine_turns(a.d);
  if (turns) job.turn_back = 1 / std::sqrt(static_cast<float>(a.d));
  const int64_t all_rows = static_cast<int64_t>(a.seqs) * a.kv_heads * rows;
  if (job.splits > 1) {
    job.o = s.scratch_of<float>(all_rows * job.splits * (a.d + 2));  // first: its rows are read 16 bytes at a time
    job.ml = job.o + all_rows * job.splits * a.d;
  }
  launch_overlapping(s, kernel, dim3(job.splits, a.kv_heads * row_tiles, a.seqs), dim3(S::kThreads), S::kShared, a,
                     job);
  if (job.splits > 1)
    launch_overlapping(s, combine_splits_kernel<typename S::Stored>, dim3(static_cast<unsigned>(all_rows)),
                       dim3(kCombineThreads), 0, a, job);
  return turns;
}

// Up to 8 query rows a kv head fill one group of columns; more take tiles of two groups.
template <int D, class C>
bool launch(CudaState& s, const AttentionSource<__nv_bfloat16, C>& a, bool behind_append) {
  return a.len * (a.heads / a.kv_heads) <= 8 ? launch_config<Config<D, C, 1>>(s, a, behind_append)
                                             : launch_config<Config<D, C, 2>>(s, a, behind_append);
}

}  // namespace fewbit::cuda::attention_decode

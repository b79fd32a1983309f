#pragma once
// Attention of few query rows over the cache (decode), bf16 queries: split-K over the keys, as in Flash-Decoding (Dao,
// Haziza, Massa, Sizov, 2023). The query heads that share a kv head, for all new tokens, are the 8 or 16 columns of one
// tile (attention_columns.cuh), so that K and V are read once for all of them. The keys in sight are cut into `splits`
// equal runs of tiles of 16 keys (of 4 bits 32), one run a block. Inside a block the warps take tiles in turn; each
// warp loads its own ring of shared memory, and they meet at no barrier until the end. The number of splits is fixed by
// the shapes; how many keys each gets follows from the positions on the device, so that a recorded launch serves every
// position. With several splits each block leaves (m, l, O) in f32 and attention_combine.cuh merges them. Memory
// traffic: the keys and values in sight, once.
//
// Over pages every row of the call is a sequence of one token.
#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_ring.cuh"

namespace fewbit::cuda::attention_decode {

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

// The warp's tiles through its ring; complete(tile, rows, of_values) is told when a tile's keys, or values, have come.
template <class S, class F>
__device__ __forceinline__ void attend(KeyRing<S>& ring, typename S::Warp& w, const int (&positions)[S::kRowGroups][2],
                                       float score_scale, F&& complete) {
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
    complete(tile, ring.keys_at(stage), false);
    w.scores(s, ring.keys_at(stage), key_scales);
    w.finish_scores(s, key_scales, score_scale, a.softcap, masked, first_key, positions, a.window);
    __syncwarp();  // all lanes have read these keys before they are replaced
    ring.load_keys(next, stage);
    w.softmax(s);
    cp_async_wait<2 * S::kStages - 1>();
    __syncwarp();
    complete(tile, ring.values_at(stage), true);
    w.add_values(s, key_scales + S::kTileScales, ring.values_at(stage));
    __syncwarp();
    ring.load_values(next, stage);
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  __syncwarp();
}

template <class S>
__device__ __forceinline__ void attend(KeyRing<S>& ring, typename S::Warp& w, const int (&positions)[S::kRowGroups][2],
                                       float score_scale) {
  attend(ring, w, positions, score_scale, [](int, typename S::Stored*, bool) {});
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

// Merges what the warps have summed; put() as in merge_warps().
template <class S, class F>
__device__ __forceinline__ void merge_block(const Block<S>& block, typename S::Warp& w, uint8_t* shared, float* ml_sh,
                                            float value_scale, F&& put) {
  w.finish_sums();
  store_warp<S>(w, shared, ml_sh, value_scale);
  __syncthreads();
  merge_warps<S>(reinterpret_cast<const float*>(shared), ml_sh, block.rows, block.a.d, put);
}
// Leaves two columns of a row of the split's result, or of the output where there is one split.
template <class S>
__device__ __forceinline__ void leave_result(const Block<S>& block, int row, int col, float m, float l, float2 sum) {
  const auto& a = block.a;
  const Job& job = block.job;
  if (job.splits == 1) {
    l = with_sink(l, m, a.sinks, static_cast<int>(block.query_row(row) / a.d % a.heads));
    *reinterpret_cast<uint32_t*>(a.out + block.query_row(row) + col) = pack_bf16(sum.x / l, sum.y / l);
    return;
  }
  const int64_t at = block.partial_of(row);
  *reinterpret_cast<float2*>(job.o + at * a.d + col) = sum;
  if (col == 0) *reinterpret_cast<float2*>(job.ml + at * 2) = {m, l};
}

// Grid: splits x (kv_heads * row tiles) x sequences.
template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    decode_kernel(const __grid_constant__ typename S::Source a, const __grid_constant__ Job job) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(16) float ml_sh[S::kWarps * S::kRows * 2];
  allow_successor();
  const Block<S> block(a, job);
  const int early_position = job.behind_append ? block.read_position_early() : 0;
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

  KeyRing<S> ring(block, range, tiles, shared);
  const int early = ring.load_early();
  typename S::Warp w;
  int positions[S::kRowGroups][2];
  place_queries(block, range, w, positions);  // before the wait: working out addresses takes time
  if (job.behind_append) await_predecessor();
  w.init(a.d);
  ring.fill(early, S::kStages, true);
  if (!job.behind_append) scales = block.read_scales();
  w.finish_queries(scales.score, a.softcap);

  attend(ring, w, positions, scales.score);
  merge_block(block, w, shared, ml_sh, scales.value,
              [&](int row, int col, float m, float l, float2 sum) { leave_result(block, row, col, m, l, sum); });
}

// How many splits a launch has: as many blocks as run at once, but never fewer keys than one round of the warps. Keys
// of two rounds are one split, and so are few keys where three quarters of the multiprocessors have a block already:
// merging splits would take longer than they save. `keys`: that a token sees at most.
template <class S>
int split_count(int sms, int64_t tiles, int64_t keys) {
  constexpr int64_t kFewKeys = 2048;
  if (keys <= 2 * S::kKeys * S::kWarps || (keys <= kFewKeys && tiles >= sms * 3 / 4)) return 1;
  const int64_t wanted = S::kBlocks * sms / tiles;
  const int64_t most = (keys + S::kKeys * S::kWarps - 1) / (S::kKeys * S::kWarps);
  return static_cast<int>(std::max<int64_t>(1, std::min({wanted, most, int64_t{kMaxSplits}})));
}

// The job of a launch, with room for the results of its splits. `splits`: how many, where that is not to depend on the
// rows; else 0.
template <class S>
Job job_of(CudaState& s, const typename S::Source& a, int splits) {
  FEWBIT_ASSERT(a.kv_token == stored<typename S::Stored>(a.d));  // the keys of a kv head are one piece of the cache
  const int rows = a.len * (a.heads / a.kv_heads), row_tiles = (rows + S::kRows - 1) / S::kRows;
  const int64_t tiles = static_cast<int64_t>(a.seqs) * a.kv_heads * row_tiles;
  const int64_t keys = a.window > 0 ? std::min<int64_t>(a.keys, a.window + a.len - 1) : a.keys;
  Job job{.ml = nullptr,
          .o = nullptr,
          .splits = splits > 0 ? std::min(splits, kMaxSplits) : split_count<S>(s.sms(), tiles, keys),
          .group = a.heads / a.kv_heads,
          .rows = rows,
          .row_tiles = row_tiles,
          .behind_append = false,
          .cluster = false,
          .early = 0,
          .turn_back = 0,
          .lighter = 0};
  if (a.turn_back && job.splits > 1 && combine_turns(a.d)) job.turn_back = 1 / std::sqrt(static_cast<float>(a.d));
  const int64_t all_rows = static_cast<int64_t>(a.seqs) * a.kv_heads * rows;
  if (job.splits > 1) {                                              // not used by clusters
    job.o = s.scratch_of<float>(all_rows * job.splits * (a.d + 2));  // first: its rows are read 16 bytes at a time
    job.ml = job.o + all_rows * job.splits * a.d;
  }
  return job;
}

// Launches `kernel` with the operands and the job, and what merges its splits; `more`: what else the kernel takes.
template <class S, class Kernel, class... More>
void launch_job(CudaState& s, Kernel* kernel, const typename S::Source& a, const Job& job, const More&... more) {
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  launch_clusters(s, job.cluster ? job.splits : 1, kernel, dim3(job.splits, a.kv_heads * job.row_tiles, a.seqs),
                  dim3(S::kThreads), S::kShared, a, job, more...);
  const AttentionSource<__nv_bfloat16, typename S::Stored>& plain = a;
  if (job.splits > 1 && !job.cluster)
    launch_overlapping(s, combine_splits_kernel<typename S::Stored>,
                       dim3(static_cast<unsigned>(a.seqs * a.kv_heads * job.rows)), dim3(kCombineThreads), 0, plain,
                       job);
}

// Returns whether the output is turned back where that is asked.
// Of codes of 4 bits both stages are asked for early: to fit the new key takes longer than what they bring in its way.
template <class S>
bool launch_config(CudaState& s, const typename S::Source& a, bool behind_append, int splits = 0) {
  Job job = job_of<S>(s, a, splits);
  job.behind_append = behind_append && a.len == 1;
  job.early = kGroupScales<typename S::Stored> && !S::kPaged ? 2 : 1;
  launch_job<S>(s, decode_kernel<S>, a, job);
  return job.turn_back != 0;
}

// Up to 8 query rows a kv head fill one group of columns; more take tiles of two groups.
template <int D, class C>
bool launch(CudaState& s, const AttentionSource<__nv_bfloat16, C>& a, bool behind_append) {
  return a.len * (a.heads / a.kv_heads) <= 8 ? launch_config<Config<D, C, 1>>(s, a, behind_append)
                                             : launch_config<Config<D, C, 2>>(s, a, behind_append);
}
template <int D, class C>
bool launch(CudaState& s, const PagedSource<__nv_bfloat16, C>& a, bool behind_append, int splits) {
  return a.heads / a.kv_heads <= 8 ? launch_config<Config<D, C, 1, true>>(s, a, behind_append, splits)
                                   : launch_config<Config<D, C, 2, true>>(s, a, behind_append, splits);
}

}  // namespace fewbit::cuda::attention_decode

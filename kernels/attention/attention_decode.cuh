#pragma once
// Attention of few query rows over the cache (decode), bf16 queries. The query heads that share a kv head, for all new
// tokens, are the 8 or 16 columns of one tile (attention_columns.cuh), so K and V are read once for all of them. The
// keys in sight are cut into `splits` equal runs of tiles of 16 keys, one a block, and inside a block the warps take
// tiles in turn, each with its own ring of shared memory and no barrier. The number of splits is fixed by the shapes;
// how many keys each gets follows from the positions on the device, so a recorded launch serves every position. Every
// block leaves (m, l, O) in f32; a second kernel adds them in the order of the splits. Bytes: the keys and values in
// sight, once.
#include <algorithm>

#include "kernels/attention/attention_columns.cuh"
#include "kernels/device/launch.cuh"

namespace fewbit::cuda {

inline constexpr int kMostSplits = 64;

struct DecodePartials {
  float* ml;  // [rows of all tiles, splits, 2]: what the weights are relative to (base 2), their sum
  float* o;   // [rows of all tiles, splits, d]
  int splits;
  int group, rows, row_tiles;  // query heads a kv head; that times the new tokens of a sequence; tiles of them
  // The kernel right before writes, of what is read here, only the new keys and the queries, and began this one after
  // all before it had ended; one new token a sequence.
  bool behind_append;
};

template <int D, class C, int kGroups>
struct DecodeShape {
  static constexpr int kRows = 8 * kGroups, kKeys = 16;
  // With the registers of one group of columns and the shared memory of codes 16 warps fit on a multiprocessor. A block
  // takes at most 99 KiB of shared memory.
  static constexpr bool kMany = kIsCode<C> && kGroups == 1;
  static constexpr int kWarps = D <= 128 ? (kMany ? 8 : 4) : (kIsCode<C> ? 4 : 2), kThreads = 32 * kWarps;
  static constexpr int kBlocks = D <= 128 && !kMany ? 3 : 2;  // on a multiprocessor
  static constexpr int kStages = D <= 128 && kIsCode<C> && !kMany ? 4 : 2;
  static constexpr int kTile = kKeys * kRowStride<C, D>;  // values of a warp's K or V tile
  static constexpr int kSumStride = D + 4;                // floats: eight bytes of 16 lanes fall into different banks
  // Bytes of a warp: its ring, and later its sums.
  static constexpr int kWarpSpace = std::max<int>(sizeof(C) * 2 * kStages * kTile, sizeof(float) * kRows * kSumStride);
  static constexpr int kScales = kTokenScales<C> ? kWarps * kStages * 2 * kKeys : 0;
  static constexpr size_t kShared = kWarps * kWarpSpace + sizeof(float) * kScales;
};

// Adds the warps' states; warp w's O [kRows, kSumStride] lies at o_sh + w * space, its (m, l) in ml_sh [kWarps, kRows,
// 2]. Rows of the tile below `rows`.
template <class S, class F>
__device__ __forceinline__ void merge_warps(const float* o_sh, int space, const float* ml_sh, int rows, int d,
                                            F&& put) {
  const int half = d / 2;
  for (int e = threadIdx.x; e < rows * half; e += S::kThreads) {
    const int row = e / half, col = e % half * 2;
    float m = ml_sh[row * 2], l = 0;
#pragma unroll
    for (int w = 1; w < S::kWarps; ++w) m = fmaxf(m, ml_sh[(w * S::kRows + row) * 2]);
    float2 sum = {0, 0};
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float2 ml = *reinterpret_cast<const float2*>(ml_sh + (w * S::kRows + row) * 2);
      const float2 o = *reinterpret_cast<const float2*>(o_sh + w * space + row * S::kSumStride + col);
      const float weight = exp2_fast(ml.x - m);
      l += weight * ml.y;
      sum.x += weight * o.x;
      sum.y += weight * o.y;
    }
    put(row, col, m, l, sum);
  }
}

// Grid: splits x (kv_heads * row tiles) x sequences.
template <int D, class C, int kGroups>
__global__ void __launch_bounds__(DecodeShape<D, C, kGroups>::kThreads, DecodeShape<D, C, kGroups>::kBlocks)
    decode_kernel(const __grid_constant__ AttentionSource<__nv_bfloat16, C> a,
                  const __grid_constant__ DecodePartials partials) {
  using S = DecodeShape<D, C, kGroups>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(16) float ml_sh[S::kWarps * S::kRows * 2];
  allow_successor();
  auto* scales_sh = reinterpret_cast<float*>(shared + S::kWarps * S::kWarpSpace);  // [kWarps, kStages, 2, kKeys]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = partials.group, all_rows = partials.rows, row_tiles = partials.row_tiles;
  const int kv_head = blockIdx.y / row_tiles, row0 = blockIdx.y % row_tiles * S::kRows, seq = blockIdx.z;
  const int split = blockIdx.x, rows = min(S::kRows, all_rows - row0);
  const C* k = a.k + seq * a.kv_seq + kv_head * a.kv_head;
  const C* v = a.v + seq * a.kv_seq + kv_head * a.kv_head;
  const int64_t scales_at = a.scales_of(seq, kv_head);

  // Key tiles [x, y) of this block.
  const auto tiles_of = [&](const KeyRange& range) {
    const int begin = range.begin / S::kKeys, all = (range.end + S::kKeys - 1) / S::kKeys - begin;
    const int each = all / partials.splits, more = all % partials.splits;  // the first `more` blocks have one more
    const auto cut = [&](int i) { return begin + i * each + min(i, more); };
    return int2{cut(split), cut(split + 1)};
  };
  // Row r of the tile is head (row0 + r) % group of the group, for new token (row0 + r) / group.
  const int32_t* positions = a.positions + static_cast<int64_t>(seq) * a.len;
  const auto token_of = [&](int r) { return a.len == 1 ? 0 : (row0 + r) / group; };
  const auto query_row = [&](int r) {  // as an offset into q and out
    const int token = token_of(r), head = kv_head * group + row0 + r - token * group;
    return ((static_cast<int64_t>(seq) * a.len + token) * a.heads + head) * a.d;
  };
  // Past the first-level cache, which may not be asked for what others still write beside it.
  const int early_position = partials.behind_append ? __ldcg(positions) : 0;
  float score_scale = 0, value_scale = 0;
  const auto read_scales = [&] {
    score_scale = a.scale * static_scale<C>(a.k_scales, scales_at);
    value_scale = static_scale<C>(a.v_scales, scales_at);
  };
  if (partials.behind_append)
    read_scales();
  else
    await_predecessor();
  const auto range_of_one = [&](int p) {
    return KeyRange{p, p, a.window > 0 ? max(0, p - a.window + 1) : 0, min(p + 1, a.keys)};
  };
  const auto position_of = [&](int r) { return r < rows ? positions[token_of(r)] : -1; };
  const KeyRange range = partials.behind_append ? range_of_one(early_position)
                         : a.len == 1           ? range_of_one(*positions)
                                                : key_range(position_of(lane), -1, a.window, a.keys);
  const int2 tiles = tiles_of(range);
  const int64_t first_row = (static_cast<int64_t>(seq) * a.kv_heads + kv_head) * all_rows + row0;
  using Warp = WarpColumns<D, S::kKeys, C, kGroups>;
  if (tiles.x >= tiles.y) {  // the whole block: nothing in sight for this split
    if (partials.behind_append) await_predecessor();
    for (int e = threadIdx.x; e < rows * a.d; e += S::kThreads) {
      const int64_t at = (first_row + e / a.d) * partials.splits + split;
      partials.o[at * a.d + e % a.d] = 0;
      if (e % a.d == 0) partials.ml[at * 2] = Warp::kNothing, partials.ml[at * 2 + 1] = 0;
    }
    return;
  }

  // A ring of K and V tiles of this warp; every tile, there or not, is a group of copies.
  C* mine = reinterpret_cast<C*>(shared + warp * S::kWarpSpace);  // [kStages, 2, kKeys, stride]
  float* my_scales = scales_sh + warp * S::kStages * 2 * S::kKeys;
  const auto fetch = [&](const C* base, int tile, int place) {
    if (tile >= tiles.y) return;
    const int first_key = tile * S::kKeys;
    C* to = mine + place * S::kTile;
    if (a.d == D && first_key + S::kKeys <= range.end) {  // whole, and its rows one after another
      constexpr int kPiece = 16 / static_cast<int>(sizeof(C)), kChunks = D / kPiece, kAll = S::kKeys * kChunks;
      const C* from = base + static_cast<int64_t>(first_key) * D + lane * kPiece;
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
      copy_rows<D, S::kKeys, 32>(to, lane, a.d, base, [&](int row) -> const C* {
        return first_key + row < range.end ? base + (first_key + row) * a.kv_token : nullptr;
      });
    }
  };
  const float* k_scales = a.k_scales + scales_at;
  const float* v_scales = a.v_scales + scales_at;
  const auto fetch_scales = [&](const float* scales, int tile, int place) {
    if constexpr (kTokenScales<C>) {
      static_assert(S::kKeys <= 32);
      const int key = tile * S::kKeys + lane;
      if (tile < tiles.y && lane < S::kKeys)
        cp_async4(my_scales + place * S::kKeys + lane, key < range.end ? scales + key : scales, key < range.end);
    }
  };
  const int first = tiles.x + warp;
  // Stages [begin, end) of the ring.
  const auto fill = [&](int begin, int end, bool with_scales) {
#pragma unroll 1
    for (int stage = begin; stage < end; ++stage) {
      const int tile = first + stage * S::kWarps;
      fetch(k, tile, 2 * stage);
      if (with_scales) fetch_scales(k_scales, tile, 2 * stage);
      cp_async_commit();
      fetch(v, tile, 2 * stage + 1);
      if (with_scales) fetch_scales(v_scales, tile, 2 * stage + 1);
      cp_async_commit();
    }
  };
  // Keys older than the new one may be read before the kernel has ended that writes the new one. Only the first stage:
  // what that kernel still has to do, and the queries, queue behind it.
  const bool early = partials.behind_append && min(first + 1, tiles.y) * S::kKeys < range.end;
  if (early) {
    fill(0, 1, false);
    if constexpr (kTokenScales<C>) {  // past the first-level cache, where a line may hold the new key's place too
      const bool mine_too = first < tiles.y && lane < S::kKeys;
      const int key = first * S::kKeys + lane;
      const float of_k = mine_too ? __ldcg(k_scales + key) : 0.f, of_v = mine_too ? __ldcg(v_scales + key) : 0.f;
      if (lane < S::kKeys) my_scales[lane] = of_k, my_scales[S::kKeys + lane] = of_v;
    }
  }
  // What the queries' addresses take is worked out before the wait.
  Warp w;
  int my_positions[kGroups][2];
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int r = 8 * j + lane / 4;
    w.q_row[j] = a.q + query_row(min(r, rows - 1));
    w.is_query[j] = r < rows;
#pragma unroll
    for (int c = 0; c < 2; ++c) my_positions[j][c] = a.len == 1 ? range.high : position_of(8 * j + lane % 4 * 2 + c);
  }
  if (partials.behind_append) await_predecessor();
  w.init(a.d);
  fill(early ? 1 : 0, S::kStages, true);
  w.finish_queries();
  if (!partials.behind_append) read_scales();

  int stage = 0;
  for (int tile = first; tile < tiles.y; tile += S::kWarps) {
    const int first_key = tile * S::kKeys;
    const bool masked = first_key + S::kKeys - 1 > range.low || (a.window > 0 && first_key <= range.high - a.window);
    const int next = tile + S::kStages * S::kWarps;
    const float* key_scales = my_scales + 2 * stage * S::kKeys;
    typename Warp::Scores s;
    cp_async_wait<2 * S::kStages - 1>();
    __syncwarp();
    w.scores(s, mine + 2 * stage * S::kTile);
    w.finish_scores(s, key_scales, score_scale, a.softcap, masked, first_key, my_positions, a.window);
    __syncwarp();  // all lanes have read these keys before they are replaced
    fetch(k, next, 2 * stage);
    fetch_scales(k_scales, next, 2 * stage);
    cp_async_commit();
    w.softmax(s);
    cp_async_wait<2 * S::kStages - 1>();
    __syncwarp();
    w.add_values(s, key_scales + S::kKeys, mine + (2 * stage + 1) * S::kTile);
    __syncwarp();
    fetch(v, next, 2 * stage + 1);
    fetch_scales(v_scales, next, 2 * stage + 1);
    cp_async_commit();
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  __syncwarp();
  w.finish_sums();

  // The warp's sums go where its own tiles were.
  constexpr int kSpace = S::kWarpSpace / sizeof(float);
  auto* o_sh = reinterpret_cast<float*>(shared);
  w.store(o_sh + warp * kSpace, S::kSumStride, value_scale);
  if (lane < 4)
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
      *reinterpret_cast<float4*>(ml_sh + (warp * S::kRows + 8 * j + 2 * lane) * 2) = {w.m[j][0], w.l[j][0], w.m[j][1],
                                                                                      w.l[j][1]};
  __syncthreads();
  merge_warps<S>(o_sh, kSpace, ml_sh, rows, a.d, [&](int row, int col, float m, float l, float2 sum) {
    if (partials.splits == 1) {
      *reinterpret_cast<uint32_t*>(a.out + query_row(row) + col) = pack_bf16(sum.x / l, sum.y / l);
      return;
    }
    const int64_t at = (first_row + row) * partials.splits + split;
    *reinterpret_cast<float2*>(partials.o + at * a.d + col) = sum;
    if (col == 0) *reinterpret_cast<float2*>(partials.ml + at * 2) = {m, l};
  });
}

// One block a query row: adds the splits in their order, a part of the threads every few of them. All loads are under
// way at once: a split without keys has left zeros.
inline constexpr int kCombineThreads = 128;
template <class C>
__global__ void __launch_bounds__(kCombineThreads)
    combine_splits_kernel(const __grid_constant__ AttentionSource<__nv_bfloat16, C> a,
                          const __grid_constant__ DecodePartials p) {
  __shared__ __align__(16) float share[kMostSplits];  // of each split in the row
  __shared__ __align__(16) float4 sums[kCombineThreads];
  allow_successor();
  const int row = blockIdx.x, tile = row / p.rows, r = row % p.rows, token_in_seq = r / p.group;
  const int64_t token = static_cast<int64_t>(tile / a.kv_heads) * a.len + token_in_seq;
  const int head = tile % a.kv_heads * p.group + r - token_in_seq * p.group;
  const float* ml = p.ml + static_cast<int64_t>(row) * p.splits * 2;
  const float* o = p.o + static_cast<int64_t>(row) * p.splits * a.d;
  const int quads = a.d / 4, parts = kCombineThreads / quads;  // parts of the threads
  const int part = threadIdx.x / quads, quad = threadIdx.x % quads;
  constexpr int kAhead = 16;
  await_predecessor();
  float4 ahead[kAhead];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int s = first + part + i * parts;
      ahead[i] =
          part < parts && s < p.splits ? *reinterpret_cast<const float4*>(o + s * a.d + quad * 4) : float4{0, 0, 0, 0};
    }
  };
  load(0);
  if (threadIdx.x < 32) {
    constexpr int kEach = kMostSplits / 32;
    float2 mine[kEach];
    float m = -INFINITY, l = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int s = threadIdx.x + 32 * i;
      mine[i] = s < p.splits ? *reinterpret_cast<const float2*>(ml + 2 * s) : float2{-INFINITY, 0.f};
      m = fmaxf(m, mine[i].x);
    }
    for (int lane = 16; lane > 0; lane /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, lane));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      mine[i].x = exp2_fast(mine[i].x - m);
      l += mine[i].x * mine[i].y;
    }
    for (int lane = 16; lane > 0; lane /= 2) l += __shfl_xor_sync(0xffffffffu, l, lane);
#pragma unroll
    for (int i = 0; i < kEach; ++i) share[threadIdx.x + 32 * i] = mine[i].x / l;
  }
  __syncthreads();
  float4 sum = {0, 0, 0, 0};
  for (int first = 0; first < p.splits; first += kAhead * parts) {
    if (first > 0) load(first);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float by = share[min(first + part + i * parts, kMostSplits - 1)];  // of zeros past the last split
      sum.x += by * ahead[i].x, sum.y += by * ahead[i].y;
      sum.z += by * ahead[i].z, sum.w += by * ahead[i].w;
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (part > 0) return;
  for (int i = 1; i < parts; ++i) {
    const float4 more = sums[i * quads + quad];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  uint2 packed = {pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)};
  *reinterpret_cast<uint2*>(a.out + (token * a.heads + head) * a.d + quad * 4) = packed;
}

// Splits of a launch: as many blocks as run at once, but never fewer keys than one round of the warps; and none where
// every multiprocessor has a block already and few keys, as adding splits takes longer than they save.
template <class S>
int decode_splits(int sms, int64_t tiles, int64_t keys) {
  constexpr int64_t kFewKeys = 2048;
  if (keys <= kFewKeys && tiles >= sms * 3 / 4) return 1;
  const int64_t wanted = S::kBlocks * sms / tiles;
  const int64_t most = (keys + S::kKeys * S::kWarps - 1) / (S::kKeys * S::kWarps);
  return static_cast<int>(std::max<int64_t>(1, std::min({wanted, most, int64_t{kMostSplits}})));
}

template <int D, class C, int kGroups>
void launch_decode_of(CudaState& s, const AttentionSource<__nv_bfloat16, C>& a, bool behind_append) {
  using S = DecodeShape<D, C, kGroups>;
  FEWBIT_ASSERT(a.kv_token == a.d);  // a tile of the cache is one piece
  auto* kernel = decode_kernel<D, C, kGroups>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  const int rows = a.len * (a.heads / a.kv_heads), row_tiles = (rows + S::kRows - 1) / S::kRows;
  const int64_t tiles = static_cast<int64_t>(a.seqs) * a.kv_heads * row_tiles;
  DecodePartials p{.ml = nullptr,
                   .o = nullptr,
                   .splits = decode_splits<S>(s.sms(), tiles, a.keys),
                   .group = a.heads / a.kv_heads,
                   .rows = rows,
                   .row_tiles = row_tiles,
                   .behind_append = behind_append && a.len == 1};
  const int64_t all_rows = static_cast<int64_t>(a.seqs) * a.kv_heads * rows;
  if (p.splits > 1) {
    p.o = s.scratch_of<float>(all_rows * p.splits * (a.d + 2));  // first: its rows are read 16 bytes at a time
    p.ml = p.o + all_rows * p.splits * a.d;
  }
  launch_overlapping(s, kernel, dim3(p.splits, a.kv_heads * row_tiles, a.seqs), dim3(S::kThreads), S::kShared, a, p);
  if (p.splits > 1)
    launch_overlapping(s, combine_splits_kernel<C>, dim3(static_cast<unsigned>(all_rows)), dim3(kCombineThreads), 0, a,
                       p);
}

template <int D, class C>
void launch_decode(CudaState& s, const AttentionSource<__nv_bfloat16, C>& a, bool behind_append) {
  if (a.len * (a.heads / a.kv_heads) <= 8)
    launch_decode_of<D, C, 1>(s, a, behind_append);
  else
    launch_decode_of<D, C, 2>(s, a, behind_append);
}

}  // namespace fewbit::cuda

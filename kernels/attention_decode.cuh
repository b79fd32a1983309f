#pragma once
// Attention of few query rows over the cache (decode), bf16 queries. The query heads that share a kv head, for all
// new tokens, are the 16 rows of one tile, so K and V are read once for all of them. The keys in sight are
// cut into `splits` equal runs, one a block, and inside a block the warps take 16 keys (32 of codes) in turn,
// each with its own two stages of shared memory and no barrier. The number of splits is fixed by the shapes; how many keys
// each gets follows from the positions on the device, so a recorded launch serves every position. Every block
// leaves (m, l, O) in f32; a second kernel adds them in the order of the splits. Bytes: the keys and values
// in sight, once.
#include "kernels/attention_tile.cuh"
#include "kernels/launch.cuh"

namespace fewbit::cuda {

inline constexpr int kMostSplits = 64;

struct DecodePartials {
  float* ml;  // [rows of all tiles, splits, 2]: maximum (base 2), sum
  float* o;   // [rows of all tiles, splits, d]
  int splits;
};

template <int D, class C>
struct DecodeShape {
  static constexpr int kRows = 16, kKeys = kIsCode<C> ? 32 : 16;
  static constexpr int kWarps = D <= 128 ? 4 : 2, kThreads = 32 * kWarps;
  static constexpr int kStages = 2;
  static constexpr int kQ = kRows * kRowStride<__nv_bfloat16, D>;  // values
  static constexpr int kTile = kKeys * kRowStride<C, D>;           // values of a warp's K or V tile
  static constexpr int kWarpSpace = 2 * kStages * kTile;           // values
  static constexpr int kScales = kTokenScales<C> ? kWarps * kStages * 2 * kKeys : 0;
  // Q lies where the tiles come to lie if it moves to registers first.
  static constexpr size_t kTilesAt = WarpAttention<D, kKeys, C>::kKeepQ ? 0 : sizeof(__nv_bfloat16) * kQ;
  static constexpr size_t kShared = kTilesAt + sizeof(C) * kWarps * kWarpSpace + sizeof(float) * kScales;
  static constexpr int kBlocks = D <= 128 ? 3 : 2;  // on a multiprocessor
  static_assert(sizeof(C) * kWarpSpace >= sizeof(float) * kRows * D, "merging fits");
};

// Adds the warps' states; `o_sh` [kWarps, 16, D] and `ml_sh` [kWarps, 16, 2] hold them. Rows of the tile
// below `rows`.
template <int D, class C>
__device__ __forceinline__ void merge_warps(const float* o_sh, const float* ml_sh, int rows, int d,
                                            const DecodePartials& p, int64_t first_row, int split) {
  using S = DecodeShape<D, C>;
  for (int e = threadIdx.x; e < rows * d; e += S::kThreads) {
    const int row = e / d, col = e % d;
    float m = -INFINITY, l = 0, o = 0;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) m = fmaxf(m, ml_sh[(w * S::kRows + row) * 2]);
    const float about = m == -INFINITY ? 0.f : m;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float weight = exp2_fast(ml_sh[(w * S::kRows + row) * 2] - about);
      l += weight * ml_sh[(w * S::kRows + row) * 2 + 1];
      o += weight * o_sh[(w * S::kRows + row) * D + col];
    }
    const int64_t at = (first_row + row) * p.splits + split;
    p.o[at * d + col] = o;
    if (col == 0) {
      p.ml[at * 2] = m;
      p.ml[at * 2 + 1] = l;
    }
  }
}

// Grid: splits x (kv_heads * row tiles) x sequences.
template <int D, class C>
__global__ void __launch_bounds__(DecodeShape<D, C>::kThreads, DecodeShape<D, C>::kBlocks)
    decode_kernel(const __grid_constant__ AttentionSource<__nv_bfloat16, C> a,
                  const __grid_constant__ DecodePartials partials) {
  using S = DecodeShape<D, C>;
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float ml_sh[S::kWarps * S::kRows * 2];
  allow_successor();
  await_predecessor();
  auto* q_sh = reinterpret_cast<__nv_bfloat16*>(shared);       // [16, stride]
  auto* kv_sh = reinterpret_cast<C*>(shared + S::kTilesAt);    // [kWarps, kStages, 2, kKeys, stride]
  auto* scales_sh = reinterpret_cast<float*>(kv_sh + S::kWarps * S::kWarpSpace);  // [kWarps, kStages, 2, kKeys]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = a.heads / a.kv_heads, all_rows = a.len * group;
  const int row_tiles = (all_rows + S::kRows - 1) / S::kRows;
  const int kv_head = blockIdx.y / row_tiles, row0 = blockIdx.y % row_tiles * S::kRows, seq = blockIdx.z;
  const int split = blockIdx.x, rows = min(S::kRows, all_rows - row0);
  const C* k = a.k + seq * a.kv_seq + kv_head * a.kv_head;
  const C* v = a.v + seq * a.kv_seq + kv_head * a.kv_head;
  const int64_t scales_at = a.scales_of(seq, kv_head);

  // Row r of the tile is head (row0 + r) % group of the group, for new token (row0 + r) / group.
  const auto position_of = [&](int r) {
    return r < rows ? a.positions[static_cast<int64_t>(seq) * a.len + (row0 + r) / group] : -1;
  };
  const KeyRange range = key_range(position_of(lane), -1, a.window, a.keys);
  const int my_positions[2] = {position_of(lane / 4), position_of(lane / 4 + 8)};

  // Key tiles of this block, [first, last): whole rounds of the warps, as even as that allows.
  const int begin = range.begin / S::kKeys, end = (range.end + S::kKeys - 1) / S::kKeys;
  const int rounds = (end - begin + S::kWarps - 1) / S::kWarps;
  const auto round_of = [&](int i) {
    return static_cast<int>(static_cast<int64_t>(rounds) * i / partials.splits);
  };
  const int first = begin + round_of(split) * S::kWarps;
  const int last = min(end, begin + round_of(split + 1) * S::kWarps);
  const int64_t first_row = (static_cast<int64_t>(seq) * a.kv_heads + kv_head) * all_rows + row0;
  if (first >= last) {  // the whole block: nothing in sight for this split
    for (int r = threadIdx.x; r < rows; r += S::kThreads) {
      partials.ml[((first_row + r) * partials.splits + split) * 2] = -INFINITY;
      partials.ml[((first_row + r) * partials.splits + split) * 2 + 1] = 0;
    }
    return;
  }

  copy_rows<D, S::kRows, S::kThreads>(q_sh, threadIdx.x, a.d, a.q, [&](int r) -> const __nv_bfloat16* {
    if (r >= rows) return nullptr;
    const int64_t token = static_cast<int64_t>(seq) * a.len + (row0 + r) / group;
    return a.q + (token * a.heads + kv_head * group + (row0 + r) % group) * a.d;
  });
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  WarpAttention<D, S::kKeys, C> w;
  w.init(q_sh);
  if constexpr (S::kTilesAt == 0) __syncthreads();  // all warps have read Q

  C* mine = kv_sh + warp * S::kWarpSpace;
  float* my_scales = scales_sh + warp * S::kStages * 2 * S::kKeys;
  const auto fetch = [&](int tile, int stage) {
    if (tile < last) {
      const auto key_row = [&](const C* base) {
        return [=, &range](int row) -> const C* {
          const int key = tile * S::kKeys + row;
          return key < range.end ? base + key * a.kv_token : nullptr;
        };
      };
      copy_rows<D, S::kKeys, 32>(mine + stage * 2 * S::kTile, lane, a.d, k, key_row(k));
      copy_rows<D, S::kKeys, 32>(mine + (stage * 2 + 1) * S::kTile, lane, a.d, v, key_row(v));
      if constexpr (kTokenScales<C>)
        copy_scales<S::kKeys, 32>(my_scales + stage * 2 * S::kKeys, lane, a.k_scales + scales_at,
                                  a.v_scales + scales_at, tile * S::kKeys, range.end);
    }
    cp_async_commit();
  };
  const float score_scale = a.scale * static_scale<C>(a.k_scales, scales_at);
  int stage = 0;
  fetch(first + warp, 0);
  for (int tile = first + warp; tile < last; tile += S::kWarps) {
    fetch(tile + S::kWarps, stage ^ 1);
    cp_async_wait<1>();
    __syncwarp();
    const int first_key = tile * S::kKeys;
    const bool masked =
        first_key + S::kKeys - 1 > range.low || (a.window > 0 && first_key <= range.high - a.window);
    float s[S::kKeys / 8][4];
    const float* key_scales = my_scales + stage * 2 * S::kKeys;
    w.scores(s, mine + stage * 2 * S::kTile);
    w.finish_scores(s, key_scales, score_scale, a.softcap, masked, first_key, my_positions, a.window);
    w.softmax(s);
    w.add_values(s, key_scales + S::kKeys, mine + (stage * 2 + 1) * S::kTile);
    __syncwarp();  // all lanes have read this stage before it is filled again
    stage ^= 1;
  }
  cp_async_wait<0>();
  w.finish_sums();
  __syncthreads();

  auto* o_sh = reinterpret_cast<float*>(kv_sh);  // [kWarps, 16, D]
  const float value_scale = static_scale<C>(a.v_scales, scales_at);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp * S::kRows + lane / 4 + 8 * r;
    w.for_pairs(r, [&](int col, float x, float y) {
      *reinterpret_cast<float2*>(o_sh + row * D + col) = {x * value_scale, y * value_scale};
    });
    if (lane % 4 == 0) {
      ml_sh[row * 2] = w.m[r];
      ml_sh[row * 2 + 1] = w.l[r];
    }
  }
  __syncthreads();
  merge_warps<D, C>(o_sh, ml_sh, rows, a.d, partials, first_row, split);
}

// One block a query row: adds the splits in their order.
template <class C>
__global__ void __launch_bounds__(128)
    combine_splits_kernel(const __grid_constant__ AttentionSource<__nv_bfloat16, C> a,
                                      const __grid_constant__ DecodePartials p) {
  allow_successor();
  await_predecessor();
  const int group = a.heads / a.kv_heads, all_rows = a.len * group;
  const int64_t row = blockIdx.x, tile = row / all_rows;
  const int r = static_cast<int>(row % all_rows);
  const int64_t token = tile / a.kv_heads * a.len + r / group, head = tile % a.kv_heads * group + r % group;
  const float* ml = p.ml + row * p.splits * 2;
  const float* o = p.o + row * p.splits * a.d;
  __shared__ float share[kMostSplits];  // of each split in the row
  if (threadIdx.x < 32) {
    float m = -INFINITY, l = 0;
    for (int s = threadIdx.x; s < p.splits; s += 32) m = fmaxf(m, ml[2 * s]);
    for (int lane = 16; lane > 0; lane /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, lane));
    for (int s = threadIdx.x; s < p.splits; s += 32) l += exp2_fast(ml[2 * s] - m) * ml[2 * s + 1];
    for (int lane = 16; lane > 0; lane /= 2) l += __shfl_xor_sync(0xffffffffu, l, lane);
    for (int s = threadIdx.x; s < p.splits; s += 32)
      share[s] = ml[2 * s] == -INFINITY ? 0.f : exp2_fast(ml[2 * s] - m) / l;
  }
  __syncthreads();
  for (int col = threadIdx.x; col < a.d; col += blockDim.x) {
    float sum = 0;
#pragma unroll 8
    for (int s = 0; s < p.splits; ++s)  // what a split without keys has not written is not read
      sum += share[s] == 0 ? 0.f : share[s] * o[static_cast<int64_t>(s) * a.d + col];
    a.out[(token * a.heads + head) * a.d + col] = __float2bfloat16_rn(sum);
  }
}

// Splits of a launch: as many blocks as run at once, but never fewer keys than one round of the warps.
template <int D, class C>
int decode_splits(const CudaState& s, const AttentionSource<__nv_bfloat16, C>& a, int row_tiles) {
  using S = DecodeShape<D, C>;
  const int64_t tiles = static_cast<int64_t>(a.seqs) * a.kv_heads * row_tiles;
  const int64_t wanted = S::kBlocks * s.sms() / tiles;
  const int64_t most = (a.keys + S::kKeys * S::kWarps - 1) / (S::kKeys * S::kWarps);
  return static_cast<int>(std::max<int64_t>(1, std::min({wanted, most, int64_t{kMostSplits}})));
}

template <int D, class C>
void launch_decode(CudaState& s, const AttentionSource<__nv_bfloat16, C>& a) {
  using S = DecodeShape<D, C>;
  auto* kernel = decode_kernel<D, C>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  const int rows = a.len * (a.heads / a.kv_heads), row_tiles = (rows + S::kRows - 1) / S::kRows;
  DecodePartials p{.ml = nullptr, .o = nullptr, .splits = decode_splits<D, C>(s, a, row_tiles)};
  const int64_t partials = static_cast<int64_t>(a.seqs) * a.kv_heads * rows * p.splits;
  p.ml = s.scratch_of<float>(partials * (a.d + 2));
  p.o = p.ml + partials * 2;
  launch_overlapping(s, kernel, dim3(p.splits, a.kv_heads * row_tiles, a.seqs), dim3(S::kThreads), S::kShared, a, p);
  launch_overlapping(s, combine_splits_kernel<C>, dim3(static_cast<unsigned>(a.seqs * a.kv_heads * rows)), dim3(128), 0,
                     a, p);
}

}  // namespace fewbit::cuda

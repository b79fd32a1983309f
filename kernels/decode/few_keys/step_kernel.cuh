#pragma once
// rope_append() and attention of one new token a sequence in one launch, over a cache of bf16: the kernel of
// kernels/attention/attention_decode.cuh with what comes before it inside. A block turns the query heads of its kv
// head, the new key too where its split of the keys ends with it, and attends; of q, k, v and the cache only the new
// rows of the cache are written. Positions, older keys, angles and sinks do not come from the kernel before this one:
// they are on their way before it ends, so that behind it stand one trip for q, k and v and the arithmetic alone. The
// bits are those of the two launches: the same tiles in the same warps, and the new key is rounded to the cache's type
// before it meets a query.
//
// Nearly all of the code runs once, and comes from memory then: one loop turns queries and keys.
#include "kernels/attention/attention_decode.cuh"
#include "kernels/attention/cache_place.cuh"
#include "kernels/model/norm.cuh"
#include "kernels/model/rope.cuh"

namespace fewbit::cuda::few_keys {

using namespace attention_decode;

// The configuration of attention_decode.cuh with warps besides those that attend: they turn heads and merge sums.
template <int D, bool kPages>
struct StepConfig : Config<D, __nv_bfloat16, 1, kPages> {
  using Base = Config<D, __nv_bfloat16, 1, kPages>;
  // With heads of up to 64 values registers and shared memory of a block fit beside those of a product of bf16 weights.
  static constexpr int kThreads = D <= 64 ? 256 : D <= 128 ? 160 : 128;
  static constexpr int kAllWarps = kThreads / 32;
  static constexpr int kHeads = Base::kRows + 2;  // rows of them: queries, the new key, the new value
  static constexpr int kHeadsOfWarp = (kHeads + kAllWarps - 1) / kAllWarps;
  static constexpr int kHeadStride = D + 8;  // values: eight rows of queries fall into different banks
  // In shared memory behind the rings: heads, then cosines and sines.
  static constexpr size_t kHeadsAt = Base::kShared;
  static constexpr size_t kTableAt = kHeadsAt + kHeads * kHeadStride * sizeof(__nv_bfloat16);
  static constexpr size_t kShared = kTableAt + D * sizeof(float);
};

// What a launch has besides its attention's operands.
struct NewRows {
  const __nv_bfloat16 *k, *v;  // [sequences, kv_heads * d]
  __nv_bfloat16 *k_cache, *v_cache;
  const float* inv_freq;  // [half]
  int half;
  float rope_scale;
  const __nv_bfloat16 *q_norm, *k_norm;  // weights of the heads' norms, or null
  float eps, offset;
  CachePlace place;
  bool settled;  // what does not come from the kernel before this one may be read before that ends
};

// Rows of a block's heads in shared memory: queries, then the new key and the new value where the block has them.
template <class S>
struct NewHeads {
  const Block<S>& block;
  const NewRows& rows;
  __nv_bfloat16* at;
  const float* table;  // cosines and sines of the position
  int64_t queries_at;  // of the first query, in q and in the result
  int count;           // of heads
  int64_t cache_row;   // of the new key; -1: it goes nowhere

  __device__ __forceinline__ __nv_bfloat16* row(int i) const { return at + i * S::kHeadStride; }
  __device__ __forceinline__ __nv_bfloat16* place_of(int i) const {
    return row(i < block.rows ? i : i - block.rows + S::kRows);
  }
  __device__ __forceinline__ const __nv_bfloat16* new_row(bool of_value) const { return row(S::kRows + of_value); }
  __device__ __forceinline__ const __nv_bfloat16* source_of(int i) const {
    const auto& a = block.a;
    if (i < block.rows) return a.q + queries_at + i * a.d;
    return (i == block.rows ? rows.k : rows.v) + (static_cast<int64_t>(block.seq) * a.kv_heads + block.kv_head) * a.d;
  }
  // Brings all heads in one trip.
  __device__ __forceinline__ void load() const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool has = lane * 8 < block.a.d;
    uint4 held[S::kHeadsOfWarp];
#pragma unroll
    for (int e = 0; e < S::kHeadsOfWarp; ++e)
      if (const int i = warp + e * S::kAllWarps; i < count && has)
        held[e] = __ldcg(reinterpret_cast<const uint4*>(source_of(i) + lane * 8));
#pragma unroll
    for (int e = 0; e < S::kHeadsOfWarp; ++e)
      if (const int i = warp + e * S::kAllWarps; i < count && has)
        *reinterpret_cast<uint4*>(place_of(i) + lane * 8) = held[e];
    __syncwarp();
  }
  // The heads that this warp has loaded, normed and turned where they lie; the new key and value go to the cache.
  __device__ __forceinline__ void finish() const {
    const int lane = threadIdx.x % 32, d = block.a.d;
    const bool has = lane * 8 < d;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < count; i += S::kAllWarps) {
      __nv_bfloat16* const head = place_of(i);
      const __nv_bfloat16* const weight = i < block.rows ? rows.q_norm : i == block.rows ? rows.k_norm : nullptr;
      if (weight) {
        Vec<__nv_bfloat16, 8> v{};
        if (has) v = load_vec<__nv_bfloat16, 8>(head + lane * 8);
        const float inverse = inverse_root(warp_sum(squares<__nv_bfloat16, 8>(v, 0.f)), d, rows.eps);
        if (has)
          store_vec(head + lane * 8,
                    scaled<__nv_bfloat16, 8>(v, load_vec<__nv_bfloat16, 8>(weight + lane * 8), inverse, rows.offset));
        __syncwarp();
      }
      if (i <= block.rows) {
#pragma unroll 1
        for (int p = lane; p < rows.half; p += 32) {
          const float c = table[p], sine = table[rows.half + p], x = to_f32(head[p]), y = to_f32(head[rows.half + p]);
          head[p] = from_f32<__nv_bfloat16>(turned_first(x, y, c, sine));
          head[rows.half + p] = from_f32<__nv_bfloat16>(turned_second(x, y, c, sine));
        }
        __syncwarp();
      }
      if (i >= block.rows && cache_row >= 0 && block.row0 == 0 && has)
        *reinterpret_cast<uint4*>((i == block.rows ? rows.k_cache : rows.v_cache) + cache_row * d + lane * 8) =
            *reinterpret_cast<const uint4*>(head + lane * 8);
    }
  }
  // Puts the new key, or value, where a tile has room for it.
  __device__ __forceinline__ void complete(__nv_bfloat16* tile, int position, bool of_value) const {
    const int lane = threadIdx.x % 32;
    if (lane * 8 < block.a.d)
      *reinterpret_cast<uint4*>(tile + position % S::kKeys * kRowStride<__nv_bfloat16, S::kDim> + lane * 8) =
          *reinterpret_cast<const uint4*>(new_row(of_value) + lane * 8);
    __syncwarp();
  }
};

// A warp's first tile that its ring has no room for yet, into the L2: a window of two rounds that does not begin with a
// tile has one.
template <class S>
__device__ __forceinline__ void ask_next_tile(const KeyRing<S>& ring, int lane) {
  if constexpr (!S::kPaged) {
    const auto& a = ring.block.a;
    const int tile = ring.first + S::kStages * S::kWarps;
    if (tile >= ring.end) return;
    const int64_t begin = static_cast<int64_t>(tile) * S::kKeys * a.d;
    const int values = min(S::kKeys, ring.range.end - tile * S::kKeys) * a.d;
#pragma unroll 1
    for (int i = lane * 64; i < values; i += 32 * 64) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(ring.block.k + begin + i));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(ring.block.v + begin + i));
    }
  }
}

// The keys of the split by this warp's queries; leaves the sums for merge_warps().
template <class S>
__device__ __forceinline__ void attend_step(KeyRing<S>& ring, const NewHeads<S>& heads, int position, uint8_t* shared,
                                            float* ml_sh) {
  const auto& a = heads.block.a;
  const int lane = threadIdx.x % 32, last = heads.block.rows - 1;
  typename S::Warp w;
  int positions[S::kRowGroups][2];
#pragma unroll
  for (int j = 0; j < S::kRowGroups; ++j) {
    const int r = 8 * j + lane / 4;
    w.q_row[j] = heads.row(min(r, last));
    w.is_query[j] = r <= last;
    positions[j][0] = positions[j][1] = position;
  }
  w.init(a.d);
  w.finish_queries(a.scale, a.softcap);
  const int newest = position / S::kKeys;
  attend(ring, w, positions, a.scale, [&](int tile, __nv_bfloat16* rows, bool of_values) {
    if (tile == newest) heads.complete(rows, position, of_values);
  });
  w.finish_sums();
  store_warp<S>(w, shared, ml_sh, 1.f);
}

// Grid: splits x (kv_heads * row tiles) x sequences, as of decode_kernel.
template <class S>
__global__ void __launch_bounds__(S::kThreads)
    step_kernel(const __grid_constant__ typename S::Source a, const __grid_constant__ Job job,
                const __grid_constant__ NewRows rows) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(16) float ml_sh[S::kWarps * S::kRows * 2];
  __shared__ float sinks[S::kRows];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Block<S> block(a, job);
  const int first_head = block.kv_head * job.group + block.row0;
  if (!rows.settled) await_predecessor();
  // All of them on their way together.
  const int position = block.read_position_early();
  const float frequency = threadIdx.x < rows.half ? rows.inv_freq[threadIdx.x] : 0.f;
  const float sink = a.sinks && threadIdx.x < block.rows ? a.sinks[first_head + threadIdx.x] : 0.f;
  for (const __nv_bfloat16* weight : {rows.q_norm, rows.k_norm})
    if (weight && lane * 8 < a.d) asm volatile("prefetch.global.L1 [%0];" ::"l"(weight + lane * 8));
  const KeyRange range = block.keys_in_sight(position);
  const int2 tiles = block.tiles_of(range);
  if (tiles.x >= tiles.y) {  // the whole block: nothing in sight for this split
    allow_successor();
    await_predecessor();
    return block.store_nothing();
  }
  const KeyRange older{range.low, range.high, range.begin, position};
  KeyRing<S> ring(block, older, tiles, shared);
  if (warp < S::kWarps) {
    ring.fill(0, S::kStages, true);
    ask_next_tile(ring, lane);
  }
  float* table = reinterpret_cast<float*>(shared + S::kTableAt);
  if (threadIdx.x < rows.half) {  // as rope_angles() makes them
    float sine, cosine;
    sincosf(static_cast<float>(position) * frequency, &sine, &cosine);
    table[threadIdx.x] = cosine * rows.rope_scale;
    table[rows.half + threadIdx.x] = sine * rows.rope_scale;
  }
  if (threadIdx.x < block.rows) sinks[threadIdx.x] = sink;
  const bool newest = tiles.y * S::kKeys >= range.end;
  const NewHeads<S> heads{
      .block = block,
      .rows = rows,
      .at = reinterpret_cast<__nv_bfloat16*>(shared + S::kHeadsAt),
      .table = table,
      .queries_at = (static_cast<int64_t>(block.seq) * a.heads + first_head) * a.d,
      .count = block.rows + (newest ? 2 : 0),
      .cache_row = newest ? rows.place.row(block.seq, block.kv_head, a.kv_heads, position) : -1,
  };
  __syncthreads();
  // Not earlier: the first weights of the next kernel would be in the way of what is asked for above.
  allow_successor();
  await_predecessor();
  heads.load();
  heads.finish();
  __syncthreads();
  if (warp < S::kWarps) attend_step(ring, heads, position, shared, ml_sh);
  __syncthreads();
  merge_warps<S>(reinterpret_cast<const float*>(shared), ml_sh, block.rows, a.d,
                 [&](int row, int col, float m, float l, float2 sum) {
                   if (job.splits == 1) {
                     l = with_sink(l, m, a.sinks ? sinks : nullptr, row);
                     __nv_bfloat16* to = a.out + heads.queries_at + row * a.d + col;
                     *reinterpret_cast<uint32_t*>(to) = pack_bf16(sum.x / l, sum.y / l);
                     return;
                   }
                   const int64_t at = block.partial_of(row);
                   *reinterpret_cast<float2*>(job.o + at * a.d + col) = sum;
                   if (col == 0) *reinterpret_cast<float2*>(job.ml + at * 2) = {m, l};
                 });
}

}  // namespace fewbit::cuda::few_keys

#pragma once
// Attention of many query rows (prefill, calibration) on tensor cores of compute capability 8.0, bf16 queries: the
// forward pass of FlashAttention-2 (Dao, 2023). A block of four warps has 64 query rows of one head and walks over the
// keys that any of them sees, a tile at a time: while one tile is worked on, the next is copied. Tiles outside of the
// causal band or the window are never read. K and V come from the activations or from the cache, as the strides in
// AttentionSource say, or from pages. Every 64 query rows of a head read K and V once, mostly from L2.
#include "kernels/attention/attention_source.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda::attention_flash {

template <int D, class C>
struct Config {
  static constexpr int kRows = 64, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kKeys = D <= 128 ? 64 : 32;  // 99 KiB of shared memory, what compute capability 8.6 has
  static constexpr int kStride = kRowStride<__nv_bfloat16, D>;  // of Q
  static constexpr int kTile = kKeys * kRowStride<C, D>;        // values of a K or a V tile
  static constexpr int kScales = kTokenScales<C> ? 2 * 2 * kKeys : 0;
  static constexpr size_t kShared =
      sizeof(__nv_bfloat16) * kRows * kStride + sizeof(C) * 4 * kTile + sizeof(float) * kScales;
};

// Stores the warp's 16 rows, from row `warp_row` of the block on. They go through the warp's own rows of q_sh, so that
// every lane stores 16 neighbouring bytes. rows: those of the block that exist; query_row(row): offset in out of a row
// of the block.
template <class S, class Warp, class F>
__device__ __forceinline__ void store_rows(const Warp& w, __nv_bfloat16* q_sh, __nv_bfloat16* out, int warp_row,
                                           int rows, int d, float value_scale, F&& query_row) {
  const int lane = threadIdx.x % 32;
  __nv_bfloat16* own_rows = q_sh + warp_row * S::kStride;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float factor = value_scale / w.l[r];
    w.for_pairs(r, [&](int col, float x, float y) {
      *reinterpret_cast<uint32_t*>(own_rows + (lane / 4 + 8 * r) * S::kStride + col) =
          pack_bf16(x * factor, y * factor);
    });
  }
  __syncwarp();
  const int chunks = d / 8;
  for (int c = lane; c < 16 * chunks; c += 32) {
    const int row = warp_row + c / chunks, col = c % chunks * 8;
    if (row < rows)
      *reinterpret_cast<uint4*>(out + query_row(row) + col) =
          *reinterpret_cast<const uint4*>(q_sh + row * S::kStride + col);
  }
}

template <class C, bool kPages>
using Source = std::conditional_t<kPages, PagedSource<__nv_bfloat16, C>, AttentionSource<__nv_bfloat16, C>>;

template <class C, bool kPages, int kRows>
__device__ __forceinline__ auto tile_of(const Source<C, kPages>& a, int kv_head) {
  if constexpr (kPages) {
    const int4 tile = a.tiles[blockIdx.x];
    return PagedTile<__nv_bfloat16, C>(a, tile.x, tile.y, a.tables_of(tile.z), kv_head);
  } else {  // the rows with most keys start first
    return RowTile<__nv_bfloat16, C>(a, blockIdx.z, (gridDim.x - 1 - blockIdx.x) * kRows, kv_head);
  }
}

// Grid: tiles of 64 query rows x heads x sequences; over pages the tiles of all sequences x heads.
template <int D, class C, bool kPages>
__global__ void __launch_bounds__(Config<D, C>::kThreads) flash_kernel(const __grid_constant__ Source<C, kPages> a) {
  using S = Config<D, C>;
  extern __shared__ __align__(128) uint8_t shared[];
  auto* q_sh = reinterpret_cast<__nv_bfloat16*>(shared);            // [kRows, kStride]
  auto* k_sh = reinterpret_cast<C*>(q_sh + S::kRows * S::kStride);  // [2, kKeys, stride]
  auto* v_sh = k_sh + 2 * S::kTile;                                 // [2, kKeys, stride]
  auto* scales_sh = reinterpret_cast<float*>(v_sh + 2 * S::kTile);  // [2, 2, kKeys]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.y;
  const auto block = tile_of<C, kPages, S::kRows>(a, head / (a.heads / a.kv_heads));
  const auto position_of = [&](int row) { return block.position_of(row); };
  const auto query_row = [&](int row) { return (static_cast<int64_t>(block.first_row + row) * a.heads + head) * a.d; };
  const KeyRange range = key_range(position_of(lane), position_of(lane + 32), a.window, a.keys);
  const int own_positions[2] = {position_of(warp * 16 + lane / 4), position_of(warp * 16 + lane / 4 + 8)};

  const auto load_tile = [&](int tile) {
    const int stage = tile % 2;
    const auto key_row = [&](const C* base) {
      return [=, &range, &block](int row) -> const C* {
        const int key = tile * S::kKeys + row;
        return key < range.end ? block.key_row(base, key) : nullptr;
      };
    };
    const auto scale_of = [&](int key) -> int64_t { return key < range.end ? block.scale_of(key) : -1; };
    copy_rows<D, S::kKeys, S::kThreads>(k_sh + stage * S::kTile, threadIdx.x, a.d, block.k, key_row(block.k));
    copy_rows<D, S::kKeys, S::kThreads>(v_sh + stage * S::kTile, threadIdx.x, a.d, block.v, key_row(block.v));
    if constexpr (kTokenScales<C>)
      copy_scales<S::kKeys, S::kThreads>(scales_sh + stage * 2 * S::kKeys, threadIdx.x, a.k_scales + block.scales_at,
                                         a.v_scales + block.scales_at, tile * S::kKeys, scale_of);
    cp_async_commit();
  };

  const int first = range.begin / S::kKeys, last = (range.end + S::kKeys - 1) / S::kKeys;
  copy_rows<D, S::kRows, S::kThreads>(q_sh, threadIdx.x, a.d, a.q, [&](int row) -> const __nv_bfloat16* {
    return row < block.rows ? a.q + query_row(row) : nullptr;
  });
  load_tile(first);
  cp_async_wait<0>();
  __syncthreads();
  WarpAttention<D, S::kKeys, C> w;
  w.init(q_sh + warp * 16 * S::kStride);
  const float score_scale = a.scale * static_scale<C>(a.k_scales, block.scales_at);

  for (int tile = first; tile < last; ++tile) {
    cp_async_wait<0>();
    __syncthreads();  // this tile is there for all warps, and all are done with the one before
    if (tile + 1 < last) load_tile(tile + 1);
    const int first_key = tile * S::kKeys;
    const bool masked = first_key + S::kKeys - 1 > range.low || (a.window > 0 && first_key <= range.high - a.window);
    float s[S::kKeys / 8][4];
    const float* key_scales = scales_sh + tile % 2 * 2 * S::kKeys;
    w.scores(s, k_sh + tile % 2 * S::kTile);
    w.finish_scores(s, key_scales, score_scale, a.softcap, masked, first_key, own_positions, a.window);
    w.softmax(s);
    w.add_values(s, key_scales + S::kKeys, v_sh + tile % 2 * S::kTile);
  }
  w.finish_sums();
  __syncwarp();  // the warp's rows of Q have been read by all lanes
  store_rows<S>(w, q_sh, a.out, warp * 16, block.rows, a.d, static_scale<C>(a.v_scales, block.scales_at), query_row);
}

template <int D, class C, bool kPages>
void launch_grid(CudaState& s, const Source<C, kPages>& a, dim3 grid) {
  using S = Config<D, C>;
  auto* kernel = flash_kernel<D, C, kPages>;
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  kernel<<<grid, S::kThreads, S::kShared, s.stream>>>(a);
  FEWBIT_CUDA_LAUNCHED();
}
template <int D, class C>
void launch(CudaState& s, const AttentionSource<__nv_bfloat16, C>& a) {
  constexpr int kRows = Config<D, C>::kRows;
  launch_grid<D, C, false>(s, a, dim3((a.len + kRows - 1) / kRows, a.heads, a.seqs));
}
template <int D, class C>
void launch(CudaState& s, const PagedSource<__nv_bfloat16, C>& a, int tiles) {
  static_assert(Config<D, C>::kRows == kTileRows);
  launch_grid<D, C, true>(s, a, dim3(tiles, a.heads));
}

}  // namespace fewbit::cuda::attention_flash

#pragma once
// The ring through which a warp of append_attention.cuh gets its keys where the copy engine brings them, and what it
// has in common with attention_decode::KeyRing, whose pieces the lanes ask for.
#include "kernels/decode/append_attention_job.cuh"
#include "kernels/device/hopper.cuh"

namespace fewbit::cuda::append_decode {

#ifdef FEWBIT_SM90A
inline constexpr bool kHasBoxes = true;

// Of each stage a K tile and a V tile, in the engine's swizzle, and the words of their keys. The warp's first lane asks
// for them.
template <class S>
struct BoxRing {
  using C = typename S::Stored;
  const Block<S>& block;
  const KeyRange& range;
  const Maps& maps;
  int first, end, row0;  // this warp's first tile, the end of the block's; the first key's row of the whole cache
  uint8_t* tiles;        // [kStages, 2, kTile]
  float* words;          // [kStages, 2, kTileScales]
  uint64_t* full;        // [kStages, 2]

  __device__ __forceinline__ BoxRing(const Block<S>& of, const KeyRange& in_sight, int2 tiles_of_block, uint8_t* shared,
                                     uint64_t* barriers, const Maps& of_cache)
      : block(of), range(in_sight), maps(of_cache) {
    // From another lane, so that the compiler sees that the warp has one such number and does not part at its loops.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    first = tiles_of_block.x + warp, end = tiles_of_block.y;
    row0 = (block.seq * block.a.kv_heads + block.kv_head) * block.a.keys;
    tiles = shared + warp * S::kWarpSpace;
    words = reinterpret_cast<float*>(shared + S::kWarps * S::kWarpSpace) + warp * S::kStages * 2 * S::kTileScales;
    full = barriers + warp * 2 * S::kStages;
  }
  __device__ __forceinline__ int stages_of_old_keys(int most) const {
    while (most > 0 && min(first + (most - 1) * S::kWarps + 1, end) * S::kKeys >= range.end) --most;
    return most;
  }
  template <bool kOfValues>
  __device__ __forceinline__ void load(int tile, int stage) {
    if (tile >= end || threadIdx.x % 32 != 0) return;
    const int place = 2 * stage + kOfValues, row = row0 + tile * S::kKeys;
    barrier_expect(full + place, S::kTile + 4 * S::kTileScales);
    bulk_copy_box(tiles + place * S::kTile, kOfValues ? &maps.v : &maps.k, 0, S::kPairs ? row / 2 : row, full + place);
    bulk_copy_box(words + place * S::kTileScales, kOfValues ? &maps.v_words : &maps.k_words, row * S::kKeyScales, 0,
                  full + place);
  }
  template <bool kOfValues>
  __device__ __forceinline__ void await(int stage, uint32_t parity) const {
    barrier_await(shared_address(full + 2 * stage + kOfValues), parity);
  }
  // Past the last key in sight the cache may hold anything, and zero times a NaN is a NaN.
  __device__ __forceinline__ void clear_words(int tile, int stage) const {
    const int there = (range.end - tile * S::kKeys) * S::kKeyScales;
    for (int i = threadIdx.x % 32; i < S::kTileScales; i += 32)
      if (i >= there) words[(2 * stage + 1) * S::kTileScales + i] = 0;
    __syncwarp();
  }

  // The warp's tiles.
  __device__ __forceinline__ void attend(typename S::Warp& w, int position, float score_scale) {
    const auto& a = block.a;
    const int positions[1][2] = {{position, position}};
    int stage = 0;
    uint32_t parity = 0;
    for (int tile = first; tile < end; tile += S::kWarps) {
      const int first_key = tile * S::kKeys, next = tile + S::kStages * S::kWarps;
      const bool partial = first_key + S::kKeys > range.end;
      const bool masked = partial || (a.window > 0 && first_key <= range.high - a.window);
      const float* of_keys = words + 2 * stage * S::kTileScales;
      const auto* k_sh = reinterpret_cast<const C*>(tiles + 2 * stage * S::kTile);
      typename S::Warp::Scores s;
      await<false>(stage, parity);
      w.scores(s, k_sh, of_keys);
      w.finish_scores(s, of_keys, score_scale, a.softcap, masked, first_key, positions, a.window);
      __syncwarp();  // all lanes have read these keys before they are replaced
      load<false>(next, stage);
      w.softmax(s);
      await<true>(stage, parity);
      if (partial) clear_words(tile, stage);
      w.add_values(s, of_keys + S::kTileScales, k_sh + S::kTile);
      __syncwarp();
      load<true>(next, stage);
      if (++stage == S::kStages) stage = 0, parity ^= 1;
    }
    __syncwarp();
  }
};

template <class S>
__device__ __forceinline__ void fill(BoxRing<S>& ring, int begin, int end) {
#pragma unroll 1
  for (int stage = begin; stage < end; ++stage) {
    ring.template load<false>(ring.first + stage * S::kWarps, stage);
    ring.template load<true>(ring.first + stage * S::kWarps, stage);
  }
}
template <class S>
__device__ __forceinline__ void attend(BoxRing<S>& ring, typename S::Warp& w, int position, float score_scale) {
  ring.attend(w, position, score_scale);
}
#else
inline constexpr bool kHasBoxes = false;
#endif

// Makes the barriers of the rings; a block's first call, with the maps asked for meanwhile.
template <class S>
__device__ __forceinline__ void begin_rings(Room<S>& room, const Maps& maps) {
#ifdef FEWBIT_SM90A
  if constexpr (S::kBoxes) {
    if (threadIdx.x < 4) prefetch_map(&maps.k + threadIdx.x);
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : room.full) barrier_init(&barrier, 1);
      barrier_publish();
    }
    __syncthreads();
  }
#endif
}
// What the thread has stored in the cache, before the copy engine reads it behind a barrier of the block.
template <class S>
__device__ __forceinline__ void publish_stored() {
#ifdef FEWBIT_SM90A
  if constexpr (S::kBoxes) asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}
template <class S>
__device__ __forceinline__ auto ring_of(const Block<S>& block, const KeyRange& range, int2 tiles, uint8_t* shared,
                                        Room<S>& room, const Maps& maps) {
#ifdef FEWBIT_SM90A
  if constexpr (S::kBoxes)
    return BoxRing<S>(block, range, tiles, shared, room.full, maps);
  else
#endif
    return KeyRing<S>(block, range, tiles, shared);
}
template <class S>
__device__ __forceinline__ void fill(KeyRing<S>& ring, int begin, int end) {
  ring.fill(begin, end, true);
}
template <class S>
__device__ __forceinline__ void attend(KeyRing<S>& ring, typename S::Warp& w, int position, float score_scale) {
  const int positions[1][2] = {{position, position}};
  attention_decode::attend(ring, w, positions, score_scale);
}

}  // namespace fewbit::cuda::append_decode

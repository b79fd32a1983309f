#pragma once
// What a block of attention_decode.cuh works on, and the ring of shared memory through which a warp's tiles of keys and
// values come: from one piece of memory for each sequence, or from pages, of which a tile is one (of 4 bits two).
#include <algorithm>

#include "kernels/attention/attention_columns.cuh"
#include "kernels/attention/attention_combine.cuh"
#include "kernels/device/barrier.cuh"
#include "kernels/device/launch.cuh"

namespace fewbit::cuda::attention_decode {

// What is fixed for one kind of launch. D: head_dim rounded up; C: what keys and values are stored as; kGroups: groups
// of eight query rows in a tile; kPages: over pages.
template <int D, class C, int kGroups, bool kPages = false>
struct Config {
  using Stored = C;
  using Source = std::conditional_t<kPages, PagedSource<__nv_bfloat16, C>, AttentionSource<__nv_bfloat16, C>>;
  static constexpr bool kPaged = kPages;
  static constexpr int kDim = D, kRowGroups = kGroups;
  static constexpr int kRows = 8 * kGroups, kKeys = kGroupScales<C> && kGroups == 1 ? 32 : 16;
  using Warp = attention_columns::WarpColumns<D, kKeys, C, kGroups>;
  // With the registers of one group of rows and the shared memory of codes 16 warps fit on a multiprocessor. A block
  // takes at most 99 KiB of shared memory, what compute capability 8.6 has.
  static constexpr bool kMany = kIsCode<C> && kGroups == 1;
  static constexpr int kWarps = D <= 128 ? (kMany && !kPages ? 8 : 4) : (kIsCode<C> ? 4 : 2), kThreads = 32 * kWarps;
  // On a multiprocessor. Over pages in blocks of half the size, of which one may still wait for its pages: 0.95 of the
  // time of codes of 4 bits, 128 sequences of 1,024 positions on an H100, and that of the others.
  static constexpr int kBlocks = D > 128 ? 2 : !kMany ? 3 : kPages ? 4 : 2;
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
  const typename S::Source& a;
  const Job& job;
  int kv_head, row0, seq, split, rows;
  const C *k, *v;  // of the kv head; over pages, of page 0
  int64_t scales_at;
  const int32_t* positions;  // of the sequence's new tokens
  int64_t first_row;         // row 0 of the tile among the query rows of all sequences and kv heads

  __device__ __forceinline__ Block(const typename S::Source& source, const Job& of_launch) : a(source), job(of_launch) {
    kv_head = blockIdx.y / job.row_tiles, row0 = blockIdx.y % job.row_tiles * S::kRows, seq = blockIdx.z;
    split = blockIdx.x, rows = min(S::kRows, job.rows - row0);
    if constexpr (S::kPaged) {
      k = a.k + kv_head * a.kv_head;
      v = a.v + kv_head * a.kv_head;
      scales_at = a.scales_of(kv_head);
    } else {
      k = a.k + seq * a.kv_seq + kv_head * a.kv_head;
      v = a.v + seq * a.kv_seq + kv_head * a.kv_head;
      scales_at = a.scales_of(seq, kv_head);
    }
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
    if constexpr (S::kPaged) return of_one(job.behind_append ? early_position : a.position_of_row(seq));
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
  // Past the first-level cache, which may not be asked for what others still write beside it.
  __device__ __forceinline__ int read_position_early() const {
    if constexpr (S::kPaged)
      return __ldcg(a.table_of + seq) < 0 ? -1 : __ldcg(positions);
    else
      return __ldcg(positions);
  }
  // The result of a split without keys, and of a row that is none.
  __device__ __forceinline__ void store_nothing() const {
    if (S::kPaged && job.splits == 1) {
      for (int e = threadIdx.x; e < rows * a.d; e += S::kThreads)
        a.out[query_row(e / a.d) + e % a.d] = from_f32<__nv_bfloat16>(0.f);
      return;
    }
    for (int e = threadIdx.x; e < rows * a.d; e += S::kThreads) {
      const int64_t at = partial_of(e / a.d);
      job.o[at * a.d + e % a.d] = 0;
      if (e % a.d == 0) job.ml[at * 2] = kNoKeys, job.ml[at * 2 + 1] = 0;
    }
  }
};

// The pages of a warp's next tiles of keys, one a lane, so that a tile does not wait for its page's number. Tiles are
// asked for in the order in which the warp takes them, S::kWarps apart.
template <class S>
struct NextPages {
  static constexpr int kEach = S::kKeys / static_cast<int>(kPagePositions), kTiles = 32 / kEach;
  const int32_t* table = nullptr;
  int blocks = 0;  // of the table that are in sight
  int from = 0, page = -1;

  __device__ __forceinline__ void ask(int tile) {
    const int lane = threadIdx.x % 32, block = (tile + lane / kEach * S::kWarps) * kEach + lane % kEach;
    page = block < blocks ? __ldg(table + block) : -1;
    from = tile;
  }
  // Page i of a tile, which may differ from lane to lane; every lane calls.
  __device__ __forceinline__ int of(int tile, int i) {
    if (tile - from >= kTiles * S::kWarps) ask(tile);
    return __shfl_sync(0xffffffffu, page, (tile - from) / S::kWarps * kEach + i);
  }
};

// A warp's ring of stages in shared memory. A stage holds a K tile and a V tile, each with the scales of its keys where
// tokens have their own; each is one group of asynchronous copies, and an empty one past the last tile, so that the
// number of groups under way is always the same.
template <class S>
struct KeyRing {
  using C = typename S::Stored;
  static constexpr bool kTakesWhole =
      !S::kPaged && kGroupScales<C> && S::kTileScales % 32 == 0 && 512 % (stored<C>(S::kDim) * sizeof(C)) == 0;
  const Block<S>& block;
  const KeyRange& range;
  int first, end;  // this warp's first tile, and the end of the block's
  int whole;       // tiles before this one are in one piece of memory and have all of their keys
  C* tiles;        // [kStages, 2, kKeys, stride]
  float* scales;   // [kStages, 2, kKeys, scales of a key]
  int lane;
  const float *k_scales, *v_scales;  // of the kv head
  NextPages<S> pages;
  uint32_t own_piece, own_words;  // where the lane's pieces of a whole tile and of its scales go, in shared memory

  // `tiles_of_block`: [x, y). The rings of all warps lie one after another, and behind them the scales.
  __device__ __forceinline__ KeyRing(const Block<S>& of, const KeyRange& in_sight, int2 tiles_of_block, uint8_t* shared)
      : block(of), range(in_sight) {
    const int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    first = tiles_of_block.x + warp, end = tiles_of_block.y;
    whole = !S::kPaged && of.a.d == S::kDim ? min(end, in_sight.end / S::kKeys) : 0;
    tiles = reinterpret_cast<C*>(shared + warp * S::kWarpSpace);
    scales = reinterpret_cast<float*>(shared + S::kWarps * S::kWarpSpace) + warp * S::kStages * 2 * S::kTileScales;
    k_scales = block.a.k_scales + block.scales_at, v_scales = block.a.v_scales + block.scales_at;
    if constexpr (kTakesWhole) {
      constexpr int kChunks = stored<C>(S::kDim) * static_cast<int>(sizeof(C)) / 16;
      own_piece = shared_address(tiles) + lane / kChunks * kRowStride<C, S::kDim> * sizeof(C) + lane % kChunks * 16;
      own_words = shared_address(scales) + lane * (S::kTileScales / 8);
      // Opaque, or they are worked out again for every tile.
      asm volatile("" : "+r"(own_piece), "+r"(own_words));
    }
    if constexpr (S::kPaged) {
      pages.table = block.a.table_of_row(block.seq);
      pages.blocks = (range.end + static_cast<int>(kPagePositions) - 1) / static_cast<int>(kPagePositions);
      pages.ask(first);
    }
  }

  // Asks for kRows rows from `from` on, of which `there` exist; the others become zeros.
  template <int kRows>
  __device__ __forceinline__ void load_rows(C* to, const C* any, const C* from, int there) const {
    constexpr int D = S::kDim, kRow = stored<C>(D);
    if (block.a.d == D && there >= kRows) {  // whole, and its rows one after another
      constexpr int kPiece = 16 / static_cast<int>(sizeof(C)), kChunks = kRow / kPiece, kAll = kRows * kChunks;
      from += lane * kPiece;
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
      copy_rows<D, kRows, 32>(to, lane, stored<C>(block.a.d), any, [&](int row) -> const C* {
        return row < there ? from + row * block.a.kv_token : nullptr;
      });
    }
  }
  // Asks for a tile of `base` (K or V); `place` counts tiles in the ring.
  __device__ __forceinline__ void load_tile(const C* base, int tile, int place) {
    if (tile >= end) return;
    constexpr int D = S::kDim, kRow = stored<C>(D), kPage = static_cast<int>(kPagePositions);
    const int first_key = tile * S::kKeys;
    C* to = tiles + place * S::kTile;
    if constexpr (S::kPaged) {
#pragma unroll
      for (int i = 0; i < NextPages<S>::kEach; ++i) {
        const int page = pages.of(tile, i);  // a window may have let go of the first of two
        load_rows<kPage>(to + i * kPage * kRowStride<C, D>, base, base + page * block.a.kv_seq,
                         page < 0 ? 0 : range.end - first_key - i * kPage);
      }
    } else {
      const int64_t row = block.a.d == D ? kRow : block.a.kv_token;
      load_rows<S::kKeys>(to, base, base + first_key * row, range.end - first_key);
    }
  }
  // Where scale i of a tile lies behind k_scales and v_scales, or -1 where there is none.
  __device__ __forceinline__ int64_t scale_place(int tile, int i) {
    const int at = tile * S::kTileScales + i;
    if constexpr (S::kPaged) {
      constexpr int kPageScales = static_cast<int>(kPagePositions) * std::max(S::kKeyScales, 1);
      const int page = pages.of(tile, i / kPageScales);
      return page < 0 || at >= range.end * S::kKeyScales ? -1 : page * block.a.scales_of_page() + i % kPageScales;
    } else {
      return at < range.end * S::kKeyScales ? at : -1;
    }
  }
  __device__ __forceinline__ void load_scales(const float* from, int tile, int place) {
    if constexpr (S::kKeyScales > 0) {
      if (tile >= end) return;
#pragma unroll
      for (int base = 0; base < S::kTileScales; base += 32) {
        const int i = base + lane;
        const int64_t at = scale_place(tile, i);
        if (i < S::kTileScales) cp_async4(scales + place * S::kTileScales + i, at >= 0 ? from + at : from, at >= 0);
      }
    }
  }
  // A tile before `whole`: two addresses and a few copies. Most tiles are such, and of small codes the arithmetic of
  // the others would be a fifth of all instructions.
  __device__ __forceinline__ void load_whole(const C* base, const float* words, int tile, int place) const {
    constexpr uint32_t kRow = stored<C>(S::kDim) * sizeof(C), kChunks = kRow / 16, kTileBytes = S::kKeys * kRow;
    constexpr uint32_t kStride = kRowStride<C, S::kDim> * sizeof(C), kWords = 4 * S::kTileScales;
    const auto behind = [](const auto* p, uint32_t bytes) { return reinterpret_cast<const char*>(p) + bytes; };
    const uint32_t n = static_cast<uint32_t>(tile), to = own_piece + place * (S::kTile * sizeof(C));
#pragma unroll
    for (uint32_t i = 0; i < kTileBytes; i += 32 * 16)
      cp_async16(to + i / kRow * kStride, behind(base, n * kTileBytes + 16 * lane) + i);
    cp_async<kWords / 32>(own_words + place * kWords, behind(words, n * kWords + kWords / 32 * lane));
  }
  // A tile and its scales.
  __device__ __forceinline__ void load(const C* base, const float* words, int tile, int place, bool with_scales) {
    if constexpr (kTakesWhole)
      if (with_scales && tile < whole) return load_whole(base, words, tile, place);
    load_tile(base, tile, place);
    if (with_scales) load_scales(words, tile, place);
  }
  // The K tile, or the V tile, of a stage.
  __device__ __forceinline__ void load_keys(int tile, int stage, bool with_scales = true) {
    load(block.k, k_scales, tile, 2 * stage, with_scales);
    cp_async_commit();
  }
  __device__ __forceinline__ void load_values(int tile, int stage, bool with_scales = true) {
    load(block.v, v_scales, tile, 2 * stage + 1, with_scales);
    cp_async_commit();
  }
  // Stages [begin, end) for the first time.
  __device__ __forceinline__ void fill(int begin_stage, int end_stage, bool with_scales) {
#pragma unroll 1
    for (int stage = begin_stage; stage < end_stage; ++stage) {
      load_keys(first + stage * S::kWarps, stage, with_scales);
      load_values(first + stage * S::kWarps, stage, with_scales);
    }
  }
  // How many of the first `most` stages are without the new key, the last one in sight.
  __device__ __forceinline__ int stages_of_old_keys(int most) const {
    while (most > 0 && min(first + (most - 1) * S::kWarps + 1, end) * S::kKeys >= range.end) --most;
    return most;
  }
  // Keys older than the new one may be read before the kernel has ended that writes the new one (behind_append). Only
  // the first stages (Job::early) are loaded so early: what that kernel still has to do, and the queries, queue behind
  // them in memory. Returns how many were.
  __device__ __forceinline__ int load_early() {
    const int stages = stages_of_old_keys(block.job.behind_append ? block.job.early : 0);
    fill(0, stages, false);
    if constexpr (S::kKeyScales > 0) {  // past the first-level cache, where a line may hold the new key's place too
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        const int tile = first + stage * S::kWarps;
        float* to = scales + 2 * stage * S::kTileScales;
#pragma unroll
        for (int base = 0; base < S::kTileScales; base += 32) {
          const int i = base + lane;
          const int64_t at = tile < end ? scale_place(tile, i) : -1;
          const bool there = at >= 0 && i < S::kTileScales;
          const float of_k = there ? __ldcg(k_scales + at) : 0.f, of_v = there ? __ldcg(v_scales + at) : 0.f;
          if (i < S::kTileScales) to[i] = of_k, to[S::kTileScales + i] = of_v;
        }
      }
    }
    return stages;
  }
  __device__ __forceinline__ C* keys_at(int stage) const { return tiles + 2 * stage * S::kTile; }
  __device__ __forceinline__ C* values_at(int stage) const { return tiles + (2 * stage + 1) * S::kTile; }
};

}  // namespace fewbit::cuda::attention_decode

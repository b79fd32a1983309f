#pragma once
// Where the operands of an attention kernel lie, and which keys a set of query rows sees.
#include "kernels/attention/paged_attention.h"
#include "kernels/device/kv_codes.cuh"
#include "kernels/kv/int4_rows.cuh"

namespace fewbit::cuda {

// The operands of one call. T is the type of q and out, C what keys and values are stored as.
//   query i of sequence s   stands at position positions[s * len + i], or at i where `positions` is null, and sees the
//                           keys [0, position], cut by the window
//   key j of kv head h      lies at k + s * kv_seq + h * kv_head + j * kv_token; its value likewise in v
//   scale of a key's codes  k_scales[h], or k_scales[(s * kv_heads + h) * keys + j] where every token has its own;
//   where
//                           its groups have, the words of a key, one for 64 features, follow one another
template <class T, class C = T>
struct AttentionSource {
  const T* q;  // [seqs * len, heads * d]
  const C* k;
  const C* v;
  const float* k_scales;  // null without codes
  const float* v_scales;
  const int32_t* positions;  // [seqs * len] or null
  T* out;                    // like q
  int seqs, len, heads, kv_heads, d;
  int64_t kv_seq, kv_head, kv_token;  // strides in elements of C
  int keys;                           // keys a sequence has room for
  int window;                         // in keys; 0: none
  float scale, softcap;               // softcap 0: none
  const float* sinks;                 // [heads] or null; the plain kernel and that of few rows read them
  int chunk;                          // in keys; 0: none; likewise
  bool turn_back;                     // AttentionArgs; for the kernel of few rows alone

  // Where the scales of a kv head begin, as an offset into k_scales and v_scales.
  __device__ __forceinline__ int64_t scales_of(int seq, int kv_head) const {
    const int64_t row = (static_cast<int64_t>(seq) * kv_heads + kv_head) * keys;
    return kTokenScales<C> ? row : kGroupScales<C> ? row * int4_groups(d) : kv_head;
  }
  // The first key that the query at a position sees.
  __device__ __forceinline__ int first_key(int position) const {
    if (chunk > 0) return position / chunk * chunk;
    return window > 0 ? max(0, position - window + 1) : 0;
  }
  // The position of query i of a sequence; -1 past the last query.
  __device__ __forceinline__ int position_of(int seq, int i) const {
    return i >= len ? -1 : positions ? positions[static_cast<int64_t>(seq) * len + i] : i;
  }
};

// The operands of a call over pages (kernels/attention/paged_attention.h), a row of q being a sequence of one token to
// the kernel of few rows: seqs is the number of rows, len 1, positions those of the rows. A page is kv_seq elements;
// key j of kv head h lies at k + page * kv_seq + h * kv_head + j % kPagePositions * kv_token. `keys`: no sequence has
// more.
template <class T, class C = T>
struct PagedSource : AttentionSource<T, C> {
  const int32_t* table_of;  // [rows]; -1: the row is none
  const int32_t* tables;    // [tables, blocks]
  const int4* tiles;        // of rows that attend together: first row, rows, table, 0
  int blocks;

  // The pages of the sequence that a row belongs to; any where the row is none.
  __device__ __forceinline__ const int32_t* table_of_row(int row) const { return tables_of(max(table_of[row], 0)); }
  __device__ __forceinline__ const int32_t* tables_of(int table) const {
    return tables + static_cast<int64_t>(table) * blocks;
  }
  __device__ __forceinline__ int position_of_row(int row) const {
    return table_of[row] < 0 ? -1 : this->positions[row];
  }
  // Where the scales of a kv head begin in a page, and how many a page has of all: in k_scales and v_scales.
  __device__ __forceinline__ int64_t scales_of(int kv_head) const {
    return kTokenScales<C> || kGroupScales<C> ? static_cast<int64_t>(kv_head) * kPagePositions * scales_of_key()
                                              : kv_head;
  }
  __device__ __forceinline__ int64_t scales_of_page() const {
    return static_cast<int64_t>(this->kv_heads) * kPagePositions * scales_of_key();
  }
  __device__ __forceinline__ int64_t scales_of_key() const { return kGroupScales<C> ? int4_groups(this->d) : 1; }
};

// The scale that all codes of a kv head share; 1 where there is none.
template <class C>
__device__ __forceinline__ float static_scale(const float* scales, int64_t at) {
  if constexpr (kIsCode<C> && !kTokenScales<C> && !kGroupScales<C>) return scales[at];
  return 1.f;
}

// The value of feature `col` of a key's row, in f32; `scales`: the row's.
template <class C>
__device__ __forceinline__ float stored_value(const C* row, const float* scales, int col) {
  if constexpr (kGroupScales<C>)
    return nibble_rows::value_at(row, reinterpret_cast<const uint32_t*>(scales), col);
  else if constexpr (kIsCode<C>)
    return to_f32(row[col]) * scales[0];
  else
    return to_f32(row[col]);
}

// A block's query rows, which are neighbours of one sequence, and the keys and values of the kv head that they see.
template <class T, class C>
struct RowTile {
  const AttentionSource<T, C>& a;
  int seq, row0, first_row, rows;  // rows: those from first_row, of all sequences, on
  const C *k, *v;
  int64_t scales_at;

  __device__ __forceinline__ RowTile(const AttentionSource<T, C>& source, int of_seq, int from_row, int kv_head)
      : a(source), seq(of_seq), row0(from_row) {
    first_row = seq * a.len + row0, rows = a.len - row0;
    k = a.k + seq * a.kv_seq + kv_head * a.kv_head;
    v = a.v + seq * a.kv_seq + kv_head * a.kv_head;
    scales_at = kIsCode<C> ? a.scales_of(seq, kv_head) : 0;
  }
  __device__ __forceinline__ int position_of(int row) const { return a.position_of(seq, row0 + row); }
  __device__ __forceinline__ const C* key_row(const C* base, int key) const { return base + key * a.kv_token; }
  // Where a key's scales lie behind those of the kv head.
  __device__ __forceinline__ int64_t scale_of(int key) const {
    return kTokenScales<C> ? key : kGroupScales<C> ? key * int4_groups(a.d) : 0;
  }
};

// The same over pages; without keys where a window has let go of them.
template <class T, class C>
struct PagedTile {
  static constexpr int kPage = static_cast<int>(kPagePositions);
  const PagedSource<T, C>& a;
  int first_row, rows;
  const int32_t* table;
  const C *k, *v;
  int64_t scales_at;

  __device__ __forceinline__ PagedTile(const PagedSource<T, C>& source, int row, int count, const int32_t* pages,
                                       int kv_head)
      : a(source), first_row(row), rows(count), table(pages) {
    k = a.k + kv_head * a.kv_head, v = a.v + kv_head * a.kv_head;
    scales_at = kIsCode<C> ? a.scales_of(kv_head) : 0;
  }
  __device__ __forceinline__ int position_of(int row) const {
    return row < rows ? a.position_of_row(first_row + row) : -1;
  }
  __device__ __forceinline__ const C* key_row(const C* base, int key) const {
    const int page = __ldg(table + key / kPage);
    return page < 0 ? nullptr : base + page * a.kv_seq + key % kPage * a.kv_token;
  }
  __device__ __forceinline__ int64_t scale_of(int key) const {
    if (!kTokenScales<C> && !kGroupScales<C>) return 0;
    return max(__ldg(table + key / kPage), 0) * a.scales_of_page() + key % kPage * a.scales_of_key();
  }
};

// The keys that at least one of a set of query rows sees. A tile of keys needs no mask where its last key is at most
// `low` and, with a window, its first key is above high - window. (The kernels write that out: as a function it costs
// them instructions.)
struct KeyRange {
  int low, high;   // the smallest and the largest position among the rows
  int begin, end;  // keys [begin, end)
};

// The range of a warp's rows: each lane brings the positions of two of them, or -1 for a row that does not exist. Every
// lane gets the same result.
__device__ __forceinline__ KeyRange key_range(int position_a, int position_b, int window, int keys) {
  const auto low_of = [](int p) { return p < 0 ? 0x7fffffff : p; };
  int low = min(low_of(position_a), low_of(position_b)), high = max(position_a, position_b);
  for (int lane = 16; lane > 0; lane /= 2) {
    low = min(low, __shfl_xor_sync(0xffffffffu, low, lane));
    high = max(high, __shfl_xor_sync(0xffffffffu, high, lane));
  }
  return {low, high, window > 0 ? max(0, low - window + 1) : 0, min(high + 1, keys)};
}

// The range of two sets of rows together; one of them may be empty.
__device__ __forceinline__ KeyRange joined(const KeyRange& a, const KeyRange& b, int window) {
  const int low = min(a.low, b.low), high = max(a.high, b.high);
  return {low, high, window > 0 ? max(0, low - window + 1) : 0, max(a.end, b.end)};
}

}  // namespace fewbit::cuda

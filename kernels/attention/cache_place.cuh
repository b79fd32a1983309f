#pragma once
// Where the keys and values of a new token go.
#include "kernels/attention/paged_attention.h"

namespace fewbit::cuda {

struct CachePlace {
  int len;           // tokens of a sequence in the call
  int64_t capacity;  // positions of a sequence in the cache
  const int32_t* table_of = nullptr;
  const int32_t* tables = nullptr;  // [tables, blocks] of pages; null: every sequence has a piece of its own
  int blocks = 0;

  // The row of the cache [batch or pages, kv_heads, positions] of a token's head; -1 where the token is none.
  __device__ __forceinline__ int64_t row(int64_t token, int kv_head, int kv_heads, int position) const {
    if (!tables) return (token / len * kv_heads + kv_head) * capacity + position;
    constexpr int kPage = static_cast<int>(kPagePositions);
    const int table = table_of[token];
    if (table < 0) return -1;
    const int page = tables[static_cast<int64_t>(table) * blocks + position / kPage];
    return page < 0 ? -1 : (static_cast<int64_t>(page) * kv_heads + kv_head) * kPage + position % kPage;
  }
};

// The places of the rows of a pass; stops the process where they are not what paged_attention.h asks for.
inline CachePlace place_of(const PagedRows& rows, const KvCache& cache, int64_t tokens) {
  const bool fits = rows.positions.dtype == DType::i32 && rows.positions.numel() == tokens &&
                    rows.tables.dtype == DType::i32 && rows.table_of.dtype == DType::i32 &&
                    rows.table_of.numel() == tokens && cache.k.shape[2] == kPagePositions;
  FEWBIT_ASSERT(fits && rows.single <= tokens && (!rows.tiles.data || rows.tiles.dtype == DType::i32));
  return {.len = 1,
          .capacity = kPagePositions,
          .table_of = rows.table_of.as<int32_t>(),
          .tables = rows.tables.as<int32_t>(),
          .blocks = static_cast<int>(rows.tables.cols())};
}

}  // namespace fewbit::cuda

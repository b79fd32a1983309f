#pragma once
// Attention over a cache of pages (Kwon et al., Efficient Memory Management for Large Language Model Serving with
// PagedAttention, 2023), of rows that belong to sequences of different lengths. What a query sees, and how keys and
// values are stored, is that of attention.h.
//
// Every query goes key by key, as the few queries of a decode step do in cpu::attention_cached(), whose bits it has: a
// row's bits depend on its own sequence up to its position alone, not on the rows beside it.
//
// A GPU takes the kernels of attention_cached(), whose sources say what differs over pages. There, too, rows that
// attend one by one have bits which do not depend on the rows beside them where `splits` is set; else as many splits of
// the keys are made as fill the GPU with the rows at hand.
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
namespace fewbit {
// Positions of a page. Few waste little of a sequence's last page and let short beginnings be shared; a page of one kv
// head is then still 2 KiB of 64 bf16 values each, which is read at the speed of memory.
inline constexpr int64_t kPagePositions = 16;
constexpr int64_t pages_for(int64_t positions) { return (positions + kPagePositions - 1) / kPagePositions; }

// Rows [begin, end) of a pass: consecutive new tokens of one sequence.
struct RowRun {
  int64_t begin = 0, end = 0;
};
struct PagedRows {
  std::span<const RowRun> runs{};
  // [runs, blocks] i32, on the Exec's device: table[r, b] is the page of positions [16 b, 16 b + 16) of the sequence of
  // run r, -1 where none is held
  ConstTensorView tables{};
  ConstTensorView positions{};  // [rows] i32, on the Exec's device
  // For a GPU alone, on the device: what row_places() makes of the runs.
  ConstTensorView table_of{};  // [rows] i32: the run of a row; -1 where a row is none, whose result becomes zeros
  ConstTensorView tiles{};     // [tiles, 4] i32, or null: first row, rows (1 to kTileRows), run, 0
  int64_t single = 0;          // rows [0, single) attend one by one, the others in tiles
  int64_t splits = 0;          // of the keys of a row that attends by itself; 0: by the rows at hand
  const int32_t* table(size_t run) const { return tables.as<int32_t>() + static_cast<int64_t>(run) * tables.cols(); }
};
// Rows of a run that a GPU's kernel of many rows takes together; runs of up to kSingleRows go row by row.
inline constexpr int64_t kTileRows = 64, kSingleRows = 16;
// Of runs that follow one another: table_of, and the tiles (four numbers each) of the rows from the first longer run
// on.
struct RowPlaces {
  std::vector<int32_t> table_of{}, tiles{};
  int64_t single = 0;
};
RowPlaces row_places(std::span<const RowRun> runs);

// A cache of pages is a KvCache with pages in place of sequences: k, v [pages, kv_heads, kPagePositions, head_dim],
// scales of int8 [pages, kv_heads, kPagePositions], of 4 bits [pages, kv_heads, kPagePositions, 2 * groups]. A cache
// with another number of positions is one page that holds all of a sequence: that of an engine with one length for all.
//
// kv_append() of rows to their pages.
//   k, v  [rows, kv_heads * head_dim]  f32 | bf16
namespace cpu {
void kv_append_paged(Exec&, ConstTensorView k, ConstTensorView v, const PagedRows&, const KvCache&);
}
namespace cuda {
void kv_append_paged(Exec&, ConstTensorView k, ConstTensorView v, const PagedRows&, const KvCache&);
}
inline void kv_append_paged(Exec& ex, ConstTensorView k, ConstTensorView v, const PagedRows& rows, const KvCache& c) {
  pick(ex, &cpu::kv_append_paged, FEWBIT_CUDA_OP(kv_append_paged))(ex, k, v, rows, c);
}

// attention_cached() over pages, which hold the rows' own keys and values already.
//   q, out  [rows, heads * head_dim]  f32 | bf16
namespace cpu {
void attention_paged(Exec&, ConstTensorView q, const PagedRows&, const KvCache&, const AttentionArgs&, TensorView out);
}
namespace cuda {
void attention_paged(Exec&, ConstTensorView q, const PagedRows&, const KvCache&, const AttentionArgs&, TensorView out);
}
inline void attention_paged(Exec& ex, ConstTensorView q, const PagedRows& rows, const KvCache& c,
                            const AttentionArgs& a, TensorView out) {
  pick(ex, &cpu::attention_paged, FEWBIT_CUDA_OP(attention_paged))(ex, q, rows, c, a, out);
}
}  // namespace fewbit

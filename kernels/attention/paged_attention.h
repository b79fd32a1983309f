#pragma once
// Attention over a cache of pages (Kwon et al., Efficient Memory Management for Large Language Model Serving with
// PagedAttention, 2023), of rows that belong to sequences of different lengths. What a query sees, and how keys and
// values are stored, is that of attention.h.
//
// Every query goes key by key, as the few queries of a decode step do in cpu::attention_cached(), whose bits it has: a
// row's bits depend on its own sequence up to its position alone, not on the rows beside it.
//
// There is no CUDA half yet: on a GPU the process stops (the caller refuses first).
#include <span>

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
  // [runs, blocks] i32, on the host: table[r, b] is the page of positions [16 b, 16 b + 16) of the sequence of run r,
  // -1 where none is held
  ConstTensorView tables{};
  ConstTensorView positions{};  // [rows] i32
  const int32_t* table(size_t run) const { return tables.as<int32_t>() + static_cast<int64_t>(run) * tables.cols(); }
};

// A cache of pages is a KvCache with pages in place of sequences: k, v [pages, kv_heads, kPagePositions, head_dim],
// scales of int8 [pages, kv_heads, kPagePositions], of 4 bits [pages, kv_heads, kPagePositions, 2 * groups]. A cache
// with another number of positions is one page that holds all of a sequence: that of an engine with one length for all.
//
// kv_append() of rows to their pages.
//   k, v  [rows, kv_heads * head_dim]  f32 | bf16
namespace cpu {
void kv_append_paged(Exec&, ConstTensorView k, ConstTensorView v, const PagedRows&, const KvCache&);
}
inline void kv_append_paged(Exec& ex, ConstTensorView k, ConstTensorView v, const PagedRows& rows, const KvCache& c) {
  pick(ex, &cpu::kv_append_paged, static_cast<decltype(&cpu::kv_append_paged)>(nullptr))(ex, k, v, rows, c);
}

// attention_cached() over pages, which hold the rows' own keys and values already.
//   q, out  [rows, heads * head_dim]  f32 | bf16
namespace cpu {
void attention_paged(Exec&, ConstTensorView q, const PagedRows&, const KvCache&, const AttentionArgs&, TensorView out);
}
inline void attention_paged(Exec& ex, ConstTensorView q, const PagedRows& rows, const KvCache& c,
                            const AttentionArgs& a, TensorView out) {
  pick(ex, &cpu::attention_paged, static_cast<decltype(&cpu::attention_paged)>(nullptr))(ex, q, rows, c, a, out);
}
}  // namespace fewbit

#pragma once
// The rows of a mixture's experts, moved for all experts at once: lists of who goes where, rows to places of their own,
// and what the experts answer back to the tokens.
#include <span>

#include "kernels/exec/exec.h"
namespace fewbit {
// expert_lists: the entries (t, j) of ids, sorted by expert and then by token. Entry number i of that order has
//   rows[i] = t,  weights[i] = shares[t, j],  places[t, j] = i
// and expert e has the entries begin[e] … begin[e + 1].
//   ids      [tokens, top_k]  i32, in [0, experts), those of a token distinct
//   shares   [tokens, top_k]  f32
//   rows     [tokens * top_k] i32;  weights [tokens * top_k] f32;  places [tokens, top_k] i32;  begin [experts + 1]
//   i32;
// overwritten. tokens * top_k < 2^31.
struct ExpertLists {
  TensorView rows{}, weights{}, places{}, begin{};
};
namespace cpu {
void expert_lists(Exec&, ConstTensorView ids, ConstTensorView shares, const ExpertLists&);
}
namespace cuda {
void expert_lists(Exec&, ConstTensorView ids, ConstTensorView shares, const ExpertLists&);
}
inline void expert_lists(Exec& ex, ConstTensorView ids, ConstTensorView shares, const ExpertLists& to) {
  FEWBIT_ASSERT(ids.dtype == DType::i32 && shares.dtype == DType::f32 && shares.shape == ids.shape);
  FEWBIT_ASSERT(to.rows.dtype == DType::i32 && to.rows.numel() == ids.numel() && to.places.dtype == DType::i32);
  FEWBIT_ASSERT(to.weights.dtype == DType::f32 && to.weights.numel() == ids.numel() && to.places.shape == ids.shape);
  FEWBIT_ASSERT(to.begin.dtype == DType::i32 && to.begin.numel() >= 2);
  pick(ex, &cpu::expert_lists, FEWBIT_CUDA_OP(expert_lists))(ex, ids, shares, to);
}

// place_rows: y[to + i, :] = x[rows[from + i], :] for the `count` rows of every run. Runs write to rows of their own.
//   x     [n, cols]  of any dtype
//   rows  [..]       i32 in [0, n)
//   y     [.., cols] of the dtype of x
struct PlacedRows {
  int64_t from = 0, to = 0, count = 0;
};
namespace cpu {
void place_rows(Exec&, ConstTensorView x, ConstTensorView rows, std::span<const PlacedRows> runs, TensorView y);
}
namespace cuda {
void place_rows(Exec&, ConstTensorView x, ConstTensorView rows, std::span<const PlacedRows> runs, TensorView y);
}
inline void place_rows(Exec& ex, ConstTensorView x, ConstTensorView rows, std::span<const PlacedRows> runs,
                       TensorView y) {
  FEWBIT_ASSERT(rows.dtype == DType::i32 && x.dtype == y.dtype && x.cols() == y.cols());
  for (const PlacedRows& r : runs)
    FEWBIT_ASSERT(r.from >= 0 && r.from + r.count <= rows.numel() && r.to >= 0 && r.to + r.count <= y.rows());
  pick(ex, &cpu::place_rows, FEWBIT_CUDA_OP(place_rows))(ex, x, rows, runs, y);
}

// combine_rows: sum[t, :] += weights[p] * y[p - first, :] for the places p of token t in [first, first + y.rows()), in
// their order, each added in f32 as by scatter_add_rows().
//   y        [n, cols]        f32 | bf16: what the experts answer for entries [first, first + n)
//   places   [tokens, top_k]  i32, of expert_lists(); top_k <= kMostPlaces
//   weights  [entries]        f32
//   sum      [tokens, cols]   f32, added to
inline constexpr int kMostPlaces = 32;
namespace cpu {
void combine_rows(Exec&, ConstTensorView y, ConstTensorView places, ConstTensorView weights, int64_t first,
                  TensorView sum);
}
namespace cuda {
void combine_rows(Exec&, ConstTensorView y, ConstTensorView places, ConstTensorView weights, int64_t first,
                  TensorView sum);
}
inline void combine_rows(Exec& ex, ConstTensorView y, ConstTensorView places, ConstTensorView weights, int64_t first,
                         TensorView sum) {
  FEWBIT_ASSERT(places.dtype == DType::i32 && places.cols() <= kMostPlaces && weights.dtype == DType::f32);
  FEWBIT_ASSERT(sum.dtype == DType::f32 && sum.rows() == places.rows() && sum.cols() == y.cols());
  FEWBIT_ASSERT(first >= 0 && first + y.rows() <= weights.numel());
  pick(ex, &cpu::combine_rows, FEWBIT_CUDA_OP(combine_rows))(ex, y, places, weights, first, sum);
}
}  // namespace fewbit

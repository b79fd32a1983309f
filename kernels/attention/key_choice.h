#pragma once
// choose_keys: which keys a query of sparse attention looks at (DeepSeek-V3.2, 2025, section 2.1: its indexer).
#include "kernels/exec/exec.h"
namespace fewbit {
// For the query at position p of a sequence, over the keys j in [0, (p + 1) / every):
//   score_j = sum_h weights[h] max(0, q_h . k_j)
// The models divide by the roots of the number of heads and of head_dim too, which changes no order and is left out.
// chosen[t, :] = the numbers of the `chosen.cols()` largest, in rising order; of equal scores the earlier keys. Where
// there are fewer keys all of them, then -1. A NaN is chosen behind all numbers.
//   q          [seqs * len, heads * head_dim]   f32 | bf16
//   k          [seqs, rows, head_dim]           the dtype of q; key j is row j every + every - 1: with every = 1 that
//                                               of position j, else of the j-th block of so many positions
//   weights    [seqs * len, heads]              the dtype of q
//   positions  [seqs * len] i32, in [0, rows), on the Exec's device
//   chosen     [seqs * len, n] i32, n >= 1; overwritten
// Scores are f32.
namespace cpu {
void choose_keys(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView weights, ConstTensorView positions,
                 int64_t every, TensorView chosen);
}
namespace cuda {
void choose_keys(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView weights, ConstTensorView positions,
                 int64_t every, TensorView chosen);
}
inline void choose_keys(Exec& ex, ConstTensorView q, ConstTensorView k, ConstTensorView weights,
                        ConstTensorView positions, int64_t every, TensorView chosen) {
  FEWBIT_ASSERT(k.shape.rank() == 3 && k.dtype == q.dtype && weights.dtype == q.dtype && q.rows() % k.shape[0] == 0);
  FEWBIT_ASSERT(weights.rows() == q.rows() && weights.cols() * k.shape[2] == q.cols());
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == q.rows());
  FEWBIT_ASSERT(chosen.dtype == DType::i32 && chosen.rows() == q.rows() && chosen.cols() >= 1 && every >= 1);
  pick(ex, &cpu::choose_keys, FEWBIT_CUDA_OP(choose_keys))(ex, q, k, weights, positions, every, chosen);
}
}  // namespace fewbit

#pragma once
// Small edits of matrices that a method needs around its large ops, without a trip to the host.
#include "kernels/exec/exec.h"
namespace fewbit {
// All tensors are on the device of the Exec. Matrices are f32 where nothing else is said.
//   op               what                                what it takes
//   diagonal         d[i] = h[i, i]                      h [n, n], d [n] f32; d is overwritten
//   add_diagonal     h[i, i] += d[i]                     d [n] f32, h [n, n]; h in place
//   set_diagonal     h[i, i] = d[i]                      d [n] f32, h [n, n]; h in place
//   zero_columns     w[:, i] = 0 where marked[i] != 0    marked [n] u8, w [rows, n]; w in place
//   prune_quads      of every four columns of a row from  s [n] f32, the weight of each column, data == nullptr: all
//                    the first on, the two with the       ones; w [rows, n], n a multiple of 4; w in place. Of equal
//                    least (w s)^2 become 0               ones the earlier stay (kernels/grids/two_of_four.h)
//   scale_columns    w[:, i] *= s[i]                     s [n] f32, w [rows, n]; w in place
//   scale_rows       w[i, :] *= s[i]                     s [rows] f32, w [rows, n]; w in place
//   permute          y[i, j] = x[row_of[i], col_of[j]]   x, y both f32 or both u8, different memory; row_of [y.rows],
//                                                        col_of [y.cols] i32, data == nullptr: as it is, and x is as
//                                                        long there
//   count_nonfinite  how many values are no number or    x f32, any shape; waits for the device
//                    infinite
namespace cpu {
void diagonal(Exec&, ConstTensorView h, TensorView d);
void add_diagonal(Exec&, ConstTensorView d, TensorView h);
void set_diagonal(Exec&, ConstTensorView d, TensorView h);
void zero_columns(Exec&, ConstTensorView marked, TensorView w);
void prune_quads(Exec&, ConstTensorView s, TensorView w);
void scale_columns(Exec&, ConstTensorView s, TensorView w);
void scale_rows(Exec&, ConstTensorView s, TensorView w);
void permute(Exec&, ConstTensorView x, ConstTensorView row_of, ConstTensorView col_of, TensorView y);
int64_t count_nonfinite(Exec&, ConstTensorView x);
}  // namespace cpu
namespace cuda {
void diagonal(Exec&, ConstTensorView h, TensorView d);
void add_diagonal(Exec&, ConstTensorView d, TensorView h);
void set_diagonal(Exec&, ConstTensorView d, TensorView h);
void zero_columns(Exec&, ConstTensorView marked, TensorView w);
void prune_quads(Exec&, ConstTensorView s, TensorView w);
void scale_columns(Exec&, ConstTensorView s, TensorView w);
void scale_rows(Exec&, ConstTensorView s, TensorView w);
void permute(Exec&, ConstTensorView x, ConstTensorView row_of, ConstTensorView col_of, TensorView y);
int64_t count_nonfinite(Exec&, ConstTensorView x);
}  // namespace cuda
inline void diagonal(Exec& ex, ConstTensorView h, TensorView d) {
  pick(ex, &cpu::diagonal, FEWBIT_CUDA_OP(diagonal))(ex, h, d);
}
inline void add_diagonal(Exec& ex, ConstTensorView d, TensorView h) {
  pick(ex, &cpu::add_diagonal, FEWBIT_CUDA_OP(add_diagonal))(ex, d, h);
}
inline void set_diagonal(Exec& ex, ConstTensorView d, TensorView h) {
  pick(ex, &cpu::set_diagonal, FEWBIT_CUDA_OP(set_diagonal))(ex, d, h);
}
inline void zero_columns(Exec& ex, ConstTensorView marked, TensorView w) {
  pick(ex, &cpu::zero_columns, FEWBIT_CUDA_OP(zero_columns))(ex, marked, w);
}
inline void prune_quads(Exec& ex, ConstTensorView s, TensorView w) {
  FEWBIT_ASSERT(w.cols() % 4 == 0 && (!s.data || s.numel() == w.cols()));
  pick(ex, &cpu::prune_quads, FEWBIT_CUDA_OP(prune_quads))(ex, s, w);
}
inline void scale_columns(Exec& ex, ConstTensorView s, TensorView w) {
  pick(ex, &cpu::scale_columns, FEWBIT_CUDA_OP(scale_columns))(ex, s, w);
}
inline void scale_rows(Exec& ex, ConstTensorView s, TensorView w) {
  pick(ex, &cpu::scale_rows, FEWBIT_CUDA_OP(scale_rows))(ex, s, w);
}
inline void permute(Exec& ex, ConstTensorView x, ConstTensorView row_of, ConstTensorView col_of, TensorView y) {
  pick(ex, &cpu::permute, FEWBIT_CUDA_OP(permute))(ex, x, row_of, col_of, y);
}
inline int64_t count_nonfinite(Exec& ex, ConstTensorView x) {
  return pick(ex, &cpu::count_nonfinite, FEWBIT_CUDA_OP(count_nonfinite))(ex, x);
}
}  // namespace fewbit

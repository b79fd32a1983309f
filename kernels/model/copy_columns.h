#pragma once
// copy_columns: columns of one matrix into columns of another; order_columns: all of them in another order.
#include "kernels/exec/exec.h"
namespace fewbit {
// to[r, to_begin + c] = from[r, from_begin + c] for 0 <= c < cols and every row r. It takes the results of a fused
// product apart (q, k and v; gate and up) and puts their gradients together. With groups the same for each of `count`,
// whose columns begin from_step and to_step after those of the group before (a head's query and its gate side by side).
//   from, to  [rows, any width]  f32 | bf16, alike; other columns of `to` stay
struct ColumnGroups {
  int64_t count = 1, from_step = 0, to_step = 0;
};
namespace cpu {
void copy_columns(Exec&, ConstTensorView from, int64_t from_begin, TensorView to, int64_t to_begin, int64_t cols,
                  ColumnGroups groups);
// y[r, i] = x[r, order[i]], on the CPU alone: the inputs of a linear whose columns lie in the order of their groups.
//   x, y   [rows, n]  f32 | bf16, alike
//   order  [n]        i32
void order_columns(Exec&, ConstTensorView x, ConstTensorView order, TensorView y);
}  // namespace cpu
namespace cuda {
void copy_columns(Exec&, ConstTensorView from, int64_t from_begin, TensorView to, int64_t to_begin, int64_t cols,
                  ColumnGroups groups);
}
inline void copy_columns(Exec& ex, ConstTensorView from, int64_t from_begin, TensorView to, int64_t to_begin,
                         int64_t cols, ColumnGroups groups = {}) {
  const int64_t last = groups.count - 1;
  FEWBIT_ASSERT(from.dtype == to.dtype && from.rows() == to.rows());
  FEWBIT_ASSERT(from_begin + last * groups.from_step + cols <= from.cols());
  FEWBIT_ASSERT(to_begin + last * groups.to_step + cols <= to.cols());
  pick(ex, &cpu::copy_columns, FEWBIT_CUDA_OP(copy_columns))(ex, from, from_begin, to, to_begin, cols, groups);
}
}  // namespace fewbit

#pragma once
// copy_columns: columns of one matrix into columns of another.
#include "kernels/exec/exec.h"
namespace fewbit {
// to[r, to_begin + c] = from[r, from_begin + c] for 0 <= c < cols and every row r. It takes the results of a fused
// product apart (q, k and v; gate and up) and puts their gradients together.
//   from, to  [rows, any width]  f32 | bf16, alike; other columns of `to` stay
namespace cpu {
void copy_columns(Exec&, ConstTensorView from, int64_t from_begin, TensorView to, int64_t to_begin, int64_t cols);
}
namespace cuda {
void copy_columns(Exec&, ConstTensorView from, int64_t from_begin, TensorView to, int64_t to_begin, int64_t cols);
}
inline void copy_columns(Exec& ex, ConstTensorView from, int64_t from_begin, TensorView to, int64_t to_begin,
                         int64_t cols) {
  pick(ex, &cpu::copy_columns, FEWBIT_CUDA_OP(copy_columns))(ex, from, from_begin, to, to_begin, cols);
}
}  // namespace fewbit

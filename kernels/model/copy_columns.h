#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// to[r, to_begin + c] = from[r, from_begin + c] for 0 <= c < cols and every row: takes the parts of a fused product
// apart, and puts their gradients together.
//   from, to  [rows, …]  f32 | bf16, alike; the rest of `to` stays
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

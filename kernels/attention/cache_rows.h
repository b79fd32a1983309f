#pragma once
// cache_rows: new rows to their positions in a cache that has one row a position.
#include "kernels/exec/exec.h"
namespace fewbit {
// Row b * len + i of x, new token i of sequence b, goes to cache[b, positions[b * len + i], :]. Nothing else changes.
//   x          [batch * len, d]        any dtype
//   positions  [batch * len] i32, in [0, capacity), all different within a sequence, on the Exec's device
//   cache      [batch, capacity, d]    the dtype of x
namespace cpu {
void cache_rows(Exec&, ConstTensorView x, ConstTensorView positions, TensorView cache);
}
namespace cuda {
void cache_rows(Exec&, ConstTensorView x, ConstTensorView positions, TensorView cache);
}
inline void cache_rows(Exec& ex, ConstTensorView x, ConstTensorView positions, TensorView cache) {
  FEWBIT_ASSERT(cache.shape.rank() == 3 && cache.dtype == x.dtype && cache.shape[2] == x.cols());
  FEWBIT_ASSERT(x.rows() % cache.shape[0] == 0 && positions.dtype == DType::i32 && positions.numel() == x.rows());
  pick(ex, &cpu::cache_rows, FEWBIT_CUDA_OP(cache_rows))(ex, x, positions, cache);
}
}  // namespace fewbit

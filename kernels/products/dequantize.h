#pragma once
// dequantize: the values that the codes of a linear stand for.
#include "kernels/exec/exec.h"
#include "kernels/grids/coded_view.h"
namespace fewbit {
// The `levels` of a float grid, [256] f32 on the host: levels[c] is what code c is worth (E2M1: by its low four bits).
Tensor code_levels(Grid grid);

// w[o, i] = the value of q at (o, i) (kernels/grids/coded_view.h): computed in f32, rounded once to the dtype of w.
//   q  codes and scales; zeros, group_of as it has them; levels exactly on float grids. All are read, none is written
//   w  [out, in]  f32 | bf16; overwritten
namespace cpu {
void dequantize(Exec&, const CodedView& q, TensorView w);
}
namespace cuda {
void dequantize(Exec&, const CodedView& q, TensorView w);
}
inline void dequantize(Exec& ex, const CodedView& q, TensorView w) {
  FEWBIT_ASSERT(w.rows() == q.codes.rows() && w.cols() == q.codes.cols());
  FEWBIT_ASSERT((q.grid == Grid::integer) == (q.levels.data == nullptr));
  pick(ex, &cpu::dequantize, FEWBIT_CUDA_OP(dequantize))(ex, q, w);
}
}  // namespace fewbit

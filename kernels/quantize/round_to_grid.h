#pragma once
// round_to_grid: weights to the nearest codes of a grid whose scales are known (round to nearest).
#include "kernels/exec/exec.h"
#include "kernels/grids/coded_view.h"
namespace fewbit {
// q.codes[o, i] = clamp(round(w[o, i] / scale) + zero, 0, 2^bits - 1) on integer grids; on Grid::f8_e4m3 the code of
// the E4M3 value nearest to w[o, i] / scale, saturating at +-448 (OCP OFP8, 2023). Ties go to even, as in PyTorch.
//   w  [out, in] f32
//   q  codes are overwritten; scales, zeros, group_of, grid, bits, group and out_group are read. No other grid: E2M1
//   has
//      kernels/quantize/round_fp4.h
// Weights are finite; callers refuse others before.
namespace cpu {
void round_to_grid(Exec&, ConstTensorView w, const MutableCodedView& q);
}
namespace cuda {
void round_to_grid(Exec&, ConstTensorView w, const MutableCodedView& q);
}
inline void round_to_grid(Exec& ex, ConstTensorView w, const MutableCodedView& q) {
  FEWBIT_ASSERT(q.codes.rows() == w.rows() && q.codes.cols() == w.cols());
  FEWBIT_ASSERT(q.grid == Grid::integer || q.grid == Grid::f8_e4m3);
  pick(ex, &cpu::round_to_grid, FEWBIT_CUDA_OP(round_to_grid))(ex, w, q);
}
}  // namespace fewbit

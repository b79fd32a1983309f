#pragma once
#include "kernels/exec/exec.h"
#include "kernels/quantize/choose_scales.h"
#include "src/core/quantized_linear.h"
namespace fewbit {
// The column loop of GPTQ (Frantar et al., algorithm 1) on the factor R of kernels/quantize/factor.h, R R^T = damped H:
//   live_k = w_k + sum_{j<k} (w_j - q_j) R_jk / R_kk,   q_k = round of live_k on its group's grid,
// in tiles of 128 columns: one product brings the residual of earlier tiles (live_B = w_B + (W-Q)_{<B} R_{<B,B}
// R_BB^-1), the tile itself runs the ordinary recursion with U_BB = R_BB^-1. Columns are in *processing* order: a
// caller with act-order permutes w, h and the statistics before, and the codes back after.
struct ErrorFeedbackArgs {
  ConstTensorView w{};         // [out, in] f32, processing order; not changed
  ConstTensorView r{};         // [in, in]  f32, upper
  ConstTensorView h_diag{};    // [in]      f32 diag of H, for the scale search on live weights
  int64_t group = 128;         // columns that share a scale, consecutive in processing order unless group_of is given
  ConstTensorView group_of{};  // [in] i32: fixed grids; then scales (and zeros) are INPUT. data == nullptr: live scales
  ScaleSearch search{};        // rule, bits, symmetry
  Grid grid = Grid::integer;   // f8_e4m3: with fixed grids alone (group_of)
};
// codes  [out, in] u8; overwritten · scales [out, G] f32 and zeros [out, G] u8 (null when symmetric): overwritten
// with live scales, read with fixed ones · loss [out] f64: sum of e^2 per row = row's share of tr(D H D^T) exactly;
// overwritten. Scales of a group are chosen from the live weights of all its columns at its first one; by
// ScaleRule::loop_grid, which only this op knows, with the group's own share of that sum as the measure.
namespace cpu {
void error_feedback(Exec&, const ErrorFeedbackArgs&, TensorView codes, TensorView scales, TensorView zeros,
                    TensorView loss);
}
namespace cuda {
void error_feedback(Exec&, const ErrorFeedbackArgs&, TensorView codes, TensorView scales, TensorView zeros,
                    TensorView loss);
}
inline void error_feedback(Exec& ex, const ErrorFeedbackArgs& a, TensorView codes, TensorView scales, TensorView zeros,
                           TensorView loss) {
  const int64_t out = a.w.rows(), in = a.w.cols();
  FEWBIT_ASSERT(a.r.rows() == in && a.r.cols() == in && a.h_diag.numel() == in && a.group > 0);
  FEWBIT_ASSERT(codes.shape == a.w.shape && scales.rows() == out && loss.numel() == out);
  FEWBIT_ASSERT(a.search.symmetric == (zeros.data == nullptr));
  FEWBIT_ASSERT(a.grid == Grid::integer || (a.grid == Grid::f8_e4m3 && a.group_of.data && !zeros.data));
  FEWBIT_ASSERT(a.group_of.data || scales.cols() == (in + a.group - 1) / a.group);
  pick(ex, &cpu::error_feedback, FEWBIT_CUDA_OP(error_feedback))(ex, a, codes, scales, zeros, loss);
}
}  // namespace fewbit

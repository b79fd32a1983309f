#pragma once
// error_feedback: the column loop of GPTQ, which rounds the columns of a weight one after another and lets those to
// come make up for the errors so far.
#include "kernels/exec/exec.h"
#include "kernels/grids/coded_view.h"
#include "kernels/grids/two_of_four.h"
#include "kernels/quantize/choose_scales.h"
namespace fewbit {
// Frantar et al., GPTQ (2022), section 4 and algorithm 1, on the factor R of kernels/quantize/factor.h, where
// R R^T = H + lambda I:
//   live_k = w_k + sum_{j<k} (w_j - q_j) R_jk / R_kk,   q_k = live_k rounded to the grid of its group
// It runs in tiles of at most 128 columns. For tile B one product brings the errors of all columns before it,
// live_B = w_B + (W - Q)_{<B} R_{<B,B} R_BB^-1, and the tile itself runs the paper's recursion with U_BB = R_BB^-1.
// Columns come in processing order: for act-order (largest diagonal of H first) the caller permutes w, r and h_diag
// before, and the codes back after.
struct ErrorFeedbackArgs {
  ConstTensorView w{};       // [out, in] f32, processing order
  ConstTensorView r{};       // [in, in]  f32, upper triangular
  ConstTensorView h_diag{};  // [in]      f32, the diagonal of H: the importance of columns in the search for scales
  ScaleSearch search{};      // rule, bits and symmetry of the scales that are chosen here; bits as in q
  // 2:4 sparsity: at the first column of every four the larger_pair() of their live weights, which have the errors of
  // all columns before in them, and the diagonal of r is chosen to stay; the two others get the level 0, and their
  // errors are fed forward like those of rounding. Scales are searched over the pairs that would be chosen when the
  // loop reaches their group. Symmetric integers without group_of; in and q.group multiples of 4.
  bool two_of_four = false;
};
// q, of out_group 1, with zeros exactly where search.symmetric is false:
//   codes  are overwritten
//   no group_of: the scale (and zero) of a group of q.group columns is chosen from the live weights of all its columns
//                when the loop reaches the first; scales and zeros are overwritten. Integer grids only. By
//                ScaleRule::loop_grid, which no other op knows, the measure is the group's share of `loss`
//   group_of:    the grids are fixed; scales and zeros are read. Integer grids, or Grid::f8_e4m3 without zeros
// loss [out] f64 is overwritten with the sum of e_k^2 = ((live_k - q_k) R_kk)^2 over a row, which is exactly the row's
// part of tr(D (H + lambda I) D^T), D = W - Q. Numbers that are not finite end up there; nothing else is reported.
namespace cpu {
void error_feedback(Exec&, const ErrorFeedbackArgs&, const MutableCodedView& q, TensorView loss);
}
namespace cuda {
void error_feedback(Exec&, const ErrorFeedbackArgs&, const MutableCodedView& q, TensorView loss);
}
inline void error_feedback(Exec& ex, const ErrorFeedbackArgs& a, const MutableCodedView& q, TensorView loss) {
  const int64_t out = a.w.rows(), in = a.w.cols();
  FEWBIT_ASSERT(a.r.rows() == in && a.r.cols() == in && a.h_diag.numel() == in && loss.numel() == out);
  FEWBIT_ASSERT(q.codes.shape == a.w.shape && q.out_group == 1 && q.bits == a.search.bits);
  FEWBIT_ASSERT(a.search.symmetric == (q.zeros.data == nullptr));
  FEWBIT_ASSERT(q.grid == Grid::integer || (q.grid == Grid::f8_e4m3 && q.group_of.data && !q.zeros.data));
  FEWBIT_ASSERT(!a.two_of_four ||
                (q.grid == Grid::integer && a.search.symmetric && !q.group_of.data && in % 4 == 0 && q.group % 4 == 0));
  pick(ex, &cpu::error_feedback, FEWBIT_CUDA_OP(error_feedback))(ex, a, q, loss);
}
}  // namespace fewbit

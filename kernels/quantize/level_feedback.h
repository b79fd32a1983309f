#pragma once
// feed_back_levels and descend_levels: GPTQ's column loop and the descent after it, on grids of levels
// (kernels/grids/level_grid.h). What error_feedback and refine.h do on integer grids, they do where the scales are
// rounded too.
#include <functional>

#include "kernels/exec/exec.h"
#include "kernels/grids/level_grid.h"
#include "kernels/quantize/column_tiles.h"

namespace fewbit {

// Chooses d, dmin, scales and mins of block b of a row for its live weights, [block] f32, and writes them into the
// codes that are being made. Rows are chosen in parallel.
using ChooseBlock = std::function<void(int64_t row, int64_t b, const float* live)>;

struct LevelProblem {
  ConstTensorView target{};  // [out, in] f32, what the codes should reproduce
  ConstTensorView h{};       // [in, in]  f32, symmetric, damped: of descend_levels
  ConstTensorView r{};       // [in, in]  f32, its factor (kernels/quantize/factor.h): of feed_back_levels
};

// feed_back_levels: columns in the order of the checkpoint, as in error_feedback.h; the grid of a block is chosen from
//   the live weights of all its columns when the loop reaches the first. Everything of q is overwritten, and loss [out]
//   f64 with tr(D (H + lambda I) D^T) of each row, D = target - values.
// descend_levels: one pass of coordinate descent on tr(D H D^T), row by row: in every block each code, then each scale
// and
//   minimum of a sub-block, then d and dmin where the grid moves them, is set to the best of its set with all others as
//   they are, and kept where that lowers the loss. q is read and overwritten.
// Both work in host memory on the CPU: `ex` is a CPU, to which a method on a GPU brings its matrices. `in` is a
// multiple of the grid's block, and a tile of columns of a whole number of blocks or a part of one.
namespace cpu {
void feed_back_levels(const LevelProblem&, const LevelGrid&, const ChooseBlock&, const LevelCodes& q, TensorView loss);
void descend_levels(const LevelProblem&, const LevelGrid&, const LevelCodes& q);
}  // namespace cpu

inline void require_levels(const LevelProblem& p, const LevelGrid& g, const LevelCodes& q) {
  const int64_t in = p.target.cols();
  FEWBIT_ASSERT(in % g.block == 0 && g.block % g.sub == 0 && q.codes.shape == p.target.shape);
  FEWBIT_ASSERT(g.block <= kTileCols ? kTileCols % g.block == 0 : g.block % kTileCols == 0);
  FEWBIT_ASSERT(q.d.cols() == in / g.block && q.scales.cols() == in / g.sub);
  FEWBIT_ASSERT(g.most_min == 0 || (q.dmin.cols() == in / g.block && q.mins.cols() == in / g.sub));
}
inline void feed_back_levels(const Exec& ex, const LevelProblem& p, const LevelGrid& g, const ChooseBlock& choose,
                             const LevelCodes& q, TensorView loss) {
  require_levels(p, g, q);
  FEWBIT_ASSERT(!ex.on_cuda() && p.r.rows() == p.target.cols() && loss.numel() == p.target.rows());
  cpu::feed_back_levels(p, g, choose, q, loss);
}
inline void descend_levels(const Exec& ex, const LevelProblem& p, const LevelGrid& g, const LevelCodes& q) {
  require_levels(p, g, q);
  FEWBIT_ASSERT(!ex.on_cuda() && p.h.rows() == p.target.cols());
  cpu::descend_levels(p, g, q);
}

}  // namespace fewbit

#pragma once
// fisher_draw: gradients at the logits whose covariance is the Fisher information of the next-token distribution.
#include "kernels/exec/exec.h"
#include "src/core/rng.h"
namespace fewbit {
// With p = softmax(z) of a row and signs e of +-1 that are drawn for each logit,
//   g_c = sqrt(p_c) e_c - p_c sum_d sqrt(p_d) e_d      has the mean 0 and the covariance diag(p) - p p^T,
// which is the Hessian of the KL divergence from p at p itself. A gradient of a token that is drawn from p has the same
// covariance (Martens, 2020, New insights and perspectives on the natural gradient method, section 5), but falls on few
// logits.
//   logits     [rows, vocab]  f32; g in their place
//   softcap    > 0: what the logits were capped at (cap_logits()); g is then the gradient at the logits before that
//   seed       of the signs; `first_row` is the number of the first row in the stream of signs
// Exponentials are about the row's maximum.
namespace cpu {
void fisher_draw(Exec&, float softcap, uint64_t seed, int64_t first_row, TensorView logits);
}
namespace cuda {
void fisher_draw(Exec&, float softcap, uint64_t seed, int64_t first_row, TensorView logits);
}
inline void fisher_draw(Exec& ex, float softcap, uint64_t seed, int64_t first_row, TensorView logits) {
  pick(ex, &cpu::fisher_draw, FEWBIT_CUDA_OP(fisher_draw))(ex, softcap, seed, first_row, logits);
}

// The signs of logits [64 word, 64 word + 64) of a row, a bit each.
FEWBIT_HD uint64_t fisher_signs(uint64_t seed, int64_t row, int64_t word) {
  return mix64(mix64(seed + static_cast<uint64_t>(row) * 0xd1342543de82ef95ull + static_cast<uint64_t>(word)));
}
}  // namespace fewbit

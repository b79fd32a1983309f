#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// Distance of two next-token distributions, per row: p = softmax(base), q = softmax(model).
//   kl[r]   = sum_v p(v) (ln p(v) - ln q(v))                                        f64; overwritten
//   top1[r] = 1 if both have the same likeliest token, else 0                       i32; overwritten
//   top5[r] = how many of base's five likeliest are among model's five likeliest    i32; overwritten
//   base, model  [rows, vocab] f32, vocab >= 5.  The first index wins among equal logits.
struct DivergenceOut {
  TensorView kl{}, top1{}, top5{};
};
namespace cpu {
void divergence(Exec&, ConstTensorView base, ConstTensorView model, const DivergenceOut&);
}
namespace cuda {
void divergence(Exec&, ConstTensorView base, ConstTensorView model, const DivergenceOut&);
}
inline void divergence(Exec& ex, ConstTensorView base, ConstTensorView model, const DivergenceOut& out) {
  pick(ex, &cpu::divergence, FEWBIT_CUDA_OP(divergence))(ex, base, model, out);
}
}  // namespace fewbit

#pragma once
// divergence: how far two next-token distributions are apart.
#include "kernels/exec/exec.h"
namespace fewbit {
// With p = softmax(base[r]) and q = softmax(model[r]):
//   kl[r]   = sum_v p(v) (ln p(v) - ln q(v))    f64, nats (Kullback-Leibler divergence of model from base)
//   top1[r] = 1 if both have the same likeliest token, else 0                     i32
//   top5[r] = how many of the five likeliest of base are among those of model     i32
//   base, model  [rows, vocab] f32, vocab >= 5; the lower index wins among equal logits. kl, top1, top5 [rows] are
//   overwritten. Logits are finite.
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

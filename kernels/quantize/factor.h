#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// The one factorisation of GPTQ: H + lambda I = R R^T with R upper triangular, by one Cholesky of the index-reversed
// matrix. U = R^-1 is the factor of the inverse that the published algorithm uses (Frantar et al., GPTQ, step 3), so
// no inverse is ever formed.
//   h  [n, n] f32, symmetric, both halves; not changed        r  [n, n] f32; overwritten, zero below the diagonal
// Failure is a status, not an exception: `pivot` is the 1-based order of the leading minor (of the reversed matrix)
// that was not positive definite, 0 on success. A non-finite entry fails with pivot 1.
enum class Precision : uint8_t { f32, f64 };
struct [[nodiscard]] FactorStatus {
  int64_t pivot = 0;
  bool ok() const { return pivot == 0; }
};
namespace cpu {
FactorStatus factorize(Exec&, ConstTensorView h, float lambda, Precision, TensorView r);
}
namespace cuda {
FactorStatus factorize(Exec&, ConstTensorView h, float lambda, Precision, TensorView r);
}
inline FactorStatus factorize(Exec& ex, ConstTensorView h, float lambda, Precision p, TensorView r) {
  return pick(ex, &cpu::factorize, FEWBIT_CUDA_OP(factorize))(ex, h, lambda, p, r);
}

// The weight that reproduces the unquantized output from the quantized input (closed form of the GPTAQ idea):
//   target = w + w (cross - gram) (gram + lambda I)^-1
//   cross = sum x_full x_quantized^T, gram = sum x_quantized x_quantized^T
// solved in f64. A zero on the diagonal of gram (an input never seen) counts as 1 in the inverse; with it the shift of
// that column is zero.   w, target [out, n] f32; cross, gram [n, n] f32. Returns the factorisation's status; target is
// untouched when it fails.
namespace cpu {
FactorStatus shift_targets(Exec&, ConstTensorView w, ConstTensorView cross, ConstTensorView gram, float lambda,
                           TensorView target);
}
namespace cuda {
FactorStatus shift_targets(Exec&, ConstTensorView w, ConstTensorView cross, ConstTensorView gram, float lambda,
                           TensorView target);
}
inline FactorStatus shift_targets(Exec& ex, ConstTensorView w, ConstTensorView cross, ConstTensorView gram,
                                  float lambda, TensorView target) {
  return pick(ex, &cpu::shift_targets, FEWBIT_CUDA_OP(shift_targets))(ex, w, cross, gram, lambda, target);
}
}  // namespace fewbit

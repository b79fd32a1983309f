#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// Turns every head of queries and of keys by the same orthonormal Hadamard matrix, in place: their products stay, but
// the large channels of a head, which queries and keys share, are spread over all of it, so that rounding a key to few
// bits changes scores less (the rotation of QuaRot, arXiv 2404.00456, section 4, applied to cached keys). Where
// head_dim is no power of two, runs of its largest power-of-two divisor are turned, each by itself.
//   q  [tokens, heads * head_dim]   k  [tokens, kv_heads * head_dim]   f32 | bf16; computed in f32, rounded once
namespace cpu {
void hadamard(Exec&, TensorView q, TensorView k, int64_t head_dim);
}
namespace cuda {
void hadamard(Exec&, TensorView q, TensorView k, int64_t head_dim);
}
inline void hadamard(Exec& ex, TensorView q, TensorView k, int64_t head_dim) {
  pick(ex, &cpu::hadamard, FEWBIT_CUDA_OP(hadamard))(ex, q, k, head_dim);
}

// The run that is turned: the largest power of two that divides head_dim.
constexpr int64_t hadamard_run(int64_t head_dim) { return head_dim & -head_dim; }
}  // namespace fewbit

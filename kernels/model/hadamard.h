#pragma once
// hadamard: the rotation of queries and keys before keys are rounded for the cache.
#include "kernels/exec/exec.h"
namespace fewbit {
// Multiplies every head of queries and of keys by the same orthonormal Hadamard matrix, so that their products stay.
// The large channels of a head, which queries and keys share, are spread over all of it, and rounding a key to few bits
// changes scores less (QuaRot: Ashkboos et al., 2024, section 4, for cached keys). Where head_dim is no power of two,
// each run of hadamard_run(head_dim) values has a matrix of its own.
//   q  [tokens, heads * head_dim]     f32 | bf16, in place
//   k  [tokens, kv_heads * head_dim]  the dtype of q, in place
// Computed in f32, rounded once. On a GPU hadamard_run(head_dim) is at most 1024.
namespace cpu {
// Each run of x [n] by its matrix; `run` is a power of two that divides n.
void hadamard_runs(float* x, int64_t n, int64_t run);
void hadamard(Exec&, TensorView q, TensorView k, int64_t head_dim);
}  // namespace cpu
namespace cuda {
void hadamard(Exec&, TensorView q, TensorView k, int64_t head_dim);
}
inline void hadamard(Exec& ex, TensorView q, TensorView k, int64_t head_dim) {
  pick(ex, &cpu::hadamard, FEWBIT_CUDA_OP(hadamard))(ex, q, k, head_dim);
}

// The run of values that a matrix multiplies: the largest power of two that divides head_dim.
constexpr int64_t hadamard_run(int64_t head_dim) { return head_dim & -head_dim; }
}  // namespace fewbit

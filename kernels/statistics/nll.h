#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// Negative log-likelihood of a target under softmax(logits), per row.
//   logits   [rows, vocab]  f32; `softcap` > 0 first maps z to softcap * tanh(z / softcap)
//   targets  [rows]         i32; -1 gives 0
//   out      [rows]         f32; overwritten
// The log-sum-exp is taken about the row's maximum.
namespace cpu {
void nll(Exec&, ConstTensorView logits, ConstTensorView targets, float softcap, TensorView out);
}
namespace cuda {
void nll(Exec&, ConstTensorView logits, ConstTensorView targets, float softcap, TensorView out);
}
inline void nll(Exec& ex, ConstTensorView logits, ConstTensorView targets, float softcap, TensorView out) {
  pick(ex, &cpu::nll, FEWBIT_CUDA_OP(nll))(ex, logits, targets, softcap, out);
}

// z = softcap * tanh(z / softcap) for every logit z, f32, in place; softcap > 0.
namespace cpu {
void cap_logits(Exec&, float softcap, TensorView logits);
}
namespace cuda {
void cap_logits(Exec&, float softcap, TensorView logits);
}
inline void cap_logits(Exec& ex, float softcap, TensorView logits) {
  pick(ex, &cpu::cap_logits, FEWBIT_CUDA_OP(cap_logits))(ex, softcap, logits);
}

// ids[r] = the index of the largest logit of row r; the first one among equals.   logits [rows, vocab] f32, ids [rows]
// i32
namespace cpu {
void argmax(Exec&, ConstTensorView logits, TensorView ids);
}
namespace cuda {
void argmax(Exec&, ConstTensorView logits, TensorView ids);
}
inline void argmax(Exec& ex, ConstTensorView logits, TensorView ids) {
  pick(ex, &cpu::argmax, FEWBIT_CUDA_OP(argmax))(ex, logits, ids);
}

// values[i] += delta, i32: advances the positions of a decode step on the device.
namespace cpu {
void advance(Exec&, TensorView values, int32_t delta);
}
namespace cuda {
void advance(Exec&, TensorView values, int32_t delta);
}
inline void advance(Exec& ex, TensorView values, int32_t delta) {
  pick(ex, &cpu::advance, FEWBIT_CUDA_OP(advance))(ex, values, delta);
}
}  // namespace fewbit

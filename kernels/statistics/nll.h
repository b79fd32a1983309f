#pragma once
// Ops on logits: the loss of a target, soft-capping, the greedy choice; and the step of positions between two tokens.
#include "kernels/exec/exec.h"
namespace fewbit {
// out[r] = -ln softmax(logits[r])[targets[r]], in nats.
//   logits   [rows, vocab]  f32; `softcap` > 0 first maps z to softcap * tanh(z / softcap) (Gemma 2, 2024, section 2)
//   targets  [rows]         i32 in [0, vocab); a negative one gives 0 (a token that is not judged)
//   out      [rows]         f32; overwritten
// The log-sum-exp is taken about the row's maximum, so large logits do not overflow.
namespace cpu {
void nll(Exec&, ConstTensorView logits, ConstTensorView targets, float softcap, TensorView out);
}
namespace cuda {
void nll(Exec&, ConstTensorView logits, ConstTensorView targets, float softcap, TensorView out);
}
inline void nll(Exec& ex, ConstTensorView logits, ConstTensorView targets, float softcap, TensorView out) {
  pick(ex, &cpu::nll, FEWBIT_CUDA_OP(nll))(ex, logits, targets, softcap, out);
}

// z = softcap * tanh(z / softcap) for every logit z; softcap > 0.   logits f32, in place
namespace cpu {
void cap_logits(Exec&, float softcap, TensorView logits);
}
namespace cuda {
void cap_logits(Exec&, float softcap, TensorView logits);
}
inline void cap_logits(Exec& ex, float softcap, TensorView logits) {
  pick(ex, &cpu::cap_logits, FEWBIT_CUDA_OP(cap_logits))(ex, softcap, logits);
}

// ids[r] = the index of the largest logit of row r, the first one among equals (greedy decoding). A row without a logit
// above minus infinity gives 0.
//   logits  [rows, vocab] f32, vocab > 0
//   ids     [rows]        i32; overwritten
namespace cpu {
void argmax(Exec&, ConstTensorView logits, TensorView ids);
}
namespace cuda {
void argmax(Exec&, ConstTensorView logits, TensorView ids);
}
inline void argmax(Exec& ex, ConstTensorView logits, TensorView ids) {
  pick(ex, &cpu::argmax, FEWBIT_CUDA_OP(argmax))(ex, logits, ids);
}

// values[i] += delta: moves the positions of a decode step on, on the device.   values i32, any shape, in place
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

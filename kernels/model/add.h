#pragma once
// add: the residual sum.
#include "kernels/exec/exec.h"
namespace fewbit {
// x += h, computed in f32, rounded once.   h, x: the same shape and dtype, f32 | bf16; x in place
namespace cpu {
void add(Exec&, ConstTensorView h, TensorView x);
}
namespace cuda {
void add(Exec&, ConstTensorView h, TensorView x);
}
inline void add(Exec& ex, ConstTensorView h, TensorView x) { pick(ex, &cpu::add, FEWBIT_CUDA_OP(add))(ex, h, x); }
}  // namespace fewbit

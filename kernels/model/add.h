#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// x += h, computed in f32, rounded to the dtype of x (f32 | bf16). Same shapes, same dtype.
namespace cpu {
void add(Exec&, ConstTensorView h, TensorView x);
}
namespace cuda {
void add(Exec&, ConstTensorView h, TensorView x);
}
inline void add(Exec& ex, ConstTensorView h, TensorView x) { pick(ex, &cpu::add, FEWBIT_CUDA_OP(add))(ex, h, x); }
}  // namespace fewbit

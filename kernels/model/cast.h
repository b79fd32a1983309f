#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// y = x, converted element by element. Equal element counts.
//   x  f32 | f16 | bf16 | f8_e4m3 | f8_e5m2     y  f32 | f16 | bf16 | f8_e4m3 (saturating at +-448)
//   Narrowing rounds to nearest even. Same dtype is a copy.
namespace cpu {
void cast(Exec&, ConstTensorView x, TensorView y);
}
namespace cuda {
void cast(Exec&, ConstTensorView x, TensorView y);
}
inline void cast(Exec& ex, ConstTensorView x, TensorView y) { pick(ex, &cpu::cast, FEWBIT_CUDA_OP(cast))(ex, x, y); }
}  // namespace fewbit

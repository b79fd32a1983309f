#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// loss[o] = delta_o H delta_o^T with delta = a - b: the error of each output row on the calibration data, as a raw
// sum over tokens.   a, b [out, in] f32 · h [in, in] f32 · loss [out] f64; overwritten
namespace cpu {
void gram_loss(Exec&, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss);
}
namespace cuda {
void gram_loss(Exec&, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss);
}
inline void gram_loss(Exec& ex, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss) {
  pick(ex, &cpu::gram_loss, FEWBIT_CUDA_OP(gram_loss))(ex, a, b, h, loss);
}
}  // namespace fewbit

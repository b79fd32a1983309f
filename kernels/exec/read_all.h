#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// out[0] = XOR of all 32-bit words of `data`: reads every byte once and writes next to nothing, so its rate is the
// ceiling of everything that streams weights.
//   data  any dtype, contiguous, 16-byte aligned, bytes a multiple of 16     out  i32 [1]
namespace cpu {
void read_all(Exec&, ConstTensorView data, TensorView out);
}
namespace cuda {
void read_all(Exec&, ConstTensorView data, TensorView out);
}
inline void read_all(Exec& ex, ConstTensorView data, TensorView out) {
  FEWBIT_ASSERT(data.bytes() % 16 == 0 && out.numel() == 1 && out.dtype == DType::i32);
  pick(ex, &cpu::read_all, FEWBIT_CUDA_OP(read_all))(ex, data, out);
}
}  // namespace fewbit

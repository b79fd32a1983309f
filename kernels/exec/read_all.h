#pragma once
// read_all: the speed of memory, for measurements.
#include "kernels/exec/exec.h"
namespace fewbit {
// out[0] = XOR of all 32-bit words of `data`. Every byte is read once and next to nothing is written, so its rate is
// the ceiling of everything that reads weights from memory.
//   data  any dtype, 16-byte aligned, a multiple of 16 bytes
//   out   [1] i32; overwritten
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

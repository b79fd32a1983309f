#pragma once
// Packs codes and scales into the Marlin layout.
#include "kernels/exec/exec.h"
namespace fewbit {
// Writes outputs [first, first + n) of a symmetric linear into its Marlin tensors (src/core/marlin_layout.h), for
// weights that are rounded on the device where they run. `first` and n are multiples of 64, `in` of 16.
//   codes   [n, in] u8, below 2^bits
//   scales  [n, G] f32, rounded to f16
//   bits    4 or 8
//   b, s    as in MarlinView (marlin_gemm.h), of all outputs; what belongs to other outputs stays as it is
struct MarlinPackArgs {
  ConstTensorView codes{}, scales{};
  int bits = 4;
  int64_t first = 0;
};
namespace cpu {
void marlin_pack(Exec&, const MarlinPackArgs&, TensorView b, TensorView s);
}
namespace cuda {
void marlin_pack(Exec&, const MarlinPackArgs&, TensorView b, TensorView s);
}
inline void marlin_pack(Exec& ex, const MarlinPackArgs& a, TensorView b, TensorView s) {
  pick(ex, &cpu::marlin_pack, FEWBIT_CUDA_OP(marlin_pack))(ex, a, b, s);
}
}  // namespace fewbit

#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// Outputs [first, first + n) of a symmetric linear into its Marlin tensors (src/core/marlin_layout.h), for weights that
// are rounded where they will run. `first` and n are multiples of 64, `in` one of 16.
//   codes [n, in] u8 below 2^bits · scales [n, G] f32, rounded to f16 · bits 4 | 8
//   b, s as in MarlinView (kernels/products/marlin/marlin_gemm.h), of all outputs; the rest of them stays
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

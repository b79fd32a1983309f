#pragma once
#include "kernels/exec/exec.h"
#include "src/core/quantized_linear.h"
namespace fewbit {
// codes[o, i] = clamp(round(w[o, i] / scale) + zero, 0, 2^bits - 1), or the code of the nearest E4M3 value, saturating;
// ties to even, as PyTorch rounds.
//   w [out, in] f32 · scales [ceil(out / out_group), G] f32 · zeros [out, G] u8 or null (2^(bits-1)) · codes [out, in]
//     u8; overwritten
// Column i is in group i / group, or group_of[i] where given.
struct RoundArgs {
  ConstTensorView w{}, scales{}, zeros{}, group_of{};
  int bits = 4;
  int64_t group = 128;
  Grid grid = Grid::integer;
  int64_t out_group = 1;
};
namespace cpu {
void round_to_grid(Exec&, const RoundArgs&, TensorView codes);
}
namespace cuda {
void round_to_grid(Exec&, const RoundArgs&, TensorView codes);
}
inline void round_to_grid(Exec& ex, const RoundArgs& a, TensorView codes) {
  pick(ex, &cpu::round_to_grid, FEWBIT_CUDA_OP(round_to_grid))(ex, a, codes);
}
}  // namespace fewbit

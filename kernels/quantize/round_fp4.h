#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// Weights to 4-bit floats (E2M1) in groups of neighbouring inputs, each with its own scale:
//   value(o, i) = E2M1(codes[o, i]) * scales[o, i / group] * global
//   w [out, in] f32, in % group = 0 · h [in] f32 > 0, importance of an input, or null (all ones)
//   codes [out, in] u8 below 16 · scales [out, in/group] f32, E4M3 or E8M0 values above 0; both overwritten
// search: the scale, of the few near absmax/6, that makes the h-weighted squared error of the group least; the
// largest of equals. Else the published rule: E4M3 nearest to absmax/6; E8M0 as compressed-tensors chooses it,
// 2^e / 4 of the power of two 2^e that absmax rounds to (up from 1.75). A group of zeros has the scale 1.
struct Fp4Rounding {
  ConstTensorView w{}, h{};
  int64_t group = 16;
  DType scale_dtype = DType::f8_e4m3;  // or f8_e8m0
  float global = 1;                    // a power of two
  bool search = true;
};
namespace cpu {
void round_fp4(Exec&, const Fp4Rounding&, TensorView codes, TensorView scales);
}
namespace cuda {
void round_fp4(Exec&, const Fp4Rounding&, TensorView codes, TensorView scales);
}
inline void round_fp4(Exec& ex, const Fp4Rounding& a, TensorView codes, TensorView scales) {
  pick(ex, &cpu::round_fp4, FEWBIT_CUDA_OP(round_fp4))(ex, a, codes, scales);
}
}  // namespace fewbit

#pragma once
// round_fp4: weights to 4-bit floats (E2M1), with their scales.
#include "kernels/exec/exec.h"
namespace fewbit {
// In groups of consecutive inputs, each with a scale of its own:
//   value(o, i) = E2M1(codes[o, i]) * scales[o, i / group] * global
// MXFP4 (OCP Microscaling Formats, 2023: groups of 32, E8M0 scales, global 1) or NVFP4 (groups of 16, E4M3 scales under
// a global one). Weights are finite.
struct Fp4Rounding {
  ConstTensorView w{};                 // [out, in] f32, in a multiple of group
  ConstTensorView h{};                 // [in] f32 > 0, importance of an input; data == nullptr: all ones
  int64_t group = 16;                  // consecutive inputs that share a scale
  DType scale_dtype = DType::f8_e4m3;  // or f8_e8m0
  float global = 1;                    // a power of two
  bool search = true;
};
// codes [out, in] u8 below 16 and scales [out, in / group] f32, values of scale_dtype above 0, are overwritten.
//   search         of the scales near max|w| / 6, the one with the least h-weighted squared error, the largest of
//   equals without, E4M3  the nearest to max|w| / 6 (6 is E2M1's largest value) without, E8M0  as compressed-tensors
//   chooses it: 2^e / 4, where max|w| rounds to 2^e (up from 1.75 * 2^(e-1))
// A group of zeros has the scale 1. The CPU and the GPU choose alike, to the bit.
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

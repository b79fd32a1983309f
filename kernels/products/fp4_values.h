#pragma once
// fp4_values: the values of MXFP4 (OCP Microscaling Formats, version 1.0), E2M1 codes in words of eight
// (kernels/grids/fp4_words.h) under powers of two.
#include <optional>

#include "kernels/exec/exec.h"
#include "kernels/grids/fp4_words.h"
namespace fewbit {
inline constexpr int kFp4Block = 32;  // inputs that share a scale
// The largest code of a scale that kernels take: 2^(code - 127) times a code's value is exact in bf16 up to here, by
// one multiplication. Weights reach 12 under it.
inline constexpr int kMostFp4Scale = 128;
struct Fp4View {
  ConstTensorView words{};   // [out, in / 8] u32, at multiples of 16 bytes
  ConstTensorView scales{};  // [out, in / 32] u8, E8M0 codes up to kMostFp4Scale
  int64_t out() const { return words.rows(); }
  int64_t in() const { return words.cols() * kFp4WordCodes; }
};
// The codes of scales that are powers of two, f32 on the host; nothing where one is above kMostFp4Scale.
std::optional<Tensor> fp4_scale_codes(const Tensor& scales);
//   w  [out, in]  bf16; overwritten with the values, all exact
namespace cpu {
void fp4_values(Exec&, const Fp4View& q, TensorView w);
}
namespace cuda {
void fp4_values(Exec&, const Fp4View& q, TensorView w);
}
inline void fp4_values(Exec& ex, const Fp4View& q, TensorView w) {
  FEWBIT_ASSERT(w.dtype == DType::bf16 && w.rows() == q.out() && w.cols() == q.in() && q.in() % kFp4Block == 0);
  FEWBIT_ASSERT(q.words.dtype == DType::u32 && q.scales.dtype == DType::u8);
  FEWBIT_ASSERT(q.scales.rows() == q.out() && q.scales.cols() == q.in() / kFp4Block);
  pick(ex, &cpu::fp4_values, FEWBIT_CUDA_OP(fp4_values))(ex, q, w);
}
}  // namespace fewbit

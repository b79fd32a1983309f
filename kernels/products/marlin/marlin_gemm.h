#pragma once
// Products of activations with linears in the Marlin layout.
#include <span>

#include "kernels/exec/exec.h"
namespace fewbit {
// A linear in the Marlin layout, exactly as the checkpoint stores it (src/core/marlin_layout.h).
struct MarlinView {
  ConstTensorView b{};  // i32 [in/16, out*16*bits/32]
  ConstTensorView s{};  // f16 [G, out], permuted
  ConstTensorView z{};  // i32 [G, out*bits/32] or null: every zero is 2^(bits-1)
  int bits = 4;         // 4 | 8
  int64_t out = 0, in = 0;
  int64_t groups() const { return s.rows(); }
  int64_t group() const { return in / groups(); }
};
// y = x W^T + bias, with W dequantized on the fly.
//   x     [rows, in] bf16; for the CPU half also f32
//   bias  [out] of x's dtype, or null
//   y     [rows, out] of x's dtype or f32
//   in % 16 == 0, out % 64 == 0, groups of 32, 64, 128 or `in` values; a defect of the caller stops the process.
// Up to 16 rows (on a GPU 64 where marlin_wide.h does not run) code - zero times activation is exact, a group's
// products are summed in f32, and the sum is multiplied by the group's scale in f32; docs/numerics.md has the forms
// that activations take. With 4 bits and groups of 128 and more that holds for activations from 2^-57 to 2^63: smaller
// ones lose bits, larger ones become infinite. For more rows the weight is (code - zero) * scale, rounded to bf16.
// Deterministic: k is split, and sums are added, in an order that depends on the shape and the number of rows only.
// kernels/products/marlin/README.md says which kernel a GPU runs.
namespace cpu {
void marlin_gemm(Exec&, ConstTensorView x, const MarlinView& w, ConstTensorView bias, TensorView y);
}
namespace cuda {
void marlin_gemm(Exec&, ConstTensorView x, const MarlinView& w, ConstTensorView bias, TensorView y);
}
inline void marlin_gemm(Exec& ex, ConstTensorView x, const MarlinView& w, ConstTensorView bias, TensorView y) {
  pick(ex, &cpu::marlin_gemm, FEWBIT_CUDA_OP(marlin_gemm))(ex, x, w, bias, y);
}
// The same for several linears of one x. On a GPU a few rows take one launch for up to kFusedProducts neighbours that
// agree in bits, number of groups, presence of zero points, and dtype of y. On the CPU the bits are those of one
// product after another; on a GPU the split of k, and with it the order of the sums, depends on the outputs of all
// products of a launch.
struct MarlinProduct {
  MarlinView w{};
  ConstTensorView bias{};
  TensorView y{};
  bool add = false;  // y += the product, rounded once; no bias then
};
inline constexpr int kFusedProducts = 3;
namespace cpu {
void marlin_gemms(Exec&, ConstTensorView x, std::span<const MarlinProduct> products);
}
namespace cuda {
void marlin_gemms(Exec&, ConstTensorView x, std::span<const MarlinProduct> products);
}
inline void marlin_gemms(Exec& ex, ConstTensorView x, std::span<const MarlinProduct> products) {
  pick(ex, &cpu::marlin_gemms, FEWBIT_CUDA_OP(marlin_gemms))(ex, x, products);
}
// w [out, in] f32 | bf16 = the dequantized weight, row-major; overwritten.
namespace cpu {
void marlin_dequantize(Exec&, const MarlinView& m, TensorView w);
}
namespace cuda {
void marlin_dequantize(Exec&, const MarlinView& m, TensorView w);
}
inline void marlin_dequantize(Exec& ex, const MarlinView& m, TensorView w) {
  pick(ex, &cpu::marlin_dequantize, FEWBIT_CUDA_OP(marlin_dequantize))(ex, m, w);
}
}  // namespace fewbit

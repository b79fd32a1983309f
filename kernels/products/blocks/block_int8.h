#pragma once
// Products of inputs in int8 with blocks as they lie in block_layout.h, on the CPU alone.
#include "kernels/exec/exec.h"
#include "kernels/products/blocks/block_layout.h"

namespace fewbit::cpu {

// Why blocks of this form are not multiplied by int8; "" = they are. Levels must be whole numbers, one after the other.
const char* refuses_int8(const BlockForm&);

// y = round(x) W^T + bias, where round() makes int8 codes of every 32 columns of a row of x, as quantize_rows() with
// such groups does (kernels/products/bytes/quantize_rows.h): scale max|x| / 127, codes to nearest even.
//   x     [rows, in]   bf16
//   bias  [out]        bf16, or null
//   y     [rows, out]  bf16 | f32; overwritten
// Numerics: over each group of a weight's columns, 32 at most, products of levels and codes are summed in integers,
// exactly. That sum in f32 times (the group's scale · x's scale, rounded to f32) is added to the output's by a fused
// multiply-add, then the minimum times (x's scale · the sum of the codes, rounded) by another one, in the order of the
// columns. Where the weight's scales are wide (packed integers) the sums of a block, 32 columns at a time, are added up
// with x's scales alone, by fused multiply-adds, and that times the block's scale is added to the output's; the minimum
// then meets the same sum of x. The bias comes last, then y is rounded once. So the bits of a row of y depend on that
// row of x and on the weight alone: not on rows beside it, threads, or the loops that ran. A NaN or an infinity in x
// makes its row of y NaN.
// Errors: shapes, dtypes or forms other than these stop the process (FEWBIT_ASSERT).
void block_int8_gemm(Exec&, ConstTensorView x, const BlockView& w, ConstTensorView bias, TensorView y);

// The loops that multiply, the best one last; another one than the best that this machine has is asked for by tests.
enum class Int8Loops : uint8_t { plain, avx2, avx512 };
Int8Loops int8_loops();
void block_int8_gemm(Exec&, ConstTensorView x, const BlockView& w, ConstTensorView bias, TensorView y, Int8Loops);

}  // namespace fewbit::cpu

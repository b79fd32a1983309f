#pragma once
// Products with blocks of GGUF as they lie in block_layout.h.
#include "kernels/exec/exec.h"
#include "kernels/products/blocks/block_layout.h"

namespace fewbit::cpu {

// y = x W^T + bias, on the CPU alone.
//   x     [rows, in]   bf16, not rounded any further
//   bias  [out]        bf16, or null
//   y     [rows, out]  bf16 | f32; overwritten
// Numerics: levels are exact, as are d · scale and m · min. Over each group of columns, in the order of the columns,
// products of levels and x are summed in f32 (with AVX512-BF16 pairs of them, as its instruction has it), the sum times
// the scale is added to the output's, then the minimum times the sum of the group's x; the bias last, then y is rounded
// once, to nearest even. So the bits of a row of y depend on that row of x and on the weight alone: not on the other
// rows, nor on how many there are, nor on threads. Values of x of a magnitude below 2^-126 count as zeros with
// AVX512-BF16. Errors: shapes or dtypes other than these stop the process (FEWBIT_ASSERT).
void block_gemm(Exec&, ConstTensorView x, const BlockView& w, ConstTensorView bias, TensorView y);

// The loops that multiply, the best one last, and the best that this machine has; another one is asked for by tests.
enum class BlockLoops : uint8_t { plain, avx2, avx512 };
BlockLoops block_loops();
inline bool takes(BlockLoops loops, const BlockForm& f) { return !f.e4m3 || loops != BlockLoops::avx2; }
// row_scales: f32 [rows] that multiply the sums of a row before the bias is added, or null.
void block_gemm(Exec&, ConstTensorView x, const BlockView& w, ConstTensorView bias, TensorView y, BlockLoops,
                const float* row_scales = nullptr);

// rows [ids, in] f32 | bf16 = the values of outputs `ids` (i32 [ids], in [0, out)) times `scale`: an embedding.
void block_rows(Exec&, ConstTensorView ids, const BlockView& w, float scale, TensorView rows);

}  // namespace fewbit::cpu

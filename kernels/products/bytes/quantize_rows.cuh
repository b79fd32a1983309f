#pragma once
// quantize_rows on raw memory, for the products that begin with it.
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/bytes/quantize_rows.h"

namespace fewbit::cuda {

// codes [rows, in], scales [rows, in / group]; device memory of the caller.
void launch_quantize_rows(CudaState& s, ConstTensorView x, const RowQuant& q, void* codes, float* scales);

}  // namespace fewbit::cuda

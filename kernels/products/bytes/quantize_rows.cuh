#pragma once
// quantize_rows (kernels/products/bytes/quantize_rows.h) on raw device memory, for the products that begin with it.
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/bytes/quantize_rows.h"

namespace fewbit::cuda {

// codes [rows, in] of type q.codes and scales [rows, in / group] f32: memory of the caller. Takes the kernel of
// prepare_rows.cuh where that one fits.
void launch_quantize_rows(CudaState& s, ConstTensorView x, const RowQuant& q, void* codes, float* scales);

}  // namespace fewbit::cuda

#pragma once
// bf16 rows on their way to 8-bit codes, through a norm or a gated activation where they come out of one.
#include "kernels/model/gated_act.h"
#include "kernels/products/bytes/quantize_rows.cuh"
#include "kernels/products/normed_gemms.h"

namespace fewbit::cuda {

struct RowSource {
  ConstTensorView x{};            // [rows, in]; of a gated activation the gate
  const RowNorm* norm = nullptr;  // not null: rms_norm(x) is quantized
  ConstTensorView up{};           // with data: gated_act(x, up) is
  ActKind act = ActKind::silu;
};

// Whether one kernel reads such rows and writes their codes; else the ops before come first, and `x` is quantized.
bool prepares_rows(const RowSource& source, const RowQuant& q);
// codes, scales as in launch_quantize_rows(). The bits are those of the ops one after another.
void launch_prepare_rows(CudaState& s, const RowSource& source, const RowQuant& q, void* codes, float* scales);

}  // namespace fewbit::cuda

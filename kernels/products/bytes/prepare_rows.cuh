#pragma once
// The kernel that turns bf16 rows into 8-bit codes, together with the norm or the gated activation before it.
#include "kernels/model/gated_act.h"
#include "kernels/products/bytes/quantize_rows.cuh"
#include "kernels/products/normed_gemms.h"

namespace fewbit::cuda::prepare_rows {

// Rows before they become codes: x itself, rms_norm(x) or gated_act(x, up).
struct Source {
  ConstTensorView x{};            // [rows, in]; the gate of a gated activation
  const RowNorm* norm = nullptr;  // not null: rms_norm(x)
  ConstTensorView up{};           // [rows, in] with data: gated_act(x, up); then no norm
  ActKind act = ActKind::silu;    // of the gated activation
};

// Whether this kernel takes such rows; else the norm or the activation must run first, and x is quantized by itself.
bool fits(const Source& source, const RowQuant& q);
// codes [rows, in], scales [rows]: device memory of the caller. The bits are those of the ops one after another.
void launch(CudaState& s, const Source& source, const RowQuant& q, void* codes, float* scales);

}  // namespace fewbit::cuda::prepare_rows

#pragma once
// upload_as: stored weights to a device in another float type, without a whole copy in the stored one.
#include "kernels/exec/exec.h"

namespace fewbit {

// The values of `host` (f32, f16 or bf16, at any address) in `dtype` on ex's device; empty for a view without data.
// The stored bytes pass in pieces, so that besides the result only a few MiB are needed.
Tensor upload_as(Exec&, ConstTensorView host, DType dtype);

}  // namespace fewbit

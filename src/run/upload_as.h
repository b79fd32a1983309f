#pragma once
// upload_as: stored weights to a device in another float type, without a whole copy in the stored one.
#include "kernels/exec/exec.h"
#include "src/model/weight_store.h"

namespace fewbit {

// The values of `host` (f32, f16 or bf16, at any address) in `dtype` on ex's device; empty for a view without data.
// The stored bytes pass in pieces, so that besides the result only a few MiB are needed.
Tensor upload_as(Exec&, ConstTensorView host, DType dtype);
// The same of a tensor of a checkpoint, whose memory (of a file that is mapped) is given back piece by piece: there are
// never two whole copies. Error as WeightStore::expect() has it.
Tensor upload_stored(Exec&, const WeightStore&, const std::string& name, const Shape&, DType dtype);

}  // namespace fewbit

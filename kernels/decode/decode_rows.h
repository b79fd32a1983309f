#pragma once
// decode_layers() of 2 to 16 sequences on a GPU: a launch of decode_rows.cuh for what stands between two runs of
// attention, ops for the rest.
#include "kernels/decode/decode_layers.h"

namespace fewbit::cuda {

// Why there is no kernel for such layers, whose linears are packed and alike; "" = there is.
std::string refuses_rows(const Exec&, const std::vector<DecodeLayer>&, const DecodeForm&);
// As prepare_stack() and decode_layers().
void prepare_rows(Exec&, DecodeStack&);
void decode_rows(Exec&, const DecodeStack&, ConstTensorView positions, TensorView x);

}  // namespace fewbit::cuda

#pragma once
// How much a pass computes, from the op list alone.
#include "src/model/model_spec.h"

namespace fewbit {

// Floating-point operations of `tokens` new tokens of each of `seqs` sequences, behind `past` earlier ones: two per
// weight and token (of experts, those that a token is sent to), four per feature of a query head and position that it
// sees, and the head for the last token of each sequence. Norms, activations and rotations are left out, as is usual.
double pass_flop(const ModelSpec&, int64_t seqs, int64_t past, int64_t tokens);

}  // namespace fewbit

#pragma once
// Prompts through the gated delta rule on tensor cores, 64 tokens of a head at a time (delta_chunk_cuda.cu).
#include "kernels/recurrent/delta_rule.h"

namespace fewbit::cuda {

// What delta_rule() does, where it is taken: bf16, one decay a head, keys of 128 features, values of a multiple of 64,
// rows at multiples of 16 bytes, and at least kFewestInChunks tokens a sequence. Otherwise nothing is done and the
// answer is false. The factors of all products are bf16 (of queries, keys and values their own bits), sums and the
// state f32. May use the scratch space of the Exec.
inline constexpr int64_t kFewestInChunks = 32;  // below it the walk is as fast
bool delta_rule_in_chunks(Exec&, const DeltaInputs&, int64_t seqs, const DeltaArgs&, TensorView state, TensorView out);

}  // namespace fewbit::cuda

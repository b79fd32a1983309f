#pragma once
// Attention of new tokens over a cache of KIVI's form, which already holds their keys and values.
#include "kernels/attention/attention.h"
#include "kernels/kivi/kivi_cache.h"

namespace fewbit {

// The query at position p sees the positions that it sees of any cache (kernels/attention/attention.h, with sliding
// windows, chunks, caps and sinks): those below kivi_coded(p) as what their codes stand for, the others as they are.
// What it sees, and on the CPU every bit of its result, does not depend on the pass that it comes in.
//   q          [batch * len, heads * head_dim]   f32 | bf16; row b * len + i is new token i of sequence b
//   positions  [batch * len]                     i32, on the Exec's device; in [0, capacity)
//   out        like q; overwritten; must not overlap q
// AttentionArgs::behind_append and turn_back have no meaning here. Scores, softmax and sums over values are f32.
// Errors: shapes or dtypes that do not fit, or a ring too short for len, stop the process (FEWBIT_ASSERT). On a GPU a
// head_dim above 512 throws an Error (unsupported).
namespace cpu {
void kivi_attention(Exec&, ConstTensorView q, ConstTensorView positions, const KiviCache&, const AttentionArgs&,
                    TensorView out);
}
namespace cuda {
void kivi_attention(Exec&, ConstTensorView q, ConstTensorView positions, const KiviCache&, const AttentionArgs&,
                    TensorView out);
}
inline void kivi_attention(Exec& ex, ConstTensorView q, ConstTensorView positions, const KiviCache& cache,
                           const AttentionArgs& a, TensorView out) {
  pick(ex, &cpu::kivi_attention, FEWBIT_CUDA_OP(kivi_attention))(ex, q, positions, cache, a, out);
}

}  // namespace fewbit

#pragma once
// New keys and values into a cache of KIVI's form.
#include "kernels/kivi/kivi_cache.h"

namespace fewbit {

// Row b * len + i of k and v is new token i of sequence b, at cache position positions[b * len + i]. It goes to the
// recent rows as it is; its value becomes codes at once, the keys of a group of 32 tokens when the last of them comes.
// What a sequence appends follows what it has: positions of a pass rise by one, and those before are there already.
//   k, v       [batch * len, kv_heads * head_dim]   f32 | bf16, the same for both and for the recent rows
//   positions  [batch * len]   i32, on the Exec's device; in [0, capacity), which only the CPU half checks
// Both halves leave the same bits, but for those of a NaN.
// Errors: shapes or dtypes that do not fit, or a ring too short for len, stop the process (FEWBIT_ASSERT).
namespace cpu {
void kivi_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KiviCache&);
}
namespace cuda {
void kivi_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KiviCache&);
}
inline void kivi_append(Exec& ex, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KiviCache& c) {
  pick(ex, &cpu::kivi_append, FEWBIT_CUDA_OP(kivi_append))(ex, k, v, positions, c);
}

}  // namespace fewbit

#pragma once
// embed: rows of the embedding table.
#include "kernels/exec/exec.h"
namespace fewbit {
// x[t, :] = table[ids[t], :] * scale, computed in f32, rounded once. The Gemma family has scale sqrt(hidden), others 1.
//   ids    [tokens]         i32, each in [0, vocab); the caller has checked them
//   table  [vocab, hidden]  f32 | f16 | bf16
//   x      [tokens, hidden] f32 | bf16; overwritten
namespace cpu {
void embed(Exec&, ConstTensorView ids, ConstTensorView table, float scale, TensorView x);
}
namespace cuda {
void embed(Exec&, ConstTensorView ids, ConstTensorView table, float scale, TensorView x);
}
inline void embed(Exec& ex, ConstTensorView ids, ConstTensorView table, float scale, TensorView x) {
  pick(ex, &cpu::embed, FEWBIT_CUDA_OP(embed))(ex, ids, table, scale, x);
}
}  // namespace fewbit

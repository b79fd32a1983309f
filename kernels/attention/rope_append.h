#pragma once
#include "kernels/attention/attention.h"
namespace fewbit {
// What a step over the cache does with its new tokens before attention, in one launch on a GPU: rope() of q and of k
// (kernels/model/rope.h), hadamard() of both where asked (kernels/model/hadamard.h), kv_append() of that k and of v
// (kernels/attention/attention.h). The new k goes to the cache only. The bits are those of the ops one after another.
//   q [tokens, heads * head_dim], in place · k, v [tokens, kv_heads * head_dim] · head_dim that of the cache
struct RopeTable {
  ConstTensorView inv_freq{};  // [rot / 2] f32
  float attention_scale = 1;
  bool hadamard = false;
};
namespace cpu {
void rope_append(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const RopeTable&,
                 const KvCache&);
}
namespace cuda {
void rope_append(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const RopeTable&,
                 const KvCache&);
}
inline void rope_append(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                        const RopeTable& table, const KvCache& cache) {
  pick(ex, &cpu::rope_append, FEWBIT_CUDA_OP(rope_append))(ex, q, k, v, positions, table, cache);
}
}  // namespace fewbit

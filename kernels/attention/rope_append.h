#pragma once
// What a step over the cache does with its new tokens before attention, in one launch on a GPU.
#include "kernels/attention/paged_attention.h"
namespace fewbit {
struct RopeTable {
  ConstTensorView inv_freq{};  // [rot / 2] f32: the angle of pair i at position p is p * inv_freq[i]; rot <= head_dim
  float attention_scale = 1;   // of cosines and sines (YaRN and LongRoPE; kernels/model/rope.h)
  bool hadamard = false;       // turn q and k by a Hadamard matrix after RoPE
  bool turn_values = false;    // turn v by it too, on its way to the cache
};
// Norms of every head before RoPE, each where its weight is given: rms_norm() (kernels/model/norm.h).
struct HeadNorms {
  ConstTensorView q{}, k{};   // [head_dim] of the dtype of q, or null
  float eps = 0, offset = 0;  // offset is added to the weights
};
// rms_norm() of the heads of q and of k where asked, rope() of both (kernels/model/rope.h), hadamard() of both where
// asked (kernels/model/hadamard.h), kv_append() of that k and of v (kernels/attention/attention.h). hadamard() of v
// where asked. The turned k and v go to the cache only. The bits are those of the ops one after another.
//   q          [tokens, heads * head_dim]      f32 | bf16; in place
//   k, v       [tokens, kv_heads * head_dim]   dtype of q; not changed
//   positions  [tokens]                        i32, on the Exec's device; in [0, capacity)
//   cache      its head_dim and batch; tokens is a multiple of batch, and row b * (tokens / batch) + i is new token i
//   of
//              sequence b
// On a GPU the launch lets the next one begin only when all before it have ended (AttentionArgs::behind_append).
// Errors: shapes or dtypes that do not fit stop the process (FEWBIT_ASSERT).
namespace cpu {
void rope_append(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const HeadNorms&,
                 const RopeTable&, const KvCache&);
}
namespace cuda {
void rope_append(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const HeadNorms&,
                 const RopeTable&, const KvCache&);
}
inline void rope_append(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                        const HeadNorms& norms, const RopeTable& table, const KvCache& cache) {
  pick(ex, &cpu::rope_append, FEWBIT_CUDA_OP(rope_append))(ex, q, k, v, positions, norms, table, cache);
}

// The same into pages (kernels/attention/paged_attention.h).
namespace cpu {
void rope_append_paged(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows&, const HeadNorms&,
                       const RopeTable&, const KvCache&);
}
namespace cuda {
void rope_append_paged(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows&, const HeadNorms&,
                       const RopeTable&, const KvCache&);
}
inline void rope_append_paged(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows& rows,
                              const HeadNorms& norms, const RopeTable& table, const KvCache& cache) {
  pick(ex, &cpu::rope_append_paged, FEWBIT_CUDA_OP(rope_append_paged))(ex, q, k, v, rows, norms, table, cache);
}
}  // namespace fewbit

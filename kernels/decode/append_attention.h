#pragma once
// RoPE, append and attention of a decode step as one op.
#include "kernels/attention/rope_append.h"
namespace fewbit {
// rope_append() of one or several new tokens of each sequence, then attention_cached() over the cache that now holds
// them; AttentionArgs::behind_append is not looked at. q [tokens, heads * head_dim] is room afterwards: it may have
// been turned in place or not. A GPU takes one launch, and one that merges its splits of the keys, for one new token of
// a sequence in bf16 over a cache of 4 bits with heads of 128 and up to eight query heads of a kv head: a block
// turns its own queries, and the one with the newest keys appends. The codes are those of rope_append(); the sums over
// keys may be cut elsewhere than attention_cached() cuts them. Over a cache of bf16 it takes one launch where few keys
// are in sight (kernels/decode/few_keys/), with the bits of both ops. What else comes goes to both one after the other.
// `out` must not overlap q, k or v. As part of a recording a launch may read positions, tables of pages and earlier
// keys while the one in front of it still runs: they are there before the recording is replayed, so that a recording
// holds one step of a sequence.
namespace cpu {
void append_attention(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                      const HeadNorms&, const RopeTable&, const KvCache&, const AttentionArgs&, TensorView out);
}
namespace cuda {
void append_attention(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                      const HeadNorms&, const RopeTable&, const KvCache&, const AttentionArgs&, TensorView out);
}
inline void append_attention(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, ConstTensorView positions,
                             const HeadNorms& norms, const RopeTable& table, const KvCache& cache,
                             const AttentionArgs& a, TensorView out) {
  pick(ex, &cpu::append_attention, FEWBIT_CUDA_OP(append_attention))(ex, q, k, v, positions, norms, table, cache, a,
                                                                     out);
}

// The same over pages: rope_append_paged(), then attention_paged().
namespace cpu {
void append_attention_paged(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows&,
                            const HeadNorms&, const RopeTable&, const KvCache&, const AttentionArgs&, TensorView out);
}
namespace cuda {
void append_attention_paged(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows&,
                            const HeadNorms&, const RopeTable&, const KvCache&, const AttentionArgs&, TensorView out);
}
inline void append_attention_paged(Exec& ex, TensorView q, ConstTensorView k, ConstTensorView v, const PagedRows& rows,
                                   const HeadNorms& norms, const RopeTable& table, const KvCache& cache,
                                   const AttentionArgs& a, TensorView out) {
  pick(ex, &cpu::append_attention_paged, FEWBIT_CUDA_OP(append_attention_paged))(ex, q, k, v, rows, norms, table, cache,
                                                                                 a, out);
}
}  // namespace fewbit

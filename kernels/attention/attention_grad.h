#pragma once
// The gradient of attention() (kernels/attention/attention.h) with respect to q, k and v.
#include "kernels/attention/attention.h"
namespace fewbit {
// With the visible scores S, capped where there is a softcap, and the weights P = softmax(S), per query head (the chain
// rule as FlashAttention states it: Dao et al., 2022, appendix B.2, with the slope of the cap added):
//   d_v += P^T dy
//   dP   = dy v^T
//   dS   = P * (dP - sum_j P dP)       with a softcap times 1 - (S / softcap)^2
//   d_q  = scale dS k
//   d_k += scale dS^T q
// The query heads that share a kv head add up in d_k and d_v, in their order, so that the bits are the same on every
// run. The weights are computed anew, not kept from the forward pass.
//   q, dy, d_q        [seqs * len, heads * head_dim]      f32
//   k, v, d_k, d_v    [seqs * len, kv_heads * head_dim]   f32
// The gradients are overwritten and must not overlap the inputs. Memory on the device: two f32 matrices [seqs * len,
// len], of one head at a time; on the CPU three of a block of 128 queries for each thread. Errors: shapes that do not
// fit stop the process (FEWBIT_ASSERT).
struct AttentionGrads {
  TensorView q{}, k{}, v{};  // d_q, d_k, d_v
};
namespace cpu {
void attention_grad(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs, const AttentionArgs&,
                    ConstTensorView dy, const AttentionGrads&);
}
namespace cuda {
void attention_grad(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs, const AttentionArgs&,
                    ConstTensorView dy, const AttentionGrads&);
}
inline void attention_grad(Exec& ex, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs,
                           const AttentionArgs& a, ConstTensorView dy, const AttentionGrads& d) {
  FEWBIT_ASSERT(seqs > 0 && q.rows() % seqs == 0 && a.heads % a.kv_heads == 0 && q.cols() == a.heads * a.head_dim);
  FEWBIT_ASSERT(k.shape == (Shape{q.rows(), a.kv_heads * a.head_dim}) && v.shape == k.shape && dy.shape == q.shape);
  FEWBIT_ASSERT(d.q.shape == q.shape && d.k.shape == k.shape && d.v.shape == v.shape);
  pick(ex, &cpu::attention_grad, FEWBIT_CUDA_OP(attention_grad))(ex, q, k, v, seqs, a, dy, d);
}
}  // namespace fewbit

#pragma once
#include "kernels/attention/attention.h"
namespace fewbit {
// Gradient of attention (kernels/attention/attention.h) with respect to q, k and v. With weights P = softmax(S) of the
// visible scores, by query head:
//   d_v += P^T dy,  dP = dy v^T,  dS = P * (dP - sum_j P dP) (* 1 - (S / softcap)^2),  d_q = scale dS k,  d_k += scale
//     dS^T q
// where the heads that share a key head add up in d_k and d_v.
//   q, dy, d_q [seqs * len, heads * head_dim] · k, v, d_k, d_v [seqs * len, kv_heads * head_dim]; all f32; the
//   gradients are overwritten. The weights are formed again, not kept from the forward pass: [len, len] of one
//   head at a time (CUDA: of all sequences).
struct AttentionGrads {
  TensorView q{}, k{}, v{};
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

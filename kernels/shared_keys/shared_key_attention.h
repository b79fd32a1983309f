#pragma once
// shared_key_attention: all heads look at the same keys, which are the values as well: those in a window, and those of
// compressed blocks before the query (DeepSeek-V4).
#include "kernels/exec/exec.h"
namespace fewbit {
// For the query of head h at position p, with scores scale q . k over the near keys at positions (p - window, p] and
// the far keys of the blocks that are complete, b < (p + 1) / every, or of those among them that were chosen:
//   out = sum_i exp(score_i) k_i / (exp(sink_h) + sum_i exp(score_i))
//   q          [seqs * len, heads * head_dim]   f32 | bf16
//   keys       [seqs, capacity, head_dim]       the dtype of q; row j is that of position j
//   far        [seqs, capacity, head_dim]       the dtype of q, or data == nullptr: none; block b is row b every +
//                                               every - 1 (kernels/shared_keys/compress_keys.h)
//   chosen     [seqs * len, n] i32, or data == nullptr: all; numbers of blocks, ended early by -1
//   sinks      [heads] f32
//   positions  [seqs * len] i32, in [0, capacity), on the Exec's device
//   out        [seqs * len, heads * head_dim]   the dtype of q; overwritten, not q
// Computed in f32, rounded once.
struct SharedKeys {
  ConstTensorView keys, far{}, chosen{};
};
struct SharedKeyArgs {
  int heads;
  float scale;
  int64_t window, every;  // every > 0
};
namespace cpu {
void shared_key_attention(Exec&, ConstTensorView q, const SharedKeys&, ConstTensorView sinks, ConstTensorView positions,
                          const SharedKeyArgs&, TensorView out);
}
namespace cuda {
void shared_key_attention(Exec&, ConstTensorView q, const SharedKeys&, ConstTensorView sinks, ConstTensorView positions,
                          const SharedKeyArgs&, TensorView out);
}
inline void shared_key_attention(Exec& ex, ConstTensorView q, const SharedKeys& k, ConstTensorView sinks,
                                 ConstTensorView positions, const SharedKeyArgs& a, TensorView out) {
  FEWBIT_ASSERT(k.keys.shape.rank() == 3 && k.keys.dtype == q.dtype && q.rows() % k.keys.shape[0] == 0);
  FEWBIT_ASSERT(a.heads >= 1 && a.window >= 1 && a.every >= 1 && q.cols() == a.heads * k.keys.shape[2]);
  FEWBIT_ASSERT(!k.far.data || (k.far.shape == k.keys.shape && k.far.dtype == q.dtype));
  FEWBIT_ASSERT(!k.chosen.data || (k.far.data && k.chosen.dtype == DType::i32 && k.chosen.rows() == q.rows()));
  FEWBIT_ASSERT(sinks.dtype == DType::f32 && sinks.numel() == a.heads);
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == q.rows());
  FEWBIT_ASSERT(out.shape == q.shape && out.dtype == q.dtype && out.data != q.data);
  pick(ex, &cpu::shared_key_attention, FEWBIT_CUDA_OP(shared_key_attention))(ex, q, k, sinks, positions, a, out);
}
}  // namespace fewbit

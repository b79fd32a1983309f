#pragma once
// compress_keys: one key for every block of tokens, a weighted mean of what its tokens offer (DeepSeek-V4).
#include "kernels/exec/exec.h"
namespace fewbit {
// Block b has the positions [b every, (b + 1) every). For the token that completes it, feature by feature,
//   mean = sum_i softmax_i(gate_i + ape_i) offer_i,   key = rms_norm(mean) norm, turned at position b every
// over the members i: the block's tokens; with `overlap` offers are two keys wide, and a block has the second half of
// its own tokens and the first half of the tokens of the block before (the first block has its own alone). Neighbours
// turn together (kernels/model/rope.h). Rows of tokens that complete no block become 0.
//   offer, gate  [seqs * len, width]     f32 | bf16; width = head_dim, or twice that with overlap
//   ape          [every, width]          f32, by the place of a token in its block
//   norm         [head_dim]              the dtype of offer
//   inv_freq     [head_dim / 2]          f32; 0 for what does not turn
//   positions    [seqs * len] i32, consecutive within a sequence, on the Exec's device
//   tail         [seqs, members, 2 width] the dtype of offer, or data == nullptr: offers and gates of the last tokens
//                before these, at position % members, members = every, or 2 every with overlap; taken in and written.
//                Without it every sequence begins at position 0
//   out          [seqs * len, head_dim]  the dtype of offer; overwritten
// Computed in f32, rounded once.
struct CompressInputs {
  ConstTensorView offer, gate, ape, norm, inv_freq;
};
struct CompressArgs {
  int64_t every;
  bool overlap;
  float eps;
  int64_t members() const { return overlap ? 2 * every : every; }
};
namespace cpu {
void compress_keys(Exec&, const CompressInputs&, ConstTensorView positions, int64_t seqs, const CompressArgs&,
                   TensorView tail, TensorView out);
}
namespace cuda {
void compress_keys(Exec&, const CompressInputs&, ConstTensorView positions, int64_t seqs, const CompressArgs&,
                   TensorView tail, TensorView out);
}
inline void compress_keys(Exec& ex, const CompressInputs& in, ConstTensorView positions, int64_t seqs,
                          const CompressArgs& a, TensorView tail, TensorView out) {
  const int64_t d = out.cols(), width = a.overlap ? 2 * d : d;
  FEWBIT_ASSERT(a.every >= 1 && seqs >= 1 && out.rows() % seqs == 0 && d % 2 == 0);
  FEWBIT_ASSERT(in.offer.rows() == out.rows() && in.offer.cols() == width && in.offer.dtype == out.dtype);
  FEWBIT_ASSERT(in.gate.shape == in.offer.shape && in.gate.dtype == out.dtype);
  FEWBIT_ASSERT(in.ape.dtype == DType::f32 && in.ape.numel() == a.every * width);
  FEWBIT_ASSERT(in.norm.dtype == out.dtype && in.norm.numel() == d);
  FEWBIT_ASSERT(in.inv_freq.dtype == DType::f32 && in.inv_freq.numel() == d / 2);
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == out.rows());
  FEWBIT_ASSERT(!tail.data || (tail.dtype == out.dtype && tail.numel() == seqs * a.members() * 2 * width));
  pick(ex, &cpu::compress_keys, FEWBIT_CUDA_OP(compress_keys))(ex, in, positions, seqs, a, tail, out);
}
}  // namespace fewbit

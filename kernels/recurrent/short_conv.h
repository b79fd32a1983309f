#pragma once
// short_conv: the causal convolution of a few taps in front of a recurrent mixer, every channel by itself.
#include "kernels/exec/exec.h"
namespace fewbit {
enum class ConvAct : uint8_t { none, silu };
// y[t, c] = act(bias[c] + sum_i w[c, i] x[t - taps + 1 + i, c]) inside each of `seqs` sequences of equal length; tap
// taps - 1 is the token itself. What stands before the first token is the tail, zeros without one.
//   x     [seqs * len, channels]         f32 | bf16
//   w     [channels, taps]               f32, 1 <= taps <= kMostTaps
//   bias  [channels]                     f32, or data == nullptr: none
//   tail  [seqs, taps - 1, channels]     the dtype of x: the last inputs before these, oldest first; then those of
//   these
//                                        tokens. data == nullptr: none is read and none kept
//   y     [seqs * len, channels]         the dtype of x; overwritten; must not overlap x
// Sums are f32, rounded once. A sequence taken in pieces through its tail has the bits of one taken whole.
inline constexpr int64_t kMostTaps = 8;
namespace cpu {
void short_conv(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, int64_t seqs, ConvAct act,
                TensorView tail, TensorView y);
}
namespace cuda {
void short_conv(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, int64_t seqs, ConvAct act,
                TensorView tail, TensorView y);
}
inline void short_conv(Exec& ex, ConstTensorView x, ConstTensorView w, ConstTensorView bias, int64_t seqs, ConvAct act,
                       TensorView tail, TensorView y) {
  FEWBIT_ASSERT(w.dtype == DType::f32 && w.rows() == x.cols() && w.cols() >= 1 && w.cols() <= kMostTaps);
  FEWBIT_ASSERT(y.shape == x.shape && y.dtype == x.dtype && x.rows() % seqs == 0);
  FEWBIT_ASSERT(!bias.data || (bias.dtype == DType::f32 && bias.numel() == x.cols()));
  FEWBIT_ASSERT(!tail.data || (tail.dtype == x.dtype && tail.numel() == seqs * (w.cols() - 1) * x.cols()));
  pick(ex, &cpu::short_conv, FEWBIT_CUDA_OP(short_conv))(ex, x, w, bias, seqs, act, tail, y);
}
}  // namespace fewbit

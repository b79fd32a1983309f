#pragma once
// Hyper-connections: several residual streams that every branch reads as one and writes to all (Zhu et al., 2024), with
// mixing matrices that are projected onto doubly stochastic ones (Xie et al., mHC, 2025; DeepSeek-V4).
#include "kernels/exec/exec.h"
namespace fewbit {
// N streams of H features lie side by side in a row of x. With m = fn (x / rms(x)), scaled and shifted in up to three
// parts (reads, writes, mixes):
//   read_n  = sigmoid(scale[0] m[n] + base[n]) + eps                                           n < N
//   write_n = 2 sigmoid(scale[1] m[N + n] + base[N + n])
//   mix_jk  = Sinkhorn of softmax over k of (scale[2] m[2 N + j N + k] + base[2 N + j N + k]), plus eps: the columns
//             divided by their sums + eps, then `rounds` - 1 times the rows and the columns
// read_streams: out = sum_n read_n x_n; `mix` = write, then mix row by row. Without `mix` (the end of a model) fn, base
// and scale have the first part alone.
//   x      [tokens, N * H]                        f32 | bf16
//   fn     [(2 + N) N, N * H] or [N, N * H]       f32;  base [rows of fn] f32;  scale [3] or [1] f32
//   out    [tokens, H]                            the dtype of x; overwritten
//   mix    [tokens, N + N * N] or data == nullptr the dtype of x; overwritten
// write_streams: x_k = write_k branch + sum_j mix_jk x_j, in place.
//   branch [tokens, H]                            the dtype of x
// All sums are f32, rounded once. N <= 8.
inline constexpr int kMostStreams = 8;
struct StreamWeights {
  ConstTensorView fn, base, scale;
};
struct StreamArgs {
  int streams;
  float norm_eps, eps;
  int rounds = 0;
};
namespace cpu {
void read_streams(Exec&, ConstTensorView x, const StreamWeights&, const StreamArgs&, TensorView out, TensorView mix);
void write_streams(Exec&, ConstTensorView branch, ConstTensorView mix, TensorView x);
}  // namespace cpu
namespace cuda {
void read_streams(Exec&, ConstTensorView x, const StreamWeights&, const StreamArgs&, TensorView out, TensorView mix);
void write_streams(Exec&, ConstTensorView branch, ConstTensorView mix, TensorView x);
}  // namespace cuda
inline void read_streams(Exec& ex, ConstTensorView x, const StreamWeights& w, const StreamArgs& a, TensorView out,
                         TensorView mix) {
  const int64_t n = a.streams, rows = mix.data ? (2 + n) * n : n;
  FEWBIT_ASSERT(n >= 1 && n <= kMostStreams && x.cols() == n * out.cols() && out.rows() == x.rows());
  FEWBIT_ASSERT(out.dtype == x.dtype && w.fn.dtype == DType::f32 && w.base.dtype == DType::f32);
  FEWBIT_ASSERT(w.fn.rows() == rows && w.fn.cols() == x.cols() && w.base.numel() == rows);
  FEWBIT_ASSERT(w.scale.dtype == DType::f32 && w.scale.numel() == (mix.data ? 3 : 1));
  FEWBIT_ASSERT(!mix.data || (mix.dtype == x.dtype && mix.rows() == x.rows() && mix.cols() == n + n * n));
  pick(ex, &cpu::read_streams, FEWBIT_CUDA_OP(read_streams))(ex, x, w, a, out, mix);
}
inline void write_streams(Exec& ex, ConstTensorView branch, ConstTensorView mix, TensorView x) {
  const int64_t n = x.cols() / branch.cols();
  FEWBIT_ASSERT(branch.dtype == x.dtype && mix.dtype == x.dtype && branch.rows() == x.rows());
  FEWBIT_ASSERT(n <= kMostStreams && x.cols() == n * branch.cols() && mix.rows() == x.rows());
  FEWBIT_ASSERT(mix.cols() == n + n * n);
  pick(ex, &cpu::write_streams, FEWBIT_CUDA_OP(write_streams))(ex, branch, mix, x);
}
}  // namespace fewbit

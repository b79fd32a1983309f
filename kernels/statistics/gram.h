#pragma once
// gram and cross_gram: sums of outer products of activations over tokens.
#include <limits>

#include "kernels/exec/exec.h"
namespace fewbit {
// The Hessian of GPTQ's objective (Frantar et al., 2022, section 3: H = 2 X X^T) without the factor and never averaged,
// and the cross term that shifts its targets (kernels/quantize/factor.h). Both outputs are added to:
//   gram:        g += x^T x
//   cross_gram:  d += a^T b
//   x  [tokens, in]   f32 | bf16        a  [tokens, n], b  [tokens, in]  likewise, a and b alike
//   g  [in, in]       f32; symmetric, both halves filled        d  [n, in]  f32
// Tokens are taken in fixed chunks of gram_chunk(), so the bits do not depend on how a caller batches multiples of it.
// A chunk's product reads and writes all sums once: 1.6 GB for inputs 14,336 wide, which a GPU has in the time of some
// 700 of its tokens' products.
// Products of bf16 inputs are exact in f32; sums are f32, never TF32.
// Sums that are made of many calls compute one half of g only and fill the other when they are done:
//   add_gram_half:   one half of g += x^T x (which one is the device's own business; the other holds anything)
//   fill_gram_half:  the other half becomes its mirror image
// A call may be told to make some of an output's rows only, whole tiles of gram_tile() rows (of a half: what of it lies
// in them). Products are cut into those tiles in any case, so these rows have the bits that they have in the whole.
constexpr int64_t gram_chunk(Device::Kind kind) { return kind == Device::cuda ? 8192 : 2048; }
struct RowBand {
  int64_t begin = 0, end = std::numeric_limits<int64_t>::max();
};
constexpr int64_t gram_tile(Device::Kind kind) { return kind == Device::cuda ? 1024 : 256; }
namespace cpu {
void add_gram_half(Exec&, ConstTensorView x, TensorView g, RowBand = {});
void fill_gram_half(Exec&, TensorView g);
void gram(Exec&, ConstTensorView x, TensorView g);
void cross_gram(Exec&, ConstTensorView a, ConstTensorView b, TensorView d, RowBand = {});
}  // namespace cpu
namespace cuda {
void add_gram_half(Exec&, ConstTensorView x, TensorView g, RowBand = {});
void fill_gram_half(Exec&, TensorView g);
void gram(Exec&, ConstTensorView x, TensorView g);
void cross_gram(Exec&, ConstTensorView a, ConstTensorView b, TensorView d, RowBand = {});
}  // namespace cuda
inline void add_gram_half(Exec& ex, ConstTensorView x, TensorView g, RowBand rows = {}) {
  pick(ex, &cpu::add_gram_half, FEWBIT_CUDA_OP(add_gram_half))(ex, x, g, rows);
}
inline void fill_gram_half(Exec& ex, TensorView g) {
  pick(ex, &cpu::fill_gram_half, FEWBIT_CUDA_OP(fill_gram_half))(ex, g);
}
inline void gram(Exec& ex, ConstTensorView x, TensorView g) { pick(ex, &cpu::gram, FEWBIT_CUDA_OP(gram))(ex, x, g); }
inline void cross_gram(Exec& ex, ConstTensorView a, ConstTensorView b, TensorView d, RowBand rows = {}) {
  pick(ex, &cpu::cross_gram, FEWBIT_CUDA_OP(cross_gram))(ex, a, b, d, rows);
}
}  // namespace fewbit

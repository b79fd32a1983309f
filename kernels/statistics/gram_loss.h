#pragma once
// gram_loss: the error of a weight on the calibration data, from the Gram matrix of its inputs.
#include <algorithm>

#include "kernels/exec/exec.h"
#include "src/core/wide_cut.h"
namespace fewbit {
// loss[o] = delta_o H delta_o^T with delta = a - b and H from gram (kernels/statistics/gram.h): the squared error of
// output o, summed over the tokens that H has seen. GPTQ's objective (Frantar et al., 2022, section 3, equation 1).
//   a, b  [out, in] f32
//   h     [in, in]  f32, symmetric, both halves
//   loss  [out]     f64; overwritten
// In f64: a good quantizer puts its error where large terms cancel. H is symmetric: of its strips of columns only what
// lies on and above the diagonal is multiplied, the entries above it twice. LossSums::f32 is for errors that nothing
// has aimed at (plain rounding, or a weight against zero): products in f32, on CUDA of two bf16 terms each
// (kernels/device/split_product.cuh), and only the sum over a row in f64, in a quarter of the time and less.
// LossSums::reported is for a loss that decides nothing, or only between candidates far apart, as those of a search for
// scales: f64 on the CPU, terms on CUDA, whose roundings of 2^-17 average out over a linear's entries.
enum class LossSums : uint8_t { f64, f32, reported };
namespace cpu {
void gram_loss(Exec&, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss, LossSums);
}
namespace cuda {
void gram_loss(Exec&, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss, LossSums);
}
inline void gram_loss(Exec& ex, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss,
                      LossSums sums = LossSums::f64) {
  pick(ex, &cpu::gram_loss, FEWBIT_CUDA_OP(gram_loss))(ex, a, b, h, loss, sums);
}

// How the products of terms are cut on CUDA: the tiles of half a panel's strip fill the multiprocessors once. The bits
// of a row's loss do not depend on the rows beside it.
inline constexpr int64_t kLossRows = 4096, kLossCols = 2048;

// Bytes that the op takes at its peak besides its arguments, whatever the sums: in f64 H is widened strip by strip; of
// terms a panel of a - b is there and a strip of H (4 bytes an entry), and their product.
inline int64_t gram_loss_bytes(Device::Kind kind, int64_t rows, int64_t n) {
  const int64_t wide = square_cut_bytes(kind, rows, n);
  if (kind == Device::cpu) return wide;
  const int64_t panel = std::min(rows, kLossRows), strip = std::min(n, kLossCols);
  return std::max(wide, 4 * (panel * n + n * strip + panel * strip));
}
}  // namespace fewbit

// Codes to Marlin words on the CPU.
#include "kernels/products/marlin/marlin_pack_map.h"
#include "src/core/half.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void marlin_pack(Exec&, const MarlinPackArgs& a, TensorView b, TensorView s) {
  const MarlinPackJob j(a, b, s);
  const int64_t skipped = marlin::words_per_row(j.first, j.bits);
  parallel_for(j.in / marlin::kTileK, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t col = 0; col < j.words_here(); ++col)
        j.b[row * j.words() + skipped + col] = marlin_word(j, row, col);
  });
  for (int64_t n = 0; n < j.outs; ++n)
    for (int64_t g = 0; g < j.groups; ++g)
      j.s[g * j.out + marlin::scale_column(j.first + n, j.groups > 1)] = f16(j.scales[n * j.groups + g]).bits;
}

}  // namespace fewbit::cpu

// int8 products on the CPU: dot products of four outputs at a time, in tiles that stay in the cache. The compiler turns
// the loops into the machine's instructions that multiply 16-bit values and add pairs.
#include "kernels/products/bytes/int8_gemm.h"

#include <algorithm>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/cpu_tiles.h"
#include "kernels/grids/integer_grid.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

namespace hot {

// sums[k] = x . w[k] for four rows of w, `ld` apart.
FEWBIT_HOT void four_dots(const int8_t* x, const int8_t* w, int64_t ld, int64_t n, int32_t* sums) {
  const int8_t *w0 = w, *w1 = w + ld, *w2 = w + 2 * ld, *w3 = w + 3 * ld;
  int32_t a = 0, b = 0, c = 0, d = 0;
  for (int64_t i = 0; i < n; ++i) {
    a += x[i] * w0[i];
    b += x[i] * w1[i];
    c += x[i] * w2[i];
    d += x[i] * w3[i];
  }
  sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
}

FEWBIT_HOT int32_t one_dot(const int8_t* x, const int8_t* w, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * w[i];
  return sum;
}

}  // namespace hot

namespace {
constexpr int64_t kTile = 64;  // rows of x and of W in a tile
}

void int8_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
               TensorView y) {
  const int64_t rows = x.rows(), in = x.cols(), out = w.codes.rows();
  FEWBIT_ASSERT(q.codes == DType::i8 && q.group == 0 && w.codes.dtype == DType::i8 && w.codes.cols() == in);
  FEWBIT_ASSERT(w.scales.numel() == out && y.rows() == rows && y.cols() == out && in < (1 << 17));
  FEWBIT_ASSERT(!bias.data || (bias.numel() == out && bias.dtype == x.dtype));
  const Tensor codes = Tensor::host(DType::i8, x.shape), scales = Tensor::host(DType::f32, {rows});
  cpu::quantize_rows(ex, x, q, codes, scales);
  const int64_t down = (rows + kTile - 1) / kTile, across = (out + kTile - 1) / kTile;
  parallel_for(down * across, 1, [&](int64_t tile, int64_t) {
    const int64_t r0 = tile / across * kTile, r1 = std::min(rows, r0 + kTile);
    const int64_t o0 = tile % across * kTile, o1 = std::min(out, o0 + kTile);
    const int8_t* weight = w.codes.as<int8_t>();
    for (int64_t r = r0; r < r1; ++r) {
      const int8_t* row = codes.as<int8_t>() + r * in;
      int32_t sums[kTile];
      int64_t o = o0;
      for (; o + 4 <= o1; o += 4) hot::four_dots(row, weight + o * in, in, in, sums + o - o0);
      for (; o < o1; ++o) sums[o - o0] = hot::one_dot(row, weight + o * in, in);
      float values[kTile];
      for (o = o0; o < o1; ++o)
        values[o - o0] =
            mul_rn(mul_rn(static_cast<float>(sums[o - o0]), scales.as<float>()[r]), w.scales.as<float>()[o]);
      store_row(values, bias, o0, o1, y, r);
    }
  });
}

}  // namespace fewbit::cpu

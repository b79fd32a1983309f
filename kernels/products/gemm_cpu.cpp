// Dense products on the CPU. bf16 through the matrix unit where there is one; else OpenBLAS in tiles of fixed shape for
// many rows; for few, a dot product for each output, which reads the weight straight from its bf16 storage.
#include "kernels/products/gemm.h"

#include <algorithm>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/cpu_tiles.h"
#include "kernels/cpu/tile_product.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kFewRows = 8;           // with more, BLAS is faster
constexpr int64_t kValuesAtOnce = 65536;  // of the weight: the least work of a thread

template <class T>
void few_rows(ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  const int64_t rows = x.rows(), in = x.cols(), out = w.rows();
  const int64_t grain = std::max<int64_t>(1, kValuesAtOnce / std::max<int64_t>(1, in));
  float* xs = scratch(Scratch::x, x.numel());  // of this thread; the others only read it
  widen(x.as<T>(), xs, x.numel());
  parallel_for(out, grain, [&](int64_t begin, int64_t end) {
    float* sums = scratch(Scratch::y, end - begin);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = begin; o < end; ++o) sums[o - begin] = dot(xs + r * in, w.as<T>() + o * in, in);
      store_row(sums, bias, begin, end, y, r);
    }
  });
}

}  // namespace

void gemm(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  FEWBIT_ASSERT(x.cols() == w.cols() && y.rows() == x.rows() && y.cols() == w.rows());
  FEWBIT_ASSERT(x.dtype == w.dtype && (y.dtype == DType::f32 || y.dtype == x.dtype));
  FEWBIT_ASSERT(!bias.data || (bias.dtype == x.dtype && bias.numel() == w.rows()));
  if (x.dtype == DType::bf16 && tiles_fit(w.rows(), w.cols())) {
    const TileWeight tiles{.out = w.rows(), .in = w.cols(), .dense = w.as<bf16>(), .row_bytes = 2 * w.cols()};
    return tile_product(x, tiles, nullptr, bias, y);
  }
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (x.rows() <= kFewRows) return few_rows<T>(x, w, bias, y);
    const int64_t in = x.cols();
    tiled_product(
        x, w.rows(),
        [&](int64_t begin, int64_t end, float* room) -> const float* {
          const T* rows = w.as<T>() + begin * in;
          if constexpr (std::is_same_v<T, float>) return rows;
          widen(rows, room, (end - begin) * in);
          return room;
        },
        bias, y);
  });
}

void gemms(Exec& ex, ConstTensorView x, std::span<const GemmProduct> products) {
  for (const GemmProduct& p : products) {
    if (!p.add) {
      cpu::gemm(ex, x, p.w, p.bias, p.y);
      continue;
    }
    const Tensor product = Tensor::host(DType::f32, p.y.shape);
    cpu::gemm(ex, x, p.w, p.bias, product);
    add_product(product, p.y);
  }
}

void library_gemms(Exec& ex, ConstTensorView x, std::span<const GemmProduct> products) { cpu::gemms(ex, x, products); }

void matmul(Exec&, const MatmulArgs& m) {
  const bool ta = m.ta == Trans::yes, tb = m.tb == Trans::yes;
  const int64_t inner = ta ? m.a.rows : m.a.cols;
  FEWBIT_ASSERT((ta ? m.a.cols : m.a.rows) == m.c.rows && (tb ? m.b.rows : m.b.cols) == m.c.cols);
  FEWBIT_ASSERT((tb ? m.b.cols : m.b.rows) == inner);
  blas::use_one_thread();
  constexpr int64_t kRows = 256, kCols = 512;
  const int64_t across = (m.c.cols + kCols - 1) / kCols, down = (m.c.rows + kRows - 1) / kRows;
  parallel_for(down * across, 1, [&](int64_t tile, int64_t) {
    const int64_t r0 = tile / across * kRows, r1 = std::min(m.c.rows, r0 + kRows);
    const int64_t c0 = tile % across * kCols, c1 = std::min(m.c.cols, c0 + kCols);
    blas::gemm(ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, r1 - r0, c1 - c0, inner, m.alpha,
               m.a.data + (ta ? r0 : r0 * m.a.ld), m.a.ld, m.b.data + (tb ? c0 * m.b.ld : c0), m.b.ld, m.beta,
               m.c.data + r0 * m.c.ld + c0, m.c.ld);
  });
}

}  // namespace fewbit::cpu

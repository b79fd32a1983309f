// Sums of outer products: the CPU half. Fixed chunks of tokens and fixed tiles of the output; a tile belongs to one
// thread. bf16 goes through the matrix unit where there is one, the rest through BLAS.
#include "kernels/statistics/gram.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/tile_matmul.h"
#include "kernels/cpu/tile_product.h"
#include "src/core/half.h"
#include "src/core/mat.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kTile = gram_tile(Device::cpu), kChunk = gram_chunk(Device::cpu);

// What of the output is made: tiles on and above the diagonal, or all; of some rows.
struct Wanted {
  bool half = false;
  RowBand rows{};
};

// Calls add(i, j) for the tiles wanted of [rows, cols], i and j being where they begin, in parallel.
template <class Add>
void for_tiles(int64_t rows, int64_t cols, const Wanted& w, const Add& add) {
  const int64_t down = (rows + kTile - 1) / kTile, across = (cols + kTile - 1) / kTile;
  parallel_for(down * across, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t i = tile / across * kTile, j = tile % across * kTile;
      if ((!w.half || i <= j) && i >= w.rows.begin && i < w.rows.end) add(i, j);
    }
  });
}

// Rows [begin, end) of x in f32; `room` holds the conversion of a bf16 input.
const float* chunk_f32(ConstTensorView x, int64_t begin, int64_t end, Tensor& room) {
  const int64_t in = x.cols();
  if (x.dtype == DType::f32) return x.as<float>() + begin * in;
  FEWBIT_ASSERT(x.dtype == DType::bf16);
  if (!room) room = Tensor::host(DType::f32, {std::min(x.rows(), kChunk), in});
  const bf16* from = x.as<bf16>() + begin * in;
  float* to = room.view().as<float>();
  constexpr int64_t kAtOnce = 1 << 16;
  parallel_for((end - begin) * in, kAtOnce, [&](int64_t b, int64_t e) { widen(from + b, to + b, e - b); });
  return to;
}

// d += a^T b, chunk by chunk, by BLAS.
void add_by_blas(ConstTensorView a, ConstTensorView b, Mat<float> d, const Wanted& wanted) {
  blas::use_one_thread();
  const int64_t m = d.rows, n = d.cols;
  Tensor room_a, room_b;
  for (int64_t t = 0; t < a.rows(); t += kChunk) {
    const int64_t end = std::min(a.rows(), t + kChunk);
    const float* ca = chunk_f32(a, t, end, room_a);
    const float* cb = a.data == b.data ? ca : chunk_f32(b, t, end, room_b);
    for_tiles(m, n, wanted, [&](int64_t i, int64_t j) {
      const int64_t rows = std::min(m - i, kTile), cols = std::min(n - j, kTile);
      blas::gemm(CblasTrans, CblasNoTrans, rows, cols, end - t, 1.f, ca + i, m, cb + j, n, 1.f, &d(i, j), n);
    });
  }
}

// The same of bf16 through the matrix unit: a chunk's sums in tiles of the unit, then added to d.
void add_by_tiles(ConstTensorView a, ConstTensorView b, Mat<float> d, const Wanted& wanted) {
  const int64_t m = d.rows, n = d.cols, most = std::min(a.rows(), kChunk);
  const bool same = a.data == b.data;
  const Tensor left = Tensor::host(DType::bf16, {right_values(most, m)});
  const Tensor right = Tensor::host(DType::bf16, {right_values(most, n)}),
               other = Tensor::host(DType::bf16, {same ? 0 : right_values(most, m)});
  uint16_t *turned = left.view().as<uint16_t>(), *tiles_b = right.view().as<uint16_t>();
  uint16_t* tiles_a = same ? tiles_b : other.view().as<uint16_t>();
  for (int64_t t = 0; t < a.rows(); t += kChunk) {
    const int64_t k = std::min(a.rows() - t, kChunk);
    const RightTiles x{.k = k, .n = m, .data = tiles_a}, y{.k = k, .n = n, .data = tiles_b};
    parallel_for(whole_tiles(n), 1, [&](int64_t p, int64_t end) {
      pack_right(b.as<bf16>() + t * n, n, k, n, p, end, tiles_b);
      if (same) transpose_right(x, p, end, turned);
    });
    if (!same)
      parallel_for(whole_tiles(m), 1, [&](int64_t p, int64_t end) {
        pack_right(a.as<bf16>() + t * m, m, k, m, p, end, tiles_a);
        transpose_right(x, p, end, turned);
      });
    const LeftRows rows = transposed_rows(x, turned);
    for_tiles(m, n, wanted, [&](int64_t i, int64_t j) {
      const int64_t height = std::min(m - i, kTile), cols = std::min(n - j, kTile);
      float* sums = scratch(Scratch::y, height * kTile);
      const LeftRows from_i{
          .data = rows.data + i / kBlockRows * rows.block, .block = rows.block, .row = rows.row, .tile = rows.tile};
      const TileRange range{.p0 = j / kPanelCols, .p1 = whole_tiles(j + cols), .t0 = 0, .t1 = whole_tiles(k)};
      tile_matmul(from_i, height, y, range, sums, kTile);
      for (int64_t r = 0; r < height; ++r) axpy(1.f, sums + r * kTile, &d(i + r, j), cols);
    });
  }
}

void add_products(ConstTensorView a, ConstTensorView b, TensorView d, const Wanted& wanted) {
  const Mat<float> out = mat<float>(d);
  a.dtype == DType::bf16&& has_tiles() ? add_by_tiles(a, b, out, wanted) : add_by_blas(a, b, out, wanted);
}

}  // namespace

// The half on and above the diagonal.
void add_gram_half(Exec&, ConstTensorView x, TensorView g, RowBand rows) {
  FEWBIT_ASSERT(g.rows() == x.cols() && g.cols() == x.cols());
  add_products(x, x, g, {.half = true, .rows = rows});
}

void fill_gram_half(Exec&, TensorView g) {
  const Mat<float> out = mat<float>(g);
  parallel_for(out.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < i; ++j) out(i, j) = out(j, i);
  });
}

void gram(Exec& ex, ConstTensorView x, TensorView g) {
  cpu::add_gram_half(ex, x, g);
  cpu::fill_gram_half(ex, g);
}

void cross_gram(Exec&, ConstTensorView a, ConstTensorView b, TensorView d, RowBand rows) {
  FEWBIT_ASSERT(a.rows() == b.rows() && a.dtype == b.dtype && d.rows() == a.cols() && d.cols() == b.cols());
  add_products(a, b, d, {.half = false, .rows = rows});
}

}  // namespace fewbit::cpu

// Sums of outer products: the CPU half. Fixed chunks of tokens and fixed tiles of the output; a tile belongs to one
// thread.
#include "kernels/statistics/gram.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "src/core/half.h"
#include "src/core/mat.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kTile = gram_tile(Device::cpu);

// Rows [begin, end) of x in f32; `room` holds the conversion of a bf16 input.
const float* chunk_f32(ConstTensorView x, int64_t begin, int64_t end, std::vector<float>& room) {
  const int64_t in = x.cols();
  if (x.dtype == DType::f32) return x.as<float>() + begin * in;
  FEWBIT_ASSERT(x.dtype == DType::bf16);
  room.resize(static_cast<size_t>((end - begin) * in));
  const bf16* from = x.as<bf16>() + begin * in;
  parallel_for((end - begin) * in, 1 << 16, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) room[static_cast<size_t>(i)] = from[i];
  });
  return room.data();
}

// d[I, J] += a[:, I]^T b[:, J] for one tile, the tokens of one chunk.
void add_tile(const float* a, const float* b, int64_t tokens, Mat<float> d, int64_t i0, int64_t j0) {
  const int64_t n = d.cols, i1 = std::min(n, i0 + kTile), j1 = std::min(n, j0 + kTile);
  blas::gemm(CblasTrans, CblasNoTrans, i1 - i0, j1 - j0, tokens, 1.f, a + i0, n, b + j0, n, 1.f, &d(i0, j0), n);
}

bool in_band(int64_t tile_row, RowBand rows) { return tile_row * kTile >= rows.begin && tile_row * kTile < rows.end; }

}  // namespace

// The half on and above the diagonal.
void add_gram_half(Exec&, ConstTensorView x, TensorView g, RowBand rows) {
  const int64_t n = x.cols(), tiles = (n + kTile - 1) / kTile;
  FEWBIT_ASSERT(g.rows() == n && g.cols() == n);
  blas::use_one_thread();
  const Mat<float> out = mat<float>(g);
  std::vector<float> room;
  for (int64_t t = 0; t < x.rows(); t += kGramChunk) {
    const int64_t end = std::min(x.rows(), t + kGramChunk);
    const float* chunk = chunk_f32(x, t, end, room);
    parallel_for(tiles * tiles, 1, [&](int64_t begin, int64_t last) {
      for (int64_t tile = begin; tile < last; ++tile)
        if (tile / tiles <= tile % tiles && in_band(tile / tiles, rows))
          add_tile(chunk, chunk, end - t, out, tile / tiles * kTile, tile % tiles * kTile);
    });
  }
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
  const int64_t n = a.cols(), tiles = (n + kTile - 1) / kTile;
  FEWBIT_ASSERT(a.shape == b.shape && a.dtype == b.dtype && d.rows() == n && d.cols() == n);
  blas::use_one_thread();
  const Mat<float> out = mat<float>(d);
  std::vector<float> room_a, room_b;
  for (int64_t t = 0; t < a.rows(); t += kGramChunk) {
    const int64_t end = std::min(a.rows(), t + kGramChunk);
    const float* ca = chunk_f32(a, t, end, room_a);
    const float* cb = chunk_f32(b, t, end, room_b);
    parallel_for(tiles * tiles, 1, [&](int64_t begin, int64_t last) {
      for (int64_t tile = begin; tile < last; ++tile)
        if (in_band(tile / tiles, rows)) add_tile(ca, cb, end - t, out, tile / tiles * kTile, tile % tiles * kTile);
    });
  }
}

}  // namespace fewbit::cpu

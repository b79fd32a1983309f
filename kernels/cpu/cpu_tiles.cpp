// Tiles of fixed shape, (rows of x) x (rows of W), widened to f32 and multiplied by single-threaded BLAS, in parallel.
#include "kernels/cpu/cpu_tiles.h"

#include <algorithm>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kTileFloats = int64_t{1} << 20;  // of x and of W in a tile, at most: 4 MiB each

float bias_at(ConstTensorView bias, int64_t i) {
  return bias.dtype == DType::f32 ? bias.as<float>()[i] : static_cast<float>(bias.as<bf16>()[i]);
}

}  // namespace

void store_row(const float* sums, ConstTensorView bias, int64_t begin, int64_t end, TensorView y, int64_t row) {
  const int64_t n = end - begin;
  for_float_type(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* out = y.as<T>() + row * y.cols() + begin;
    if (!bias.data)
      narrow(sums, out, n);
    else
      for (int64_t i = 0; i < n; ++i) out[i] = sums[i] + bias_at(bias, begin + i);
  });
}

void store_rows(float* sums, int64_t ld, int64_t rows, ConstTensorView bias, int64_t begin, int64_t end, TensorView y,
                int64_t row) {
  const int64_t n = end - begin;
  for (int64_t r = 0; bias.data && r < rows; ++r)
    for (int64_t i = 0; i < n; ++i) sums[r * ld + i] += bias_at(bias, begin + i);
  for_float_type(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    narrow_rows(sums, ld, y.as<T>() + row * y.cols() + begin, y.cols(), rows, n);
  });
}

void tiled_product(ConstTensorView x, int64_t out, const WeightRows& weight, ConstTensorView bias, TensorView y) {
  blas::use_one_thread();
  const int64_t rows = x.rows(), in = x.cols();
  const int64_t tile_rows = std::clamp<int64_t>(kTileFloats / std::max<int64_t>(1, in), 64, 512);
  const int64_t tile_outs = std::clamp<int64_t>(kTileFloats / std::max<int64_t>(1, in), 64, 256);
  const int64_t tiles_down = (rows + tile_rows - 1) / tile_rows, tiles_across = (out + tile_outs - 1) / tile_outs;
  parallel_for(tiles_down * tiles_across, 1, [&](int64_t tile, int64_t) {
    const int64_t r0 = tile / tiles_across * tile_rows, r1 = std::min(rows, r0 + tile_rows);
    const int64_t o0 = tile % tiles_across * tile_outs, o1 = std::min(out, o0 + tile_outs);
    const float* x_tile = nullptr;
    if (x.dtype == DType::f32) {
      x_tile = x.as<float>() + r0 * in;
    } else {
      float* widened = scratch(Scratch::x, (r1 - r0) * in);
      widen_rows(x.dtype, x.as<bf16>() + r0 * in, r1 - r0, in, in, widened);
      x_tile = widened;
    }
    const float* w_tile = weight(o0, o1, scratch(Scratch::w, (o1 - o0) * in));
    const bool direct = y.dtype == DType::f32 && !bias.data;
    float* sums = direct ? y.as<float>() + r0 * out + o0 : scratch(Scratch::y, (r1 - r0) * (o1 - o0));
    blas::gemm(CblasNoTrans, CblasTrans, r1 - r0, o1 - o0, in, 1.f, x_tile, in, w_tile, in, 0.f, sums,
               direct ? out : o1 - o0);
    if (direct) return;
    for (int64_t r = r0; r < r1; ++r) store_row(sums + (r - r0) * (o1 - o0), bias, o0, o1, y, r);
  });
}

void add_product(ConstTensorView product, TensorView y) {
  FEWBIT_ASSERT(product.dtype == DType::f32 && product.numel() == y.numel());
  const Tensor sum = Tensor::host(DType::f32, y.shape);
  float* values = sum.view().as<float>();
  widen_rows(y.dtype, y.data, 1, y.numel(), y.numel(), values);
  for (int64_t i = 0; i < y.numel(); ++i) values[i] += product.as<float>()[i];
  for_float_type(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    narrow(values, y.as<T>(), y.numel());
  });
}

}  // namespace fewbit::cpu

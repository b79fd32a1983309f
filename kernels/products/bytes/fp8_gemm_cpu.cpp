// FP8 products on the CPU, over the values of the codes in f32. Few rows: values made in registers as the codes come
// from memory (byte_dot.h), or else a row of the weight is widened once and multiplied with all rows of x. Many rows:
// widened tiles through BLAS.
#include "kernels/products/bytes/fp8_gemm.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/cpu_tiles.h"
#include "kernels/grids/f8_grid.h"
#include "kernels/model/cast.h"
#include "kernels/products/bytes/byte_dot.h"
#include "kernels/products/tile_weights.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

namespace hot {
FEWBIT_HOT void f8_times(const uint8_t* codes, float scale, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = mul_rn(f8_value(codes[i]), scale);
}
}  // namespace hot

namespace {

// Rows [begin, end) of the weight in f32, scales included; in `room`.
const float* widened_rows(const ByteWeightView& w, int64_t begin, int64_t end, float* room) {
  const int64_t in = w.codes.cols();
  for (int64_t o = begin; o < end; ++o)
    hot::f8_times(w.codes.as<uint8_t>() + o * in, w.scales.as<float>()[o], room + (o - begin) * in, in);
  return room;
}

void few_rows(ConstTensorView x, const ByteWeightView& w, ConstTensorView bias, TensorView y) {
  const int64_t rows = x.rows(), in = x.cols();
  const bool in_registers = f8_dots_fit(in);
  product_by_outputs(rows, w.codes.rows(), in, bias, y, [&](int64_t o, float* sums) {
    const uint8_t* codes = w.codes.as<uint8_t>() + o * in;
    if (in_registers && f8_dots(vector_set(), codes, w.scales.as<float>()[o], x.as<float>(), rows, in, sums)) return;
    const float* row = widened_rows(w, o, o + 1, scratch(Scratch::w, in));
    for (int64_t r = 0; r < rows; ++r) sums[r] = dot(x.as<float>() + r * in, row, in);
  });
}

// The codes of x, rounded as `q` says, as bf16, which holds them.
void in_tiles(Exec& ex, ConstTensorView x, const RowQuant& q, const TileWeight& w, ConstTensorView bias, TensorView y) {
  if (q.codes == DType::f16) return tile_product(x, w, nullptr, bias, y);
  const Tensor codes = Tensor::host(DType::f8_e4m3, x.shape), scales = Tensor::host(DType::f32, {x.rows()});
  cpu::quantize_rows(ex, x, q, codes, scales);
  const Tensor wide = Tensor::host(DType::bf16, x.shape);
  f8_as_bf16(codes, wide);
  tile_product(wide, w, scales.as<float>(), bias, y);
}

}  // namespace

void f8_as_bf16(ConstTensorView codes, TensorView values) {
  static const auto of_code = [] {
    std::array<uint16_t, 256> v{};
    for (size_t c = 0; c < v.size(); ++c) v[c] = bf16(f8_value(static_cast<uint8_t>(c))).bits;
    return v;
  }();
  FEWBIT_ASSERT(codes.dtype == DType::f8_e4m3 && values.dtype == DType::bf16 && codes.numel() == values.numel());
  parallel_for(codes.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values.as<uint16_t>()[i] = of_code[codes.as<uint8_t>()[i]];
  });
}

void fp8_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
              TensorView y) {
  FEWBIT_ASSERT((q.codes == DType::f8_e4m3 || q.codes == DType::f16) && q.group == 0 &&
                w.codes.dtype == DType::f8_e4m3);
  FEWBIT_ASSERT(w.codes.cols() == x.cols() && w.scales.numel() == w.codes.rows());
  FEWBIT_ASSERT(y.rows() == x.rows() && y.cols() == w.codes.rows());
  FEWBIT_ASSERT(!bias.data || (bias.numel() == w.codes.rows() && bias.dtype == x.dtype));
  if (x.dtype == DType::bf16)
    if (const auto tiles = tile_weight(w)) return in_tiles(ex, x, q, *tiles, bias, y);
  const Tensor rounded = Tensor::host(DType::f32, x.shape);
  if (q.codes == DType::f16)
    cpu::cast(ex, x, rounded);
  else
    cpu::round_rows(ex, x, q, rounded);
  if (x.rows() <= kRowsByOutputs) return few_rows(rounded, w, bias, y);
  const auto weight = [&](int64_t begin, int64_t end, float* room) { return widened_rows(w, begin, end, room); };
  tiled_product(rounded, w.codes.rows(), weight, bias, y);
}

}  // namespace fewbit::cpu

namespace fewbit {

#ifndef FEWBIT_HAS_CUDA
bool has_fp8_products(const Exec&) { return false; }
#endif

}  // namespace fewbit

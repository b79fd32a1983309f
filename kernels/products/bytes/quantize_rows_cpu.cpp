// Activations to 8-bit codes on the CPU, in f32, row by row.
#include "kernels/products/bytes/quantize_rows.h"

#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/grids/row_grid.h"
#include "kernels/model/cast.h"
#include "kernels/products/gemm.h"
#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

namespace hot {

FEWBIT_HOT void int8_codes(const float* x, float inverse, int8_t* codes, int64_t n) {
  for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(static_cast<int>(int8_level(mul_rn(x[i], inverse))));
}
FEWBIT_HOT void f8_codes(const float* x, float inverse, uint8_t* codes, int64_t n) {
  for (int64_t i = 0; i < n; ++i) codes[i] = f8_code(mul_rn(x[i], inverse));
}
FEWBIT_HOT void int8_values(float* x, float inverse, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = mul_rn(int8_level(mul_rn(x[i], inverse)), scale);
}
FEWBIT_HOT void f8_values(float* x, float inverse, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = mul_rn(f8_round(mul_rn(x[i], inverse)), scale);
}

}  // namespace hot

namespace {

float scale_of(const float* x, int64_t n, const RowQuant& q) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (most != most) break;
    most = larger_abs(most, x[i]);
  }
  if (q.codes == DType::f16) return f16_row_scale(most);
  return row_scale(most, q.fixed, q.codes == DType::i8 ? 127.f : kF8Max);
}

// Calls body(number of the group, its values in f32, n, its scale), in parallel over groups of n values.
template <class Body>
void for_groups(ConstTensorView x, const RowQuant& q, const Body& body) {
  FEWBIT_ASSERT(q.codes == DType::i8 || q.codes == DType::f8_e4m3 || q.codes == DType::f16);
  const int64_t n = q.group > 0 ? q.group : x.cols();
  FEWBIT_ASSERT(n > 0 && x.cols() % n == 0);
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.numel() / n, 8, [&](int64_t begin, int64_t end) {
      float* values = scratch(Scratch::x, n);
      for (int64_t g = begin; g < end; ++g) {
        widen(x.as<T>() + g * n, values, n);
        body(g, values, n, scale_of(values, n, q));
      }
    });
  });
}

}  // namespace

void quantize_rows(Exec&, ConstTensorView x, const RowQuant& q, TensorView codes, TensorView scales) {
  FEWBIT_ASSERT(codes.shape == x.shape && codes.dtype == q.codes && scales.dtype == DType::f32);
  FEWBIT_ASSERT(scales.numel() * (q.group > 0 ? q.group : x.cols()) == x.numel());
  for_groups(x, q, [&](int64_t g, const float* values, int64_t n, float scale) {
    scales.as<float>()[g] = scale;
    if (q.codes == DType::i8)
      hot::int8_codes(values, 1.f / scale, codes.as<int8_t>() + g * n, n);
    else if (q.codes == DType::f16)
      for (int64_t i = 0; i < n; ++i) codes.as<f16>()[g * n + i] = mul_rn(values[i], 1.f / scale);
    else
      hot::f8_codes(values, 1.f / scale, codes.as<uint8_t>() + g * n, n);
  });
}

void round_rows(Exec&, ConstTensorView x, const RowQuant& q, TensorView y) {
  FEWBIT_ASSERT(y.shape == x.shape && q.codes != DType::f16);
  for_groups(x, q, [&](int64_t g, float* values, int64_t n, float scale) {
    if (q.codes == DType::i8)
      hot::int8_values(values, 1.f / scale, scale, n);
    else
      hot::f8_values(values, 1.f / scale, scale, n);
    for_float_type(y.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      narrow(values, y.as<T>() + g * n, n);
    });
  });
}

void rounded_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, ConstTensorView w, ConstTensorView bias,
                  TensorView y) {
  const Tensor rounded = Tensor::host(w.dtype, x.shape);
  cpu::round_rows(ex, x, q, rounded);
  if (y.dtype == DType::f32 || y.dtype == w.dtype) return cpu::gemm(ex, rounded, w, bias, y);
  const Tensor sums = Tensor::host(DType::f32, y.shape);
  cpu::gemm(ex, rounded, w, bias, sums);
  cpu::cast(ex, sums, y);
}

}  // namespace fewbit::cpu

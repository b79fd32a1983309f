// Activations to 8-bit codes on the CPU, in f32, row by row.
#include "kernels/products/bytes/quantize_rows.h"

#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/grids/row_grid.h"
#include "kernels/model/cast.h"
#include "kernels/model/hadamard.h"
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
FEWBIT_HOT void int4_values(float* x, float inverse, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = mul_rn(int4_level(mul_rn(x[i], inverse)), scale);
}
FEWBIT_HOT void f8_values(float* x, float inverse, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = mul_rn(f8_round(mul_rn(x[i], inverse)), scale);
}
FEWBIT_HOT void fp4_values(float* x, float scale, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = fp4_value(x[i], scale);
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
  if (q.scales != DType::f32) return fp4_group_scale(most, q.fixed, q.scales);
  const float int_steps = q.bits == 4 ? kInt4Steps : 127.f;
  return row_scale(reached(most, q.reach), q.fixed, q.codes == DType::i8 ? int_steps : kF8Max);
}

int64_t groups_of_row(ConstTensorView x, const RowQuant& q) {
  return q.group > 0 ? (x.cols() + q.group - 1) / q.group : 1;
}

struct Group {
  int64_t number, at, n;  // of all; its first element; its elements
  float scale;
};

// Calls body(group, its values in f32), in parallel over the groups of all rows.
template <class Body>
void for_groups(ConstTensorView x, const RowQuant& q, const Body& body) {
  FEWBIT_ASSERT(q.codes == DType::i8 || q.codes == DType::f8_e4m3 || q.codes == DType::f16 || is_fp4(q));
  const int64_t most = q.group > 0 ? q.group : x.cols(), of_row = groups_of_row(x, q);
  FEWBIT_ASSERT(most > 0 && (q.bits == 8 || (q.bits == 4 && q.codes == DType::i8)));
  FEWBIT_ASSERT(q.reach == 100 || (q.bits == 4 && q.reach > 0 && q.reach < 100));
  FEWBIT_ASSERT(q.turn == 0 || (of_row == 1 && x.cols() % q.turn == 0));
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.numel() / x.cols() * of_row, 8, [&](int64_t begin, int64_t end) {
      float* values = scratch(Scratch::x, most);
      for (int64_t g = begin; g < end; ++g) {
        const int64_t first = g % of_row * most, at = g / of_row * x.cols() + first,
                      n = std::min(most, x.cols() - first);
        widen(x.as<T>() + at, values, n);
        if (q.turn) hadamard_runs(values, n, q.turn);
        body(Group{g, at, n, scale_of(values, n, q)}, values);
      }
    });
  });
}

}  // namespace

void quantize_rows(Exec&, ConstTensorView x, const RowQuant& q, TensorView codes, TensorView scales) {
  FEWBIT_ASSERT(codes.shape == x.shape && codes.dtype == q.codes && scales.dtype == DType::f32 && !q.only_values());
  FEWBIT_ASSERT(scales.numel() * x.cols() == x.numel() * groups_of_row(x, q));
  for_groups(x, q, [&](const Group& g, const float* values) {
    scales.as<float>()[g.number] = g.scale;
    if (q.codes == DType::i8)
      hot::int8_codes(values, 1.f / g.scale, codes.as<int8_t>() + g.at, g.n);
    else if (q.codes == DType::f16)
      for (int64_t i = 0; i < g.n; ++i) codes.as<f16>()[g.at + i] = mul_rn(values[i], 1.f / g.scale);
    else
      hot::f8_codes(values, 1.f / g.scale, codes.as<uint8_t>() + g.at, g.n);
  });
}

void round_rows(Exec&, ConstTensorView x, const RowQuant& q, TensorView y) {
  FEWBIT_ASSERT(y.shape == x.shape && q.codes != DType::f16);
  for_groups(x, q, [&](const Group& g, float* values) {
    if (is_fp4(q))
      hot::fp4_values(values, g.scale, g.n);
    else if (q.codes == DType::i8 && q.bits == 4)
      hot::int4_values(values, 1.f / g.scale, g.scale, g.n);
    else if (q.codes == DType::i8)
      hot::int8_values(values, 1.f / g.scale, g.scale, g.n);
    else
      hot::f8_values(values, 1.f / g.scale, g.scale, g.n);
    if (q.turn) hadamard_runs(values, g.n, q.turn);
    for_float_type(y.dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      narrow(values, y.as<T>() + g.at, g.n);
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

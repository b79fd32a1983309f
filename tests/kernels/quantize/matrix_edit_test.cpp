#include "kernels/quantize/matrix_edit.h"

#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

FEWBIT_DEVICE_TEST(MatrixEdit, PermutesRowsAndColumns) {
  const int64_t rows = 37, cols = 70;
  Tensor row_of = Tensor::host(DType::i32, {rows}), col_of = Tensor::host(DType::i32, {cols});
  for (int64_t i = 0; i < rows; ++i) row_of.as<int32_t>()[i] = static_cast<int32_t>((i * 5 + 3) % rows);
  for (int64_t i = 0; i < cols; ++i) col_of.as<int32_t>()[i] = static_cast<int32_t>((i * 3 + 1) % cols);
  const Tensor dr = ex.to_device(row_of), dc = ex.to_device(col_of);
  const Tensor x = random_normal(DType::f32, {rows, cols}, 1), codes = random_codes({rows, cols}, 256, 2);
  const Tensor y = poisoned(ex, DType::f32, {rows, cols}), z = poisoned(ex, DType::u8, {rows, cols});
  permute(ex, ex.to_device(x), dr, dc, y);
  permute(ex, ex.to_device(codes), {}, dc, z);
  const Tensor hy = ex.to_host(y), hz = ex.to_host(z);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      ASSERT_EQ(hy.as<float>()[i * cols + j], x.as<float>()[row_of.as<int32_t>()[i] * cols + col_of.as<int32_t>()[j]]);
      ASSERT_EQ(hz.as<uint8_t>()[i * cols + j], codes.as<uint8_t>()[i * cols + col_of.as<int32_t>()[j]]);
    }
}

FEWBIT_DEVICE_TEST(MatrixEdit, ReadsAndRaisesTheDiagonal) {
  const int64_t n = 300;
  const Tensor h = random_normal(DType::f32, {n, n}, 3), add = random_normal(DType::f32, {n}, 4);
  const Tensor dh = ex.to_device(h), d = poisoned(ex, DType::f32, {n});
  diagonal(ex, dh, d);
  EXPECT_EQ(first_difference(ex.to_host(d), diagonal_of(h)), "");
  add_diagonal(ex, ex.to_device(add), dh);
  const Tensor got = ex.to_host(dh);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      ASSERT_EQ(got.as<float>()[i * n + j], h.as<float>()[i * n + j] + (i == j ? add.as<float>()[i] : 0.f));
  set_diagonal(ex, d, dh);
  EXPECT_EQ(first_difference(ex.to_host(dh), h), "");
}

FEWBIT_DEVICE_TEST(MatrixEdit, ScalesRowsAndColumns) {
  const int64_t rows = 37, cols = 300;
  const Tensor w = random_normal(DType::f32, {rows, cols}, 5), r = random_normal(DType::f32, {rows}, 6),
               c = random_normal(DType::f32, {cols}, 7);
  const Tensor by_row = ex.to_device(w), by_column = ex.to_device(w);
  scale_rows(ex, ex.to_device(r), by_row);
  scale_columns(ex, ex.to_device(c), by_column);
  const Tensor hr = ex.to_host(by_row), hc = ex.to_host(by_column);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      const float x = w.as<float>()[i * cols + j];
      ASSERT_EQ(hr.as<float>()[i * cols + j], x * r.as<float>()[i]) << i << ", " << j;
      ASSERT_EQ(hc.as<float>()[i * cols + j], x * c.as<float>()[j]) << i << ", " << j;
    }
}

FEWBIT_DEVICE_TEST(MatrixEdit, ZeroesMarkedColumnsAndCountsBadValues) {
  Tensor w = random_normal(DType::f32, {50, 33}, 5);
  w.as<float>()[7] = std::numeric_limits<float>::infinity();
  w.as<float>()[33 * 49 + 32] = std::numeric_limits<float>::quiet_NaN();
  Tensor marked = Tensor::host_zeros(DType::u8, {33});
  marked.as<uint8_t>()[7] = 1;
  const Tensor dw = ex.to_device(w);
  EXPECT_EQ(count_nonfinite(ex, dw), 2);
  zero_columns(ex, ex.to_device(marked), dw);
  EXPECT_EQ(count_nonfinite(ex, dw), 1);
  const Tensor got = ex.to_host(dw);
  for (int64_t i = 0; i < 50 * 33 - 1; ++i) ASSERT_EQ(got.as<float>()[i], i % 33 == 7 ? 0.f : w.as<float>()[i]);
}

}  // namespace
}  // namespace fewbit

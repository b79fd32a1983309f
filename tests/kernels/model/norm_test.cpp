#include "kernels/model/norm.h"

#include <cmath>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

std::vector<double> expected_norm(const Tensor& x, const Tensor& weight, double eps, double offset) {
  const std::vector<double> v = doubles(x), w = doubles(weight);
  const int64_t cols = x.cols();
  std::vector<double> out(v.size());
  for (int64_t r = 0; r < x.rows(); ++r) {
    double squares = 0;
    for (int64_t c = 0; c < cols; ++c)
      squares += v[static_cast<size_t>(r * cols + c)] * v[static_cast<size_t>(r * cols + c)];
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (int64_t c = 0; c < cols; ++c)
      out[static_cast<size_t>(r * cols + c)] =
          v[static_cast<size_t>(r * cols + c)] * inverse * (w[static_cast<size_t>(c)] + offset);
  }
  return out;
}

FEWBIT_DEVICE_TEST(RmsNorm, MatchesTheFormula) {
  std::vector<MatrixShape> shapes(std::begin(kMatrices), std::end(kMatrices));
  // held in registers, all but the last
  for (const int64_t cols : {2048, 4096, 5120, 8192, 14336, 20480}) shapes.push_back({2, cols});
  for (const MatrixShape& s : shapes)
    for (const DType dtype : kComputeTypes)
      for (const float offset : {0.f, 1.f}) {
        const Tensor x = random_normal(dtype, {s.rows, s.cols}, 1, 3.f), w = random_normal(dtype, {s.cols}, 2);
        const Tensor y = poisoned(ex, dtype, {s.rows, s.cols});
        rms_norm(ex, ex.to_device(x), ex.to_device(w), 1e-5f, offset, y);
        EXPECT_LE(error_of(ex, y, expected_norm(x, w, 1e-5, offset)), op_tolerance(dtype))
            << name_of(dtype) << " " << s.rows << " x " << s.cols << " offset " << offset;
      }
}

FEWBIT_DEVICE_TEST(LayerNorm, MatchesTheFormula) {
  std::vector<MatrixShape> shapes(std::begin(kMatrices), std::end(kMatrices));
  for (const int64_t cols : {2048, 5120}) shapes.push_back({2, cols});
  for (const MatrixShape& s : shapes)
    for (const DType dtype : kComputeTypes) {
      const Tensor x = random_normal(dtype, {s.rows, s.cols}, 1, 3.f), w = random_normal(dtype, {s.cols}, 2);
      Tensor centred = to_f32(x);
      std::vector<double> v = doubles(x);
      for (int64_t r = 0; r < s.rows; ++r) {
        double* row = v.data() + r * s.cols;
        double sum = 0;
        for (int64_t c = 0; c < s.cols; ++c) sum += row[c];
        for (int64_t c = 0; c < s.cols; ++c) row[c] -= sum / static_cast<double>(s.cols);
      }
      for (size_t i = 0; i < v.size(); ++i) centred.as<float>()[i] = static_cast<float>(v[i]);
      const Tensor y = ex.to_device(x);
      layer_norm(ex, y, ex.to_device(w), nullptr, 1e-5f, y);
      EXPECT_LE(error_of(ex, y, expected_norm(centred, w, 1e-5, 0)), op_tolerance(dtype))
          << name_of(dtype) << " " << s.rows << " x " << s.cols;
    }
}

FEWBIT_DEVICE_TEST(RmsNorm, InPlaceAndAllZeroRows) {
  Tensor x = random_normal(DType::f32, {4, 64}, 1);
  for (int64_t c = 0; c < 64; ++c) x.as<float>()[64 + c] = 0;
  const Tensor w = random_normal(DType::f32, {64}, 2), y = ex.to_device(x);
  rms_norm(ex, y, ex.to_device(w), 1e-6f, 0.f, y);
  EXPECT_LE(error_of(ex, y, expected_norm(x, w, 1e-6, 0)), tol::kF32Op);
}

FEWBIT_DEVICE_TEST(LayerNorm, WithABiasMatchesTheFormulaInPlaceToo) {
  for (const MatrixShape& shape : kMatrices)
    for (const DType dtype : kComputeTypes) {
      // A mean far from zero: the variance is not the mean square.
      Tensor x = random_normal(dtype, {shape.rows, shape.cols}, 1, 3.f);
      const Tensor w = random_normal(dtype, {shape.cols}, 2), b = random_normal(dtype, {shape.cols}, 3);
      for (int64_t i = 0; i < x.numel(); ++i) {
        if (dtype == DType::f32)
          x.as<float>()[i] += 5;
        else
          x.as<bf16>()[i] = x.as<bf16>()[i] + 5;
      }
      const std::vector<double> v = doubles(x), dw = doubles(w), db = doubles(b);
      std::vector<double> expected(v.size());
      const auto cols = static_cast<size_t>(shape.cols);
      for (size_t r = 0; r < static_cast<size_t>(shape.rows); ++r) {
        double mean = 0, variance = 0;
        for (size_t c = 0; c < cols; ++c) mean += v[r * cols + c] / static_cast<double>(cols);
        for (size_t c = 0; c < cols; ++c) variance += std::pow(v[r * cols + c] - mean, 2) / static_cast<double>(cols);
        for (size_t c = 0; c < cols; ++c)
          expected[r * cols + c] = (v[r * cols + c] - mean) / std::sqrt(variance + 1e-6) * dw[c] + db[c];
      }
      const Tensor y = ex.to_device(x), bias = ex.to_device(b);
      const ConstTensorView shift = bias;
      layer_norm(ex, y, ex.to_device(w), &shift, 1e-6f, y);
      EXPECT_LE(error_of(ex, y, expected), op_tolerance(dtype)) << shape.rows << " x " << shape.cols;
    }
}

}  // namespace
}  // namespace fewbit::test

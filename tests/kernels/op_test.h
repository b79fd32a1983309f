#pragma once
// What op tests share: devices (FEWBIT_DEVICE_TEST), dtypes with their tolerances, tensors from and to doubles.
#include "kernels/exec/exec.h"
#include "src/core/half.h"
#include "tests/support/devices.h"
#include "tests/support/shapes.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {

inline constexpr DType kComputeTypes[] = {DType::f32, DType::bf16};

inline double op_tolerance(DType dtype) { return dtype == DType::f32 ? tol::kF32Op : tol::kBf16Op; }
inline double product_tolerance(DType dtype) { return dtype == DType::f32 ? tol::kF32Product : tol::kBf16Op; }

// A host tensor as doubles.
inline std::vector<double> doubles(ConstTensorView host) {
  const Tensor f = to_f32(host);
  return {f.as<float>(), f.as<float>() + f.numel()};
}
inline Tensor from_doubles(const std::vector<double>& v, Shape shape) {
  Tensor t = Tensor::host(DType::f32, shape);
  for (size_t i = 0; i < v.size(); ++i) t.as<float>()[i] = static_cast<float>(v[i]);
  return t;
}
inline Tensor host_i32(const std::vector<int32_t>& v) {
  return Tensor::host_from<int32_t>(DType::i32, {static_cast<int64_t>(v.size())}, v);
}
// What a device tensor holds against the reference.
inline double error_of(Exec& ex, ConstTensorView found, const std::vector<double>& expected) {
  return relative_error(ex.to_host(found), from_doubles(expected, found.shape));
}

}  // namespace fewbit::test

#pragma once
// What op tests share: devices (FEWBIT_DEVICE_TEST), dtypes with their tolerances, tensors from and to doubles.
#include <cstring>

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

// An index of a vector.
inline size_t at(int64_t i) { return static_cast<size_t>(i); }

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
// Rows [begin, end) of every sequence of a host tensor x [seqs * len, cols].
inline Tensor piece(const Tensor& x, int64_t seqs, int64_t begin, int64_t end) {
  const int64_t len = x.rows() / seqs, row = x.bytes() / x.rows();
  Tensor out = Tensor::host(x.dtype(), {seqs * (end - begin), x.cols()});
  for (int64_t s = 0; s < seqs; ++s)
    std::memcpy(static_cast<uint8_t*>(out.view().data) + s * (end - begin) * row,
                static_cast<const uint8_t*>(x.view().data) + (s * len + begin) * row,
                static_cast<size_t>((end - begin) * row));
  return out;
}
// What a device tensor holds against the reference.
inline double error_of(Exec& ex, ConstTensorView found, const std::vector<double>& expected) {
  return relative_error(ex.to_host(found), from_doubles(expected, found.shape));
}

}  // namespace fewbit::test

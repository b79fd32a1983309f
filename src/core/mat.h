#pragma once
// Mat<T>: the typed 2-D view that kernels see. ld >= cols, so a column block of a matrix is a Mat too.
#include <cstdint>
#include <type_traits>

#include "src/core/tensor.h"

namespace fewbit {

template <class T>
struct Mat {
  T* data = nullptr;
  int64_t rows = 0, cols = 0, ld = 0;

  Mat() = default;
  Mat(T* d, int64_t r, int64_t c, int64_t l) : data(d), rows(r), cols(c), ld(l) {}
  Mat(T* d, int64_t r, int64_t c) : Mat(d, r, c, c) {}
  template <class U>
  requires(std::is_same_v<const U, T>) Mat(const Mat<U>& o) : Mat(o.data, o.rows, o.cols, o.ld) {}

  T& operator()(int64_t r, int64_t c) const { return data[r * ld + c]; }
  T* row(int64_t r) const { return data + r * ld; }
  Mat cols_range(int64_t begin, int64_t end) const { return {data + begin, rows, end - begin, ld}; }
  Mat block(int64_t r0, int64_t r1, int64_t c0, int64_t c1) const {
    return {data + r0 * ld + c0, r1 - r0, c1 - c0, ld};
  }
};

template <class T>
Mat<T> mat(TensorView t) {
  return {t.as<T>(), t.rows(), t.cols()};
}
template <class T>
Mat<const T> mat(ConstTensorView t) {
  return {t.as<T>(), t.rows(), t.cols()};
}
template <class T>
Mat<T> mat(const Tensor& t) {
  return mat<T>(t.view());
}

}  // namespace fewbit

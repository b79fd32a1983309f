#pragma once
// Tensors: TensorView and ConstTensorView borrow, Tensor owns and only moves. Contiguous, row-major.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "src/core/dtype.h"
#include "src/core/error.h"
#include "src/core/shape.h"

namespace fewbit {

struct Device {
  enum Kind : uint8_t { cpu, cuda } kind = cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

struct ConstTensorView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape{};
  Device device{};

  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * bytes_of(dtype); }
  int64_t rows() const { return shape.rank() == 0 ? 1 : shape[0]; }
  int64_t cols() const { return rows() == 0 ? 0 : numel() / rows(); }  // everything but the first dimension
  template <class T>
  const T* as() const {
    FEWBIT_ASSERT(sizeof(T) == static_cast<size_t>(bytes_of(dtype)));
    return static_cast<const T*>(data);
  }
  ConstTensorView row_range(int64_t begin, int64_t end) const;  // rows [begin, end) of the first dimension
  ConstTensorView reshaped(Shape s) const;
};

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape{};
  Device device{};

  operator ConstTensorView() const { return {data, dtype, shape, device}; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * bytes_of(dtype); }
  int64_t rows() const { return shape.rank() == 0 ? 1 : shape[0]; }
  int64_t cols() const { return rows() == 0 ? 0 : numel() / rows(); }
  template <class T>
  T* as() const {
    FEWBIT_ASSERT(sizeof(T) == static_cast<size_t>(bytes_of(dtype)));
    return static_cast<T*>(data);
  }
  TensorView row_range(int64_t begin, int64_t end) const;
  TensorView reshaped(Shape s) const;
};

// How to give memory back: called once with the pointer, the byte count and the owner's context.
struct Deleter {
  void (*call)(void* data, size_t bytes, void* context) = nullptr;
  void* context = nullptr;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(TensorView view, Deleter deleter) : view_(view), deleter_(deleter) {}
  Tensor(Tensor&& o) noexcept : view_(std::exchange(o.view_, {})), deleter_(std::exchange(o.deleter_, {})) {}
  Tensor& operator=(Tensor&& o) noexcept {
    if (this != &o) {
      reset();
      view_ = std::exchange(o.view_, {});
      deleter_ = std::exchange(o.deleter_, {});
    }
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { reset(); }

  // Host memory, 64-byte aligned, uninitialised.
  static Tensor host(DType dtype, Shape shape);
  static Tensor host_zeros(DType dtype, Shape shape);
  template <class T>
  static Tensor host_from(DType dtype, Shape shape, std::span<const T> values);

  void reset() {
    if (deleter_.call) deleter_.call(view_.data, static_cast<size_t>(view_.bytes()), deleter_.context);
    view_ = {};
    deleter_ = {};
  }
  bool empty() const { return view_.data == nullptr; }
  explicit operator bool() const { return !empty(); }
  TensorView view() const { return view_; }
  operator TensorView() const { return view_; }
  operator ConstTensorView() const { return view_; }
  DType dtype() const { return view_.dtype; }
  const Shape& shape() const { return view_.shape; }
  Device device() const { return view_.device; }
  int64_t numel() const { return view_.numel(); }
  int64_t bytes() const { return view_.bytes(); }
  int64_t rows() const { return view_.rows(); }
  int64_t cols() const { return view_.cols(); }
  template <class T>
  T* as() const {
    return view_.as<T>();
  }

 private:
  TensorView view_{};
  Deleter deleter_{};
};

// A host tensor copied byte for byte; the source must be in host memory.
Tensor clone_host(ConstTensorView src);

template <class T>
Tensor Tensor::host_from(DType dtype, Shape shape, std::span<const T> values) {
  Tensor t = host(dtype, shape);
  FEWBIT_ASSERT(static_cast<int64_t>(values.size()) == t.numel());
  std::copy(values.begin(), values.end(), t.as<T>());
  return t;
}

}  // namespace fewbit

#include "src/core/tensor.h"

#include <cstring>

#include "src/core/host_blocks.h"

namespace fewbit {
namespace {

void free_host(void* data, size_t bytes, void*) { give_host_block(data, bytes); }

template <class View>
View rows_of(const View& v, int64_t begin, int64_t end) {
  FEWBIT_ASSERT(v.shape.rank() >= 1 && 0 <= begin && begin <= end && end <= v.shape[0]);
  std::array<int64_t, Shape::kMaxRank> dims{};
  for (int i = 0; i < v.shape.rank(); ++i) dims[i] = v.shape[i];
  dims[0] = end - begin;
  View out = v;
  out.shape = Shape(std::span<const int64_t>(dims.data(), v.shape.rank()));
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, char, const char>;
  out.data = static_cast<Byte*>(v.data) + begin * v.cols() * bytes_of(v.dtype);
  return out;
}

template <class View>
View reshape(const View& v, Shape s) {
  FEWBIT_ASSERT(s.numel() == v.numel());
  View out = v;
  out.shape = s;
  return out;
}

}  // namespace

std::string Shape::str() const {
  std::string s = "[";
  for (int i = 0; i < rank_; ++i) s += (i ? ", " : "") + std::to_string(dims_[i]);
  return s + "]";
}

ConstTensorView ConstTensorView::row_range(int64_t b, int64_t e) const { return rows_of(*this, b, e); }
TensorView TensorView::row_range(int64_t b, int64_t e) const { return rows_of(*this, b, e); }
ConstTensorView ConstTensorView::reshaped(Shape s) const { return reshape(*this, s); }
TensorView TensorView::reshaped(Shape s) const { return reshape(*this, s); }

Tensor Tensor::host(DType dtype, Shape shape) {
  const auto bytes = static_cast<size_t>(shape.numel() * bytes_of(dtype));
  void* p = take_host_block(bytes);
  if (!p) fail(ErrorKind::memory, "out of host memory: asked for " + std::to_string(bytes) + " bytes");
  return Tensor(TensorView{p, dtype, shape, Device{}}, Deleter{free_host, nullptr});
}

Tensor Tensor::host_zeros(DType dtype, Shape shape) {
  Tensor t = host(dtype, shape);
  std::memset(t.view().data, 0, static_cast<size_t>(t.bytes()));
  return t;
}

Tensor clone_host(ConstTensorView src) {
  FEWBIT_ASSERT(src.device.kind == Device::cpu);
  Tensor t = Tensor::host(src.dtype, src.shape);
  std::memcpy(t.view().data, src.data, static_cast<size_t>(src.bytes()));
  return t;
}

}  // namespace fewbit

#include "src/run/upload_as.h"

#include <algorithm>

#include "kernels/model/cast.h"

namespace fewbit {

Tensor upload_as(Exec& ex, ConstTensorView host, DType dtype) {
  if (!host.data) return {};
  if (host.dtype == dtype) return ex.to_device(host);
  constexpr int64_t kPiece = int64_t{8} << 20;  // bytes: enough to hide a copy's latency
  Tensor t = ex.alloc(dtype, host.shape);
  const int64_t count = host.numel(), step = kPiece / bytes_of(host.dtype);
  const ConstTensorView from = host.reshaped({count});
  const TensorView to = t.view().reshaped({count});
  for (int64_t at = 0; at < count; at += step) {
    const int64_t end = std::min(count, at + step);
    cast(ex, ex.to_device(from.row_range(at, end)), to.row_range(at, end));
  }
  return t;
}

Tensor upload_stored(Exec& ex, const WeightStore& store, const std::string& name, const Shape& shape, DType dtype) {
  constexpr int64_t kPiece = int64_t{16} << 20;  // bytes; several of upload_as()'s
  const ConstTensorView host = store.expect(name, {DType::f32, DType::f16, DType::bf16}, shape);
  Tensor t = ex.alloc(dtype, shape);
  const int64_t count = host.numel(), each = bytes_of(host.dtype), step = kPiece / each;
  const ConstTensorView from = host.reshaped({count});
  const TensorView to = t.view().reshaped({count});
  for (int64_t at = 0; at < count; at += step) {
    const int64_t end = std::min(count, at + step);
    if (host.dtype == dtype)
      ex.copy(from.row_range(at, end), to.row_range(at, end));
    else
      cast(ex, ex.to_device(from.row_range(at, end)), to.row_range(at, end));
    store.forget(name, at * each, (end - at) * each);
  }
  return t;
}

}  // namespace fewbit

#include "src/run/upload_as.h"

#include <algorithm>

#include "kernels/model/cast.h"

namespace fewbit {

namespace {

constexpr int64_t kPiece = int64_t{8} << 20;  // bytes: enough to hide a copy's latency

// The values of `host` to `to`, of as many in any shape, piece by piece; after(begin, end) of each, in values.
template <class After>
void upload_pieces(Exec& ex, ConstTensorView host, TensorView to, const After& after) {
  const int64_t count = host.numel(), step = kPiece / bytes_of(host.dtype);
  const ConstTensorView from = host.reshaped({count});
  const TensorView values = to.reshaped({count});
  for (int64_t at = 0; at < count; at += step) {
    const int64_t end = std::min(count, at + step);
    if (host.dtype == to.dtype)
      ex.copy(from.row_range(at, end), values.row_range(at, end));
    else
      cast(ex, ex.to_device(from.row_range(at, end)), values.row_range(at, end));
    after(at, end);
  }
}

}  // namespace

Tensor upload_as(Exec& ex, ConstTensorView host, DType dtype) {
  if (!host.data) return {};
  if (host.dtype == dtype) return ex.to_device(host);
  Tensor t = ex.alloc(dtype, host.shape);
  upload_pieces(ex, host, t, [](int64_t, int64_t) {});
  return t;
}

Tensor upload_stored(Exec& ex, const WeightStore& store, const std::string& name, const Shape& shape, DType dtype) {
  const ConstTensorView host = store.expect(name, {DType::f32, DType::f16, DType::bf16}, shape);
  Tensor t = ex.alloc(dtype, shape);
  const int64_t each = bytes_of(host.dtype);
  upload_pieces(ex, host, t,
                [&](int64_t begin, int64_t end) { store.forget(name, begin * each, (end - begin) * each); });
  return t;
}

}  // namespace fewbit

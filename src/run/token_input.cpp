#include "src/run/token_input.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/model/add.h"
#include "kernels/model/cast.h"
#include "kernels/model/embed.h"
#include "kernels/model/norm.h"
#include "kernels/products/gemm.h"
#include "src/run/upload_as.h"

namespace fewbit {
namespace {

constexpr int64_t kRowsAtOnce = 8192;

ConstTensorView stored(const Checkpoint& c, const std::string& name, const Shape& shape) {
  return c.store.expect(name, {DType::f32, DType::f16, DType::bf16}, shape);
}

// Rows [begin, end) of a matrix of a file, of these columns; by bytes, for a tensor of a file lies at any address.
Tensor part_of(ConstTensorView all, int64_t begin, int64_t end, int64_t column, int64_t columns) {
  Tensor part = Tensor::host(all.dtype, {end - begin, columns});
  const int64_t element = bytes_of(all.dtype);
  for (int64_t r = begin; r < end; ++r)
    std::memcpy(static_cast<char*>(part.view().data) + (r - begin) * columns * element,
                static_cast<const char*>(all.data) + (r * all.cols() + column) * element,
                static_cast<size_t>(columns * element));
  return part;
}

Tensor number(Exec& ex, double value) {
  const auto v = static_cast<float>(value);
  return ex.to_device(Tensor::host_from<float>(DType::f32, {1}, std::span(&v, 1)));
}

}  // namespace

Tensor token_table(Exec& ex, const Checkpoint& c, const TokenInput& op, int64_t layer, DType dtype) {
  const ModelSpec& s = c.spec;
  const int64_t all = op.layers * op.features, column = layer * op.features;
  const NamedLinear embedding = ends_of(s).front();
  const Tensor dequantized = c.packed(embedding.name) ? c.values(embedding) : Tensor();
  const ConstTensorView embed =
      dequantized.empty() ? stored(c, s.embed, {s.vocab, s.hidden}) : ConstTensorView(dequantized.view());
  const ConstTensorView table = stored(c, op.table, {s.vocab, all});
  const Tensor projection = upload_as(
      ex, part_of(stored(c, op.projection, {all, s.hidden}), column, column + op.features, 0, s.hidden), DType::f32);
  const Tensor norm = upload_as(ex, stored(c, op.norm, {op.features}), DType::f32);
  const Tensor embed_scale = number(ex, s.embed_scale / std::sqrt(static_cast<double>(s.hidden))),
               half = number(ex, 1 / std::sqrt(2.));
  Tensor out = ex.alloc(dtype, {s.vocab, op.features});
  for (int64_t begin = 0; begin < s.vocab; begin += kRowsAtOnce) {
    const int64_t end = std::min(s.vocab, begin + kRowsAtOnce);
    const Tensor x = upload_as(ex, part_of(embed, begin, end, 0, s.hidden), DType::f32);
    const Tensor own = upload_as(ex, part_of(table, begin, end, column, op.features), DType::f32);
    const Tensor y = ex.alloc(DType::f32, {end - begin, op.features});
    gemm(ex, x, projection, {}, y);
    scale_by(ex, embed_scale, y);
    rms_norm(ex, y, norm, op.eps, 0, y);
    add(ex, own, y, std::sqrt(static_cast<float>(op.features)));
    scale_by(ex, half, y);
    cast(ex, y, out.view().row_range(begin, end));
  }
  c.store.forget(op.table);
  return out;
}

}  // namespace fewbit

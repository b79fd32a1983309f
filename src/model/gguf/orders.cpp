// Values and rows of a tensor as a file has them, and back.
#include <cmath>
#include <cstring>

#include "src/model/checkpoint.h"
#include "src/model/gguf/names.h"

namespace fewbit {

Tensor computed_values(const GgufTensor& g, ConstTensorView values, GgufDirection direction) {
  const bool to = direction == GgufDirection::to_gguf;
  Tensor out = float_values(values);
  for (int64_t i = 0; i < out.numel(); ++i) {
    float& v = out.as<float>()[i];
    if (g.decay)
      v = to ? -std::exp(v) : std::log(-v);
    else
      v += to ? g.added : -g.added;
  }
  return out;
}

Tensor reordered(ConstTensorView rows, const GgufOrder& order, GgufDirection direction) {
  if (order.empty()) return clone_host(rows);
  const auto count = static_cast<int64_t>(order.size()), bytes = rows.bytes() / count;
  Tensor out = Tensor::host(rows.dtype, rows.shape);
  const auto* from = static_cast<const uint8_t*>(rows.data);
  auto* to = static_cast<uint8_t*>(out.view().data);
  for (int64_t there = 0; there < count; ++there) {
    const int64_t here = order[static_cast<size_t>(there)];
    const bool write = direction == GgufDirection::to_gguf;
    std::memcpy(to + (write ? there : here) * bytes, from + (write ? here : there) * bytes, static_cast<size_t>(bytes));
  }
  return out;
}

Tensor reordered_runs(ConstTensorView rows, const GgufOrder& order, int64_t run_bytes, GgufDirection direction) {
  Tensor out = clone_host(rows);
  const int64_t row_bytes = run_bytes * static_cast<int64_t>(order.size());
  if (order.empty()) return out;
  FEWBIT_ASSERT(rows.bytes() % row_bytes == 0);
  const auto* from = static_cast<const uint8_t*>(rows.data);
  auto* to = static_cast<uint8_t*>(out.view().data);
  for (int64_t row = 0; row < rows.bytes(); row += row_bytes)
    for (size_t there = 0; there < order.size(); ++there) {
      const int64_t a = row + static_cast<int64_t>(there) * run_bytes, b = row + order[there] * run_bytes;
      const bool write = direction == GgufDirection::to_gguf;
      std::memcpy(to + (write ? a : b), from + (write ? b : a), static_cast<size_t>(run_bytes));
    }
  return out;
}

Tensor picked_rows(ConstTensorView all, const GgufOrder& order, int64_t of) {
  const int64_t bytes = all.bytes() / of;
  Tensor out = Tensor::host(DType::u8, {static_cast<int64_t>(order.size()), bytes});
  for (size_t i = 0; i < order.size(); ++i)
    std::memcpy(out.as<uint8_t>() + static_cast<int64_t>(i) * bytes,
                static_cast<const uint8_t*>(all.data) + order[i] * bytes, static_cast<size_t>(bytes));
  return out;
}

void put_rows(TensorView all, ConstTensorView rows, const GgufOrder& order, int64_t of) {
  const int64_t bytes = all.bytes() / of;
  FEWBIT_ASSERT(rows.bytes() == bytes * static_cast<int64_t>(order.size()));
  for (size_t i = 0; i < order.size(); ++i)
    std::memcpy(static_cast<uint8_t*>(all.data) + order[i] * bytes,
                static_cast<const uint8_t*>(rows.data) + static_cast<int64_t>(i) * bytes, static_cast<size_t>(bytes));
}

Tensor turned_blocks(ConstTensorView values, int64_t blocks, int64_t rows, int64_t cols) {
  const int64_t size = values.bytes() / (blocks * rows * cols);
  Tensor out = Tensor::host(DType::u8, {values.bytes()});
  const auto* from = static_cast<const uint8_t*>(values.data);
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        std::memcpy(out.as<uint8_t>() + ((b * cols + c) * rows + r) * size, from + ((b * rows + r) * cols + c) * size,
                    static_cast<size_t>(size));
  return out;
}

GgufOrder paired_rows(int64_t heads, int64_t head_dim) {
  GgufOrder order(static_cast<size_t>(heads * head_dim));
  const int64_t half = head_dim / 2;
  FEWBIT_ASSERT(head_dim % 2 == 0);
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t r = 0; r < head_dim; ++r)
      order[static_cast<size_t>(head * head_dim + 2 * (r % half) + r / half)] = head * head_dim + r;
  return order;
}

}  // namespace fewbit

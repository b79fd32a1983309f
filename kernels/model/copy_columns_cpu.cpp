// Columns of one matrix into columns of another: the CPU half.
#include "kernels/model/copy_columns.h"

#include <cstring>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void copy_columns(Exec&, ConstTensorView from, int64_t from_begin, TensorView to, int64_t to_begin, int64_t cols,
                  ColumnGroups groups) {
  const int64_t element = bytes_of(to.dtype);
  const auto* source = static_cast<const uint8_t*>(from.data) + from_begin * element;
  auto* target = static_cast<uint8_t*>(to.data) + to_begin * element;
  parallel_for(to.rows(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t g = 0; g < groups.count; ++g)
        std::memcpy(target + (r * to.cols() + g * groups.to_step) * element,
                    source + (r * from.cols() + g * groups.from_step) * element, static_cast<size_t>(cols * element));
  });
}

void order_columns(Exec&, ConstTensorView x, ConstTensorView order, TensorView y) {
  FEWBIT_ASSERT(x.dtype == y.dtype && x.shape == y.shape && order.dtype == DType::i32 && order.numel() == x.cols());
  const int32_t* from = order.as<int32_t>();
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.rows(), 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t i = 0; i < x.cols(); ++i) y.as<T>()[r * x.cols() + i] = x.as<T>()[r * x.cols() + from[i]];
    });
  });
}

}  // namespace fewbit::cpu

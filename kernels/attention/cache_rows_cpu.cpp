// New rows to their positions in a cache: the CPU half.
#include "kernels/attention/cache_rows.h"

#include <cstring>

namespace fewbit::cpu {

void cache_rows(Exec&, ConstTensorView x, ConstTensorView positions, TensorView cache) {
  const int64_t capacity = cache.shape[1], row = x.cols() * bytes_of(x.dtype), len = x.rows() / cache.shape[0];
  for (int64_t t = 0; t < x.rows(); ++t) {
    const int64_t position = positions.as<int32_t>()[t];
    FEWBIT_ASSERT(position >= 0 && position < capacity);
    std::memcpy(static_cast<char*>(cache.data) + (t / len * capacity + position) * row,
                static_cast<const char*>(x.data) + t * row, static_cast<size_t>(row));
  }
}

}  // namespace fewbit::cpu

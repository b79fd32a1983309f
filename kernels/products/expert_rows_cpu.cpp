#include "kernels/products/expert_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void expert_lists(Exec&, ConstTensorView ids, ConstTensorView shares, const ExpertLists& to) {
  const int32_t* id = ids.as<int32_t>();
  int32_t* begin = to.begin.as<int32_t>();
  std::fill_n(begin, to.begin.numel(), 0);
  for (int64_t i = 0; i < ids.numel(); ++i) ++begin[id[i] + 1];
  std::partial_sum(begin, begin + to.begin.numel(), begin);
  std::vector<int32_t> next(begin, begin + to.begin.numel() - 1);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int32_t at = next[static_cast<size_t>(id[i])]++;
    to.rows.as<int32_t>()[at] = static_cast<int32_t>(i / ids.cols());
    to.weights.as<float>()[at] = shares.as<float>()[i];
    to.places.as<int32_t>()[i] = at;
  }
}

void place_rows(Exec&, ConstTensorView x, ConstTensorView rows, std::span<const PlacedRows> runs, TensorView y) {
  const auto bytes = static_cast<size_t>(x.cols() * bytes_of(x.dtype));
  for (const PlacedRows& r : runs)
    parallel_for(r.count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto row = static_cast<size_t>(rows.as<int32_t>()[r.from + i]);
        FEWBIT_ASSERT(static_cast<int64_t>(row) < x.rows());
        std::memcpy(static_cast<char*>(y.data) + static_cast<size_t>(r.to + i) * bytes,
                    static_cast<const char*>(x.data) + row * bytes, bytes);
      }
    });
}

void combine_rows(Exec&, ConstTensorView y, ConstTensorView places, ConstTensorView weights, int64_t first,
                  TensorView sum) {
  const int64_t cols = y.cols();
  for_float_type(y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(places.rows(), 16, [&](int64_t begin, int64_t end) {
      std::array<int32_t, kMostPlaces> own{};
      for (int64_t t = begin; t < end; ++t) {
        const int32_t* of = places.as<int32_t>() + t * places.cols();
        std::copy_n(of, places.cols(), own.begin());
        std::sort(own.begin(), own.begin() + places.cols());
        for (int64_t j = 0; j < places.cols(); ++j) {
          const int64_t at = own[static_cast<size_t>(j)] - first;
          if (at < 0 || at >= y.rows()) continue;
          axpy(weights.as<float>()[first + at], y.as<T>() + at * cols, sum.as<float>() + t * cols, cols);
        }
      }
    });
  });
}

}  // namespace fewbit::cpu

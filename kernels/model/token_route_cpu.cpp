// The experts that a token goes to by its id: the CPU half.
#include "kernels/model/token_route.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void token_route(Exec&, ConstTensorView logits, ConstTensorView table, ConstTensorView ids, const TokenRouteRule& rule,
                 TensorView weights) {
  const int64_t experts = logits.cols(), top_k = table.cols();
  for_float_type(weights.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(logits.rows(), 64, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(experts));
      for (int64_t t = begin; t < end; ++t) {
        const int64_t id = ids.as<int32_t>()[t];
        FEWBIT_ASSERT(id >= 0 && id < table.rows());
        const auto score = [&](int64_t i) {
          const double z = logits.as<float>()[t * experts + table.as<int32_t>()[id * top_k + i]];
          return std::sqrt(std::max(z, 0.) + std::log1p(std::exp(-std::fabs(z))));
        };
        double sum = 1e-20;
        for (int64_t i = 0; i < top_k; ++i) sum += score(i);
        std::fill(row.begin(), row.end(), 0.f);
        for (int64_t i = 0; i < top_k; ++i)
          row[static_cast<size_t>(table.as<int32_t>()[id * top_k + i])] +=
              static_cast<float>(score(i) / (rule.renormalise ? sum : 1) * rule.scaling);
        narrow(row.data(), weights.as<T>() + t * experts, experts);
      }
    });
  });
}

}  // namespace fewbit::cpu

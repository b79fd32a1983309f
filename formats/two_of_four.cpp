#include "formats/two_of_four.h"

#include <algorithm>

namespace fewbit {

bool two_of_four(const QuantizedLinear& q) {
  if (q.spec.grid != Grid::integer || !q.spec.symmetric || q.in() % 4 != 0) return false;
  const uint8_t* codes = q.codes.as<uint8_t>();
  const auto zero = static_cast<uint8_t>(q.spec.mid_code());
  for (int64_t i = 0; i < q.codes.numel(); i += 4)
    if (std::count(codes + i, codes + i + 4, zero) < 2) return false;
  return true;
}

}  // namespace fewbit

#pragma once
// Random linears for packings that take 2:4 sparsity alone.
#include "tests/formats/packing_fixture.h"

namespace fewbit::test {

// random_linear() for a packing: in 2:4 sparsity where it takes no other, with quads of two weights, one and none.
inline QuantizedLinear random_linear_for(const Packing& p, const QuantSpec& spec, int64_t out, int64_t in,
                                         Order order) {
  QuantizedLinear q = random_linear(spec, out, in, order);
  if (!p.two_of_four) return q;
  const auto zero = static_cast<uint8_t>(spec.mid_code());
  const Rng rng(8, "mask");
  for (int64_t i = 0; i < q.codes.numel(); i += 4) {
    uint8_t* quad = q.codes.as<uint8_t>() + i;
    const auto first = static_cast<int64_t>(rng.at(static_cast<uint64_t>(i)) % 4);
    quad[first] = quad[(first + 1 + rng.at(static_cast<uint64_t>(i) + 1) % 3) % 4] = zero;
    if (i % 20 == 0) quad[(first + 2) % 4] = zero;
    if (i % 52 == 0) std::fill_n(quad, 4, zero);
  }
  return q;
}

}  // namespace fewbit::test

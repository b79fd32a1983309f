#pragma once
// Workbench: one linear with statistics on a device, for tests of methods.
#include "src/quant/method.h"
#include "tests/kernels/quantize/quantizer_fixture.h"

namespace fewbit::test {

struct Workbench {
  Exec& ex;
  Tensor host_weight{}, weight{};
  InputStats stats{};

  Workbench(Exec& on, int64_t out, int64_t in, uint64_t seed) : ex(on) {
    set(random_normal(DType::f32, {out, in}, seed, 0.05f));
    stats.tokens = 500;
    stats.gram = ex.to_device(correlated_gram(in, 150, seed + 1));
  }
  void set(Tensor w) {
    host_weight = std::move(w);
    weight = ex.to_device(host_weight);
  }
  LinearJob job(int bits = 4, int64_t group = 128, bool symmetric = true) const {
    LinearJob j{.name = "model.layers.0.test", .weight = weight, .stats = &stats};
    j.spec = {.bits = bits, .group = group, .symmetric = symmetric};
    return j;
  }
};

}  // namespace fewbit::test

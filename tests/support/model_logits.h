#pragma once
#include "src/run/runner.h"

namespace fewbit::test {

// Logits of a model in float32 for two sequences of 24 tokens that any vocabulary has, f32 [48, vocab] on the host.
inline Tensor logits_of(Exec& ex, const Checkpoint& c) {
  std::vector<int32_t> ids(48);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 37 + 11) % static_cast<size_t>(c.spec.vocab));
  Runner runner(ex, c, {.dtype = DType::f32});
  return ex.to_host(runner.logits(runner.hidden(ids, 2)));
}

}  // namespace fewbit::test

#pragma once
// Sampling on the host from one row of logits. Randomness is counter-based per (seed, sequence, position), so
// a token does not depend on what else is in the batch.
#include <cstdint>
#include <span>

namespace fewbit {

struct SamplerOptions {
  float temperature = 0;  // 0 = greedy
  int top_k = 0;          // 0 = all
  float top_p = 1;        // nucleus; 1 = all
  float min_p = 0;        // drop what is below min_p * the largest probability
  uint64_t seed = 0;
};

int32_t sample(std::span<const float> logits, const SamplerOptions&, int64_t sequence, int64_t position);

}  // namespace fewbit

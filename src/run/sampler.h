#pragma once
// Sampling on the host from one row of logits. Randomness is counter-based per (seed, sequence, position), so
// a token does not depend on what else is in the batch.
#include <cstdint>
#include <span>
#include <vector>

namespace fewbit {

struct SamplerOptions {
  float temperature = 0;  // 0 = greedy
  int top_k = 0;          // 0 = all
  float top_p = 1;        // nucleus; 1 = all
  float min_p = 0;        // drop what is below min_p * the largest probability
  uint64_t seed = 0;
};

// The tokens that may be drawn, the likeliest first (of equals the one of the smaller id), each with its share of the
// total; the shares are positive but for what is below the smallest double.
struct Chances {
  std::vector<int32_t> ids{};
  std::vector<double> shares{};
  double total = 0;
};
// What temperature, top-k, top-p and min-p leave of a row of logits; one token of all that greedy choice has.
Chances chances_of(std::span<const float> logits, const SamplerOptions&);
// The token in which a number from [0, 1) falls when the shares lie side by side.
int32_t draw(const Chances&, double uniform);

int32_t sample(std::span<const float> logits, const SamplerOptions&, int64_t sequence, int64_t position);

}  // namespace fewbit

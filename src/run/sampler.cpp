// Temperature, then top-k, top-p and min-p on the sorted probabilities, then one uniform number of the
// counter-based generator.
#include "src/run/sampler.h"

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/core/rng.h"

namespace fewbit {
namespace {

int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Chances chances_of(std::span<const float> logits, const SamplerOptions& o) {
  FEWBIT_ASSERT(!logits.empty());
  if (o.temperature <= 0) return {.ids = {likeliest(logits)}, .shares = {1}, .total = 1};
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  size_t keep = o.top_k > 0 ? std::min(order.size(), static_cast<size_t>(o.top_k)) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep), order.end(), before);
  std::vector<double> p(keep);
  double total = 0;
  for (size_t i = 0; i < keep; ++i) {
    const double above =
        static_cast<double>(logits[static_cast<size_t>(order[i])]) - logits[static_cast<size_t>(order[0])];
    total += p[i] = std::exp(above / o.temperature);
  }
  if (o.top_p < 1) {  // the shortest run of largest ones that holds top_p of the mass; at least one
    double mass = 0;
    size_t n = 0;
    while (n < keep && (n == 0 || mass < o.top_p * total)) mass += p[n++];
    keep = n;
  }
  while (keep > 1 && p[keep - 1] < o.min_p * p[0]) --keep;
  total = 0;
  for (size_t i = 0; i < keep; ++i) total += p[i];
  order.resize(keep);
  p.resize(keep);
  return {.ids = std::move(order), .shares = std::move(p), .total = total};
}

int32_t draw(const Chances& c, double uniform) {
  double left = uniform * c.total;
  for (size_t i = 0; i + 1 < c.ids.size(); ++i) {
    if (left < c.shares[i]) return c.ids[i];
    left -= c.shares[i];
  }
  return c.ids.back();
}

int32_t sample(std::span<const float> logits, const SamplerOptions& o, int64_t sequence, int64_t position) {
  FEWBIT_ASSERT(!logits.empty());
  if (o.temperature <= 0) return likeliest(logits);
  // A stream per sequence, a value per position.
  const Rng rng(o.seed ^ mix64(static_cast<uint64_t>(sequence)), "sampler");
  return draw(chances_of(logits, o), rng.uniform_at(static_cast<uint64_t>(position)));
}

}  // namespace fewbit

// How a draft's tokens are drawn, and which of them are kept.
#include <algorithm>
#include <unordered_map>

#include "src/core/error.h"
#include "src/core/rng.h"
#include "src/run/speculate/speculation.h"

namespace fewbit {
namespace {

double chance_of(const Chances& c, int32_t id) {
  const auto it = std::ranges::find(c.ids, id);
  return it == c.ids.end() ? 0 : c.shares[static_cast<size_t>(it - c.ids.begin())] / c.total;
}

// The positive part of p - q.
Chances remainder_of(const Chances& p, const Chances& q) {
  std::unordered_map<int32_t, double> drafted;
  for (size_t i = 0; i < q.ids.size(); ++i) drafted[q.ids[i]] = q.shares[i] / q.total;
  Chances rest;
  for (size_t i = 0; i < p.ids.size(); ++i) {
    const auto it = drafted.find(p.ids[i]);
    const double more = p.shares[i] / p.total - (it == drafted.end() ? 0 : it->second);
    if (more <= 0) continue;
    rest.ids.push_back(p.ids[i]);
    rest.shares.push_back(more);
    rest.total += more;
  }
  // Where a token is rejected another one is likelier than the draft holds it, unless rounding ate the difference.
  return rest.ids.empty() ? p : rest;
}

}  // namespace

void add_drawn(Draft& draft, std::vector<int32_t>& text, std::span<const float> logits, const SamplerOptions& options) {
  Chances chances = chances_of(logits, options);
  text.push_back(draw(chances, Rng(options.seed, "draft").uniform_at(text.size())));
  draft.ids.push_back(text.back());
  if (options.temperature > 0) draft.chances.push_back(std::move(chances));
}

std::vector<int32_t> judge(ConstTensorView logits, const Draft& draft, const SamplerOptions& options, int64_t sequence,
                           int64_t position) {
  FEWBIT_ASSERT(logits.rows() == std::ssize(draft.ids) + 1);
  FEWBIT_ASSERT(draft.chances.empty() || draft.chances.size() == draft.ids.size());
  const bool certain = draft.chances.empty() || options.temperature <= 0;
  // Streams of their own: neither may depend on the number that the draft's token was drawn with.
  const uint64_t seed = options.seed ^ mix64(static_cast<uint64_t>(sequence));
  const Rng acceptance(seed, "draft acceptance"), instead(seed, "draft remainder");
  std::vector<int32_t> kept;
  for (size_t i = 0; i <= draft.ids.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const ConstTensorView row = logits.row_range(at, at + 1);
    const std::span<const float> values(row.as<float>(), static_cast<size_t>(row.numel()));
    if (certain || i == draft.ids.size()) {
      kept.push_back(sample(values, options, sequence, position + at));
      if (i < draft.ids.size() && kept.back() != draft.ids[i]) break;
      continue;
    }
    const int32_t x = draft.ids[i];
    const Chances p = chances_of(values, options);
    const Chances& q = draft.chances[i];
    const auto counter = static_cast<uint64_t>(position + at);
    const bool accepted = acceptance.uniform_at(counter) * chance_of(q, x) < chance_of(p, x);
    kept.push_back(accepted ? x : draw(remainder_of(p, q), instead.uniform_at(counter)));
    if (!accepted) break;
  }
  return kept;
}

}  // namespace fewbit

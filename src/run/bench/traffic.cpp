#include "src/run/bench/traffic.h"

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/core/rng.h"
#include "src/core/text/with_error.h"

namespace fewbit {
namespace {

int64_t drawn(Rng& rng, const Lengths& l) {
  return l.least + static_cast<int64_t>(rng.below(static_cast<uint64_t>(l.most - l.least + 1)));
}

Spread spread_or_none(std::vector<double> samples) {
  if (!samples.empty()) return spread_of(std::move(samples));
  return {.mean = kNoError, .std = kNoError, .p50 = kNoError, .p90 = kNoError, .p95 = kNoError, .p99 = kNoError};
}

}  // namespace

// Lengths and gaps come from streams of their own: the same requests arrive at every rate.
std::vector<TrafficRequest> requests_of(const TrafficShape& shape, const Arrivals& a) {
  if (!a.trace.empty()) return a.trace;
  const int64_t count = a.count > 0 ? a.count : std::max<int64_t>(8, 4 * shape.concurrency);
  Rng lengths(a.seed, "traffic lengths"), gaps(a.seed, "traffic gaps");
  std::vector<TrafficRequest> requests;
  double now = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (a.rate > 0) now -= std::log(1 - gaps.uniform()) / a.rate;
    const int64_t prompt = drawn(lengths, shape.prompt_tokens);
    requests.push_back({.arrival_s = now, .prompt_tokens = prompt, .tokens = drawn(lengths, shape.tokens)});
  }
  return requests;
}

TrafficTimes times_of(std::span<const RequestEvents> all, const Slo& slo) {
  FEWBIT_ASSERT(!all.empty());
  TrafficTimes t{.requests = std::ssize(all)};
  std::vector<double> ttft, itl, e2e;
  double first = all[0].arrival_s, last = all[0].arrival_s;
  for (const RequestEvents& r : all) {
    FEWBIT_ASSERT(!r.token_s.empty());
    t.prompt_tokens += r.prompt_tokens;
    t.tokens += std::ssize(r.token_s);
    ttft.push_back(1e3 * (r.token_s.front() - r.arrival_s));
    e2e.push_back(1e3 * (r.token_s.back() - r.arrival_s));
    for (size_t i = 1; i < r.token_s.size(); ++i) itl.push_back(1e3 * (r.token_s[i] - r.token_s[i - 1]));
    const auto gaps = static_cast<double>(r.token_s.size() - 1);
    const double mean_itl = gaps > 0 ? (e2e.back() - ttft.back()) / gaps : 0;
    t.within_slo += ttft.back() <= slo.ttft_ms && mean_itl <= slo.itl_ms && e2e.back() <= slo.e2e_ms;
    first = std::min(first, r.arrival_s);
    last = std::max(last, r.token_s.back());
  }
  t.seconds = last - first;
  t.tokens_per_s = static_cast<double>(t.tokens) / t.seconds;
  t.requests_per_s = static_cast<double>(t.requests) / t.seconds;
  t.goodput = static_cast<double>(t.within_slo) / t.seconds;
  t.ttft_ms = spread_of(std::move(ttft));
  t.itl_ms = spread_or_none(std::move(itl));
  t.e2e_ms = spread_of(std::move(e2e));
  return t;
}

}  // namespace fewbit

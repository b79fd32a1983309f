// The bench under load: what its figures are made of, on made-up events, and that every request of a run is served
// whole. How fast anything is, is no test.
#include "src/run/bench/traffic_bench.h"

#include <cmath>

#include "src/core/error.h"
#include "tests/run/demo.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

TEST(Traffic, TimesAreOfTheirSamples) {
  // Times between tokens of all requests: 10, 30, 20 ms; the third request has one token, and so none.
  const std::vector<RequestEvents> events = {
      {.arrival_s = 1, .prompt_tokens = 5, .token_s = {1.1, 1.11, 1.14}},
      {.arrival_s = 1.5, .prompt_tokens = 7, .token_s = {1.7, 1.72}},
      {.arrival_s = 2, .prompt_tokens = 9, .token_s = {3}},
  };
  const TrafficTimes t = times_of(events, {.ttft_ms = 250, .itl_ms = 20.5});
  EXPECT_EQ(t.requests, 3);
  EXPECT_EQ(t.prompt_tokens, 21);
  EXPECT_EQ(t.tokens, 6);
  EXPECT_DOUBLE_EQ(t.seconds, 2) << "from the first arrival to the last token";
  EXPECT_DOUBLE_EQ(t.tokens_per_s, 3);
  EXPECT_NEAR(t.ttft_ms.p50, 200, 1e-9);
  EXPECT_NEAR(t.ttft_ms.p99, 1000, 1e-9);
  EXPECT_NEAR(t.itl_ms.p50, 20, 1e-9);
  EXPECT_NEAR(t.itl_ms.p99, 30, 1e-9);
  EXPECT_NEAR(t.itl_ms.mean, 20, 1e-9);
  EXPECT_NEAR(t.e2e_ms.p50, 220, 1e-9);
  EXPECT_NEAR(t.e2e_ms.p90, 1000, 1e-9);
  // The first has a gap of 30 ms, but a mean of 20; the third is late.
  EXPECT_EQ(t.within_slo, 2);
  EXPECT_DOUBLE_EQ(t.goodput, 1);
  EXPECT_EQ(times_of(events, {.itl_ms = 19}).within_slo, 1) << "who has no times between tokens keeps their limit";
  EXPECT_EQ(times_of(events, {.e2e_ms = 200}).within_slo, 1);
  EXPECT_EQ(times_of(events, {}).within_slo, 3);
  EXPECT_TRUE(std::isnan(times_of({&events[2], 1}, {}).itl_ms.p50));
}

TEST(Traffic, RequestsAreDrawnBySeedAndTheSameAtEveryRate) {
  const TrafficShape shape{.concurrency = 4, .prompt_tokens = {10, 20}, .tokens = {3, 3}};
  const auto slow = requests_of(shape, {.rate = 2, .count = 4000, .seed = 1});
  const auto fast = requests_of(shape, {.rate = 8, .count = 4000, .seed = 1});
  double sum = 0;
  for (size_t i = 0; i < slow.size(); ++i) {
    EXPECT_EQ(slow[i].prompt_tokens, fast[i].prompt_tokens);
    EXPECT_NEAR(slow[i].arrival_s, 4 * fast[i].arrival_s, 1e-6);
    EXPECT_TRUE(slow[i].prompt_tokens >= 10 && slow[i].prompt_tokens <= 20 && slow[i].tokens == 3);
    sum += static_cast<double>(slow[i].prompt_tokens);
  }
  // Within four standard errors of the means: of 4,000 exponential gaps, and of lengths of variance 10.
  EXPECT_NEAR(slow.back().arrival_s / 4000, 0.5, 4 * 0.5 / std::sqrt(4000));
  EXPECT_NEAR(sum / 4000, 15, 4 * std::sqrt(10.0 / 4000));
  EXPECT_NE(requests_of(shape, {.count = 50, .seed = 2})[0].prompt_tokens +
                100 * requests_of(shape, {.count = 50, .seed = 2})[1].prompt_tokens,
            slow[0].prompt_tokens + 100 * slow[1].prompt_tokens);
  EXPECT_EQ(requests_of(shape, {}).size(), 16u) << "four for each sequence";
  EXPECT_EQ(requests_of(shape, {}).back().arrival_s, 0) << "a closed loop";
}

// Everything that was asked for came, whatever the cache had room for; and each row is counted alone.
void counts_add_up(const TrafficOptions& o, const TrafficRow& row) {
  int64_t prompts = 0, tokens = 0;
  for (const TrafficRequest& r : requests_of(row.shape, o.arrivals)) prompts += r.prompt_tokens, tokens += r.tokens;
  EXPECT_EQ(row.times.prompt_tokens, prompts);
  EXPECT_EQ(row.times.tokens, tokens);
  EXPECT_EQ(row.counts.decoded, tokens);
  // Without preemption each prompt goes through once, and each token but a request's last.
  if (row.counts.preemptions == 0) {
    EXPECT_EQ(row.counts.rows + row.counts.shared_tokens, prompts + tokens - row.times.requests);
  }
  EXPECT_GE(row.cache_peak, row.cache_mean);
  EXPECT_GT(row.cache_mean, 0);
  EXPECT_LE(row.cache_peak, 1);
  EXPECT_LT(row.planning_share(), row.scheduling_share());
  EXPECT_GE(row.times.e2e_ms.p50, row.times.ttft_ms.p50);
}

TEST(Traffic, EveryRequestEndsWithTheTokensItAskedFor) {
  Exec ex = Exec::cpu();
  TrafficOptions o{.shapes = {{.concurrency = 1, .prompt_tokens = {5, 30}, .tokens = {1, 9}},
                              {.concurrency = 5, .prompt_tokens = {5, 30}, .tokens = {1, 9}}},
                   .arrivals = {.count = 12, .seed = 3},
                   .budget = 32};
  const TrafficResult closed = bench_traffic(ex, demo(), o);
  ASSERT_EQ(closed.rows.size(), 2u);
  for (const TrafficRow& row : closed.rows) {
    counts_add_up(o, row);
    EXPECT_EQ(row.counts.preemptions, 0) << "the cache has room for all";
    EXPECT_EQ(row.hit_rate(), 0) << "random prompts";
  }
  EXPECT_LT(closed.rows[1].counts.passes, closed.rows[0].counts.passes);
  EXPECT_LT(closed.rows[0].cache_peak, closed.rows[1].cache_peak);
  o.arrivals.rate = 500;
  counts_add_up(o, bench_traffic(ex, demo(), o).rows[1]);
}

TEST(Traffic, ASmallCachePreemptsAndSharedBeginningsAreFound) {
  Exec ex = Exec::cpu();
  TrafficOptions o{.shapes = {{.concurrency = 6, .prompt_tokens = {30, 30}, .tokens = {30, 30}}},
                   .arrivals = {.count = 10},
                   .positions = 160,
                   .prefix_cache = false};
  const TrafficRow pressed = bench_traffic(ex, demo(), o).rows[0];
  counts_add_up(o, pressed);
  EXPECT_GT(pressed.counts.preemptions, 0);
  o = {.shapes = {{.concurrency = 2, .prompt_tokens = {40, 40}, .tokens = {2, 2}}},
       .arrivals = {.count = 5},
       .shared_tokens = 32};
  const TrafficRow shared = bench_traffic(ex, demo(), o).rows[0];
  counts_add_up(o, shared);
  EXPECT_DOUBLE_EQ(shared.hit_rate(), 4 * 32.0 / (5 * 40)) << "all but the first find two pages of 16";
}

TEST(Traffic, AnOpenLoopCountsFromTheArrival) {
  Exec ex = Exec::cpu();
  // Both come at once and find one place; the last comes long after they have ended, and is waited for.
  const TrafficOptions o{.shapes = {{.concurrency = 1}}, .arrivals = {.trace = {{0, 8, 6}, {0, 8, 6}, {0.3, 8, 1}}}};
  const TrafficRow row = bench_traffic(ex, demo(), o).rows[0];
  counts_add_up(o, row);
  EXPECT_GE(row.times.seconds, 0.3);
  EXPECT_GT(row.times.ttft_ms.p99, row.times.ttft_ms.p50) << "one waited for the other";
}

TEST(Traffic, WhatCannotBeServedIsRefused) {
  Exec ex = Exec::cpu();
  const auto refused = [&](const TrafficOptions& o) {
    try {
      bench_traffic(ex, demo(), o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("served");
  };
  EXPECT_NE(refused({.shapes = {{.prompt_tokens = {9, 1020}, .tokens = {9, 9}}}}).find("1024 positions"),
            std::string::npos);
  EXPECT_NE(refused({.shapes = {{.prompt_tokens = {90, 90}, .tokens = {9, 9}}}, .positions = 98}).find("has 99"),
            std::string::npos);
  EXPECT_NE(refused({.shapes = {{.prompt_tokens = {9, 9}, .tokens = {9, 9}}}, .shared_tokens = 10}).find("only 9"),
            std::string::npos);
}

}  // namespace
}  // namespace fewbit::test

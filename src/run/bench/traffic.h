#pragma once
// Requests as people send them, and what their times say of whoever served them: none of it knows a model.
#include <limits>
#include <span>
#include <vector>

#include "src/run/bench/bench.h"

namespace fewbit {

// A number of tokens, drawn uniformly from [least, most].
struct Lengths {
  int64_t least = 1, most = 1;
};

// One row of a bench under load: so many sequences at one time, and what each request asks for.
struct TrafficShape {
  int64_t concurrency = 1;
  Lengths prompt_tokens{}, tokens{};
};

// Comes `arrival_s` seconds after the start; in a closed loop, as soon as a place is free.
struct TrafficRequest {
  double arrival_s = 0;
  int64_t prompt_tokens = 1, tokens = 1;
};

// Which requests come. A trace says all of it; else `count` of them are drawn by the seed, of the lengths of the row.
struct Arrivals {
  double rate = 0;    // requests a second, of a Poisson process; 0: a closed loop, each sequence sends its next request
                      // when the one before has ended
  int64_t count = 0;  // 0: four for each sequence, and eight at least
  std::vector<TrafficRequest> trace{};  // by arrival
  uint64_t seed = 0;
  bool open() const { return rate > 0 || !trace.empty(); }
};
std::vector<TrafficRequest> requests_of(const TrafficShape&, const Arrivals&);

// Limits that a request keeps or not, of the first token, of the mean time between its tokens, and of the whole.
struct Slo {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  double ttft_ms = kNone, itl_ms = kNone, e2e_ms = kNone;
  bool any() const { return ttft_ms < kNone || itl_ms < kNone || e2e_ms < kNone; }
};

// What happened to a request: when it came and when each of its tokens was chosen, in seconds of one clock. An open
// loop takes the time at which the request was due, however late the server looked at it.
struct RequestEvents {
  double arrival_s = 0;
  int64_t prompt_tokens = 0;
  std::vector<double> token_s{};
};

struct TrafficTimes {
  int64_t requests = 0, prompt_tokens = 0, tokens = 0;  // all of which ended
  double seconds = 0;                                   // from the first arrival to the last token
  Spread ttft_ms{}, e2e_ms{};                           // over the requests: first and last token, since the arrival
  Spread itl_ms{};  // over all pairs of neighbouring tokens of a request; NaN where no request has two
  double tokens_per_s = 0, requests_per_s = 0;
  int64_t within_slo = 0;  // requests
  double goodput = 0;      // of these, a second
};
// Of at least one request, each with at least one token.
TrafficTimes times_of(std::span<const RequestEvents>, const Slo&);

}  // namespace fewbit

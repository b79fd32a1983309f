#pragma once
// What the flags of a bench under load say, read before any model is opened.
#include "src/run/bench/traffic.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

// Of the scheduler of `runner serve` and of `runner bench --concurrency`.
struct SchedulingArgs {
  int64_t positions = 0, budget = 512;  // positions 0: left out
  bool no_prefix_cache = false, batch_invariant = false;
};
// --cache-positions (left out: what `otherwise` says in words), --budget, --no-prefix-cache, --batch-invariant; all are
// returned.
std::vector<CLI::Option*> add_scheduling(CLI::App&, SchedulingArgs&, const std::string& otherwise);

// "256" or "uniform:64-512". The validator says what else was found; the others take what it let through.
CLI::Validator lengths();
Lengths lengths_from(const std::string& text);
int64_t one_length(const std::string& text, const char* flag);  // Error{usage} for a range
std::string text_of(const Lengths&);                            // the same words back

// One word with commas: the next word is none of the list's.
template <class T>
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<T>& values, const std::string& what,
                      const CLI::Validator& each) {
  return app.add_option(name, values, what + "; a list (1,8: commas, no blanks) makes a row of each")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(each)
      ->capture_default_str();
}

// "ttft=200ms,itl=20ms,e2e=3s", any of them once. Error{usage} naming --slo.
Slo slo_from(const std::string& text);

// A file of requests, a line of JSON each: {"arrival": seconds, "prompt_tokens": N, "tokens": N}, by arrival.
// Error{checkpoint} "FILE:LINE: …"; Error{io}.
std::vector<TrafficRequest> read_arrivals(const std::string& file);

}  // namespace fewbit::cli

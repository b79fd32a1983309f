#pragma once
// Two checkpoints in one process, step by step in turn: what changes slowly (clocks, other programs) meets both alike.
#include "src/run/bench/bench.h"

namespace fewbit {

// A ratio of times, second over first: above 1 the second is slower. The geometric mean of paired ratios with its
// standard error (0 of a single pair).
struct TimeRatio {
  double value = 1, stderr_ = 0;
};
// Of equally many times, at least one.
TimeRatio ratio_of(const std::vector<double>& first, const std::vector<double>& second);

struct ComparedModel {
  double load_s = 0;
  Spread ttft_ms{};       // over the repetitions
  Spread ms_per_token{};  // over the steps of all repetitions
  int64_t bytes_per_token = 0;
  double gb_per_s = 0, floor_share = 0;  // as in BenchRow
  StepLaunches launches{};               // as in BenchRow
  std::string why_not_together;          // as in BenchRow
  std::vector<std::string> kernels, notes;
};
struct BenchComparison {
  ComparedModel first, second;
  TimeRatio step, ttft;
  MemoryRates memory{};
  int64_t peak_bytes = 0;  // both models
  std::string device;
};

// Steps of the only shape run in the order A B B A, and four of them make one ratio, so its tokens must be even:
// Error{usage} otherwise, and as check_shapes() for either model, before any weight is read.
BenchComparison compare_speed(Exec&, const std::filesystem::path& a, const std::filesystem::path& b,
                              const BenchOptions&, const BenchProgress& = {});

}  // namespace fewbit

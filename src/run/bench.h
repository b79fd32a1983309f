#pragma once
// Bench: load time, prefill rate, time to first token and per-token latency of a checkpoint, with the bytes
// that a step must move and the share of the device's measured copy rate that it reaches.
#include <functional>
#include <string>
#include <vector>

#include "src/run/engine.h"

namespace fewbit {

struct BenchOptions {
  LoadOptions load{};
  int64_t tokens = 200;  // decode steps that are timed
  int64_t prompt_tokens = 128;
  int64_t batch = 1;
  int64_t warmup = 10;  // decode steps before the timed ones
  uint64_t seed = 0;    // of the random prompt
};

struct Spread {
  double mean = 0, std = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0;
};
Spread spread_of(std::vector<double> samples);  // percentiles by the nearest rank

struct BenchResult {
  double load_s = 0;                // open, copy, first buffers
  double prefill_tokens_per_s = 0;  // all sequences
  double ttft_ms = 0;               // prompt in, first token chosen
  Spread ms_per_token{};            // per step, i.e. per token of one sequence
  double tokens_per_s = 0;          // all sequences, over the wall clock of the timed steps
  int64_t bytes_per_token = 0;  // weights (head included) and cache that one step reads, at the mean context
  double gb_per_s = 0;          // bytes_per_token over the mean step
  double copy_gb_per_s = 0;     // measured: device-to-device copy, read and write counted
  double floor_share = 0;       // gb_per_s / copy_gb_per_s
  int64_t peak_bytes = 0;
  int64_t batch = 0, prompt_tokens = 0, tokens = 0;
  std::string device;
  std::vector<std::string> kernels, notes;
};

// Error{usage} when prompt and tokens exceed the model's positions.
BenchResult bench(Exec&, const std::filesystem::path& model, const BenchOptions&,
                  const std::function<void(const std::string&, double)>& progress = {});

}  // namespace fewbit

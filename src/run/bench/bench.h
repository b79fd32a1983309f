#pragma once
// Bench: load time, prefill rate, time to first token and inter-token latency of a checkpoint for any number of shapes,
// with the bytes that a step must read and the share of the device's measured read rate that it reaches.
#include <functional>
#include <string>
#include <vector>

#include "src/run/op_trace.h"

namespace fewbit {

struct BenchShape {
  int64_t batch = 1, prompt_tokens = 128;
  int64_t tokens = 200;  // decode steps that are timed
};
struct BenchOptions {
  LoadOptions load{};
  std::vector<BenchShape> shapes{BenchShape{}};  // one row each, in this order; the weights are loaded once
  int64_t repetitions = 1;                       // of the timed part: prompt, first token, steps
  int64_t warmup = 10;                           // decode steps before the timed ones
  uint64_t seed = 0;                             // of the random prompt
  bool trace = false;                            // also run the first shape op by op
};
using BenchProgress = std::function<void(const std::string& phase, double fraction)>;  // may be empty

struct Spread {
  double mean = 0, std = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0;
};
Spread spread_of(std::vector<double> samples);  // percentiles by the nearest rank; std 0 of a single sample

struct BenchRow {
  BenchShape shape{};
  // Over the repetitions.
  Spread prefill_tokens_per_s{};  // all sequences
  Spread ttft_ms{};               // prompt in, first token chosen
  Spread tokens_per_s{};          // all sequences, over the wall clock of the timed steps
  // Over the steps of all repetitions.
  Spread ms_per_token{};        // of a step, i.e. per token of one sequence
  int64_t bytes_per_token = 0;  // weights (head included) and cache that one step reads, at the mean context
  double gb_per_s = 0;          // bytes_per_token over the mean step
  double floor_share = 0;       // gb_per_s / read_gb_per_s
  // For the roofline: operations (src/model/work.h) and least bytes of a prompt and of a step at the mean context, and
  // the rates over the mean times.
  double prefill_flop = 0, prefill_bytes = 0, prefill_tflop_per_s = 0;
  double flop_per_token = 0, tflop_per_s = 0;
  int64_t peak_bytes = 0;          // held at one time while this row ran
  StepLaunches launches{};         // of steps; where they changed on the way, of the last
  double all_reduce_ms = 0;        // of a step: sums over the ranks, waiting for the slowest included; 0 of one
  std::string why_not_together{};  // "" = all layers of a step were one launch
};

// What the device's memory does, measured in buffers larger than any cache; medians.
struct MemoryRates {
  double copy_gb_per_s = 0;  // device to device, read and write counted
  double read_gb_per_s = 0;  // kernels/exec/read_all.h: what a step that only reads could reach
};
MemoryRates measure_memory(Exec&);
// TFLOP/s of a large square product of random matrices of `dtype` (f32 | bf16); the median. Zeros would be quicker:
// they draw less power.
double measure_products(Exec&, DType dtype);

struct BenchResult {
  double load_s = 0;  // open, copy, first buffers
  MemoryRates memory{};
  double product_tflop_per_s = 0;     // measure_products() in the compute type
  int64_t peak_bytes = 0;             // loading included
  int64_t cache_bytes_per_token = 0;  // position_bytes() of the model, of all ranks together
  std::vector<BenchRow> rows;
  std::string device;
  std::vector<std::string> kernels, notes;
  std::vector<TracedPass> trace;  // empty unless asked for
};

// Positions that the sequences of a shape take.
int64_t positions_of(const BenchShape&, const BenchOptions&);
// Error{usage} naming the first shape that has more positions than the model.
void check_shapes(const ModelSpec&, const BenchOptions&);
// A random prompt [batch, prompt_tokens] of o.seed.
std::vector<int32_t> random_prompt(const ModelSpec&, const BenchShape&, const BenchOptions&);

// Error{usage} as check_shapes(), before any weight is read.
BenchResult bench(Exec&, const std::filesystem::path& model, const BenchOptions&, const BenchProgress& = {});

}  // namespace fewbit

#pragma once
// `runner tokenize` (runner_tokenize.cpp) and the parts of `runner bench`, one file each: rows (runner_bench.cpp), two
// checkpoints (runner_compare.cpp), a trace (runner_trace.cpp), single ops (runner_ops.cpp), requests that come and go
// (runner_traffic.cpp).
#include "src/run/bench/ops_bench.h"
#include "tools/cli/options.h"
#include "tools/cli/runner/speculation_args.h"
#include "tools/cli/runner/traffic_args.h"

namespace fewbit::cli {

struct TrafficArgs {
  std::vector<int64_t> concurrency;  // empty: no bench under load
  double rate = 0;
  int64_t requests = 0, shared_tokens = 0;
  std::string arrivals, slo;
  SchedulingArgs scheduling;
  SpeculationArgs speculation;
};

struct BenchArgs {
  Common common;
  std::string model, dtype = "bf16", kv_cache = "bf16", head = "stored", acts = "bf16", markdown, csv, trace;
  std::vector<std::string> compare;  // empty or two
  std::string ops;                   // sections with commas; "" or "all": all
  std::vector<std::string> ops_models;
  bool explain = false;
  int tp = 1;
  int sm = 90;                                                   // compute capability that --explain speaks of
  std::vector<std::string> tokens{"200"}, prompt_tokens{"128"};  // lengths_from()
  std::vector<int64_t> batch{1};
  BenchOptions options;
  TrafficArgs traffic;
};

void add_bench_command(CLI::App& app);
void add_serve_command(CLI::App& app);     // tools/cli/serve/runner_serve.cpp
void add_plan_command(CLI::App& app);      // runner_plan.cpp
void add_template_command(CLI::App& app);  // runner_template.cpp
void add_tokenize_command(CLI::App& app);

// `--compare A B`, with options.shapes of one.
void run_comparison(const BenchArgs&);
// `--ops [SECTIONS]` and `--ops-models`; the first is returned. What else it excludes is the caller's.
CLI::Option* add_ops(CLI::App& app, BenchArgs&, CLI::Option* model);
void run_ops(const BenchArgs&);
// `--ops --explain`: which kernel each shape of the models takes.
void explain_kernels(const BenchArgs&, const std::vector<OpsModel>& models);
// `--concurrency` and what goes with it; the first is returned. Excludes what else bench has by itself.
CLI::Option* add_traffic(CLI::App& bench, BenchArgs&);
void run_traffic(const BenchArgs&);
// The file of `--trace`.
std::string trace_json(const std::string& model, const std::string& device, const std::vector<TracedPass>&);
// "all layers in one launch", or how else and why.
std::string steps_of(StepLaunches, const std::string& why_not_together);
// Of a row or a compared model: why its steps went op by op; "" where they did not.
template <class Measured>
std::string why_op_by_op(const Measured& m) {
  return m.launches == StepLaunches::op_by_op ? m.why_not_together : "";
}
// The figures of a spread under their JSON keys, in their order there.
std::vector<std::pair<const char*, double>> values_of(const Spread&);

}  // namespace fewbit::cli

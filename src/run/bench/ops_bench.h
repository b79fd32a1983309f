#pragma once
// Times of the ops that inference is made of, one by one: microseconds, bytes and operations per second, and the shares
// of the ceilings that are measured first in the same process; products also against bf16 weights. A time is the median
// over replays of one recorded graph that holds many launches, in turn with the graphs of what it is compared to;
// weights are rotated among copies larger together than the L2 cache, so they come from memory; data are random.
#include <limits>
#include <span>
#include <string_view>

#include "src/run/bench/bench.h"

namespace fewbit {
namespace ops {
class OpsRun;
}

// Linears that share an input, as one product of all their outputs.
struct OpsProduct {
  std::string name;  // "gate+up"
  int64_t in = 0, out = 0;
};
// The shapes of a model that ops depend on.
struct OpsModel {
  std::string name;
  std::vector<OpsProduct> products;  // of a block, in their order there
  int64_t hidden = 0, inner = 0, vocab = 0;
  bool experts = false;  // a mixture: `inner` is that of one expert
  int heads = 0, kv_heads = 0;
  int64_t head_dim = 0;
  std::vector<std::string> notes;  // what of the model is not timed
};
std::vector<OpsModel> ops_presets();  // "8b", "32b", "70b"
OpsModel ops_model(const ModelSpec&, const std::string& name);

// What is timed together. Sections that are not of every model take the shapes of the first one.
struct OpsSection {
  const char *name, *what;
  bool every_model;
  void (*measure)(ops::OpsRun&, const OpsModel&);
};
std::span<const OpsSection> ops_sections();  // in the order in which they run

struct OpsOptions {
  std::vector<OpsModel> models = ops_presets();
  std::vector<std::string> sections;        // names of ops_sections(); empty = all
  int64_t cold_bytes = int64_t{200} << 20;  // of weights between two uses of one: beyond the L2 of an H200 (60 MB)
  int replays = 21;
  int64_t most = std::numeric_limits<int64_t>::max();  // no more rows, no longer contexts: for tests
};

// A figure that is 0 does not apply, or was not measured.
struct OpRow {
  std::string section{}, model{}, op{};
  std::string type{};          // of weights or cache: "int4 g128", "fp8, x unrounded"
  int64_t in = 0, out = 0;     // of one product
  int64_t rows = 0;            // of x; of attention: sequences
  int64_t context = 0;         // of attention: positions of each sequence
  double bytes = 0, flop = 0;  // least bytes, operations of one call
  double us = 0;
  double gb_per_s = 0, read_share = 0;        // share of OpsReport::read_gb_per_s
  double tflop_per_s = 0, product_share = 0;  // share of OpsReport::product_tflop_per_s
  // The same work done otherwise, timed in turn with this. "bf16": products by bf16 weights through cuBLAS. "op by op":
  // of a layer in launches of its own.
  std::string peer{};
  double peer_us = 0, gain = 0;  // gain = peer_us / us
  std::string error{};           // why there is no time; "" = measured
};
struct OpsReport {
  std::string device;
  double read_gb_per_s = 0, product_tflop_per_s = 0;  // measure_memory(), measure_products() of bf16
  std::vector<OpRow> rows;
  std::vector<std::string> notes;  // shapes and forms that a kernel does not take
};
// Once before the first section ("") and after each, whose rows are the last ones.
using OpsSectionDone = std::function<void(const OpsReport& so_far, std::string_view section)>;

// An op that fails becomes a row with its error and the others go on, unless the GPU no longer answers: then the report
// ends there and its last note says so. Made for GPUs; times of the CPU's ops say nothing about anything.
OpsReport time_ops(Exec&, const OpsOptions&, const BenchProgress& = {}, const OpsSectionDone& = {});

}  // namespace fewbit

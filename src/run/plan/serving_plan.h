#pragma once
// What a model takes and can reach on GPUs that need not be here: bytes, what fits, and floors of a decode step and of
// a prompt, by arithmetic on its op list. No weight is read.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/run/head_type.h"
#include "src/run/plan/gpus.h"
#include "src/run/plan/step_bytes.h"

namespace fewbit {

// A linear, or an end (ends_of), as its checkpoint has it.
struct ServedLinear {
  std::optional<QuantSpec> codes{};  // nothing: values, which stay so
  bool act_order = false;
  bool expert = false;  // of a mixture
  int64_t stored = 0;   // bytes, scales included
};
struct ServedModel {
  const Checkpoint* checkpoint = nullptr;
  std::map<std::string, ServedLinear> linears{};  // by full name
  int64_t stored = 0;                             // bytes of all tensors
};
ServedModel served(const Checkpoint&);

struct ServingJob {
  const GpuModel* gpu = nullptr;
  int64_t context = 8192;   // positions of each sequence at the step that is priced
  int64_t concurrency = 1;  // sequences
  int64_t prompt = 2048;    // tokens of the prompt that is priced
  int tp = 1, pp = 1;       // tp * pp GPUs
  KvType kv_cache = KvType::plain;
  HeadType head = HeadType::stored;
  double price = 0;  // of one GPU, USD an hour
};

// Of one GPU, the fullest.
struct ServingMemory {
  int64_t weights = 0, cache = 0, activations = 0;
  int64_t reserve = 0;   // a twelfth of its memory: contexts, libraries, scratch of kernels, pages half full
  int64_t capacity = 0;  // its memory
  int64_t total() const { return weights + cache + activations + reserve; }
};

// The least that a pass takes: no program with these bytes and operations is faster on these GPUs.
struct ServingFloor {
  double weight_bytes = 0, cache_bytes = 0;  // that a GPU of each stage reads, stages together
  double flop = 0;                           // of a GPU of each stage, stages together
  double read_ms = 0, product_ms = 0;        // by bandwidth, by products; stages together
  double all_reduce_ms = 0;                  // of tensor parallel
  double hop_ms = 0;                         // states from stage to stage
  double idle = 0;                           // share of the GPUs' time that the pipeline leaves empty
  double ms = 0;                             // of it all
};

// Which CUDA kernels multiply the linears of one form.
struct ServedKernel {
  std::string form{};  // "marlin4", "marlin8", "int8", "fp8", "fp8a16", "dense"
  std::string spec{};  // of the codes, "" of values
  int64_t linears = 0;
  std::string step{}, prompt{};  // kernels of a decode step and of a prompt
  std::string why{};             // the codes are not multiplied as they are
};

struct ServingPlan {
  int64_t parameters = 0, active_parameters = 0;  // that a token meets
  int64_t stored_bytes = 0;                       // the checkpoint
  int64_t active_bytes = 0;                       // weights that a step of one token reads
  int64_t cache_bytes_per_sequence = 0;           // of `context` positions, all GPUs together
  int64_t cache_bytes_per_token = 0;              // position_bytes()
  int64_t contiguous_cache_bytes = 0;             // what `runner bench` allocates for one: windows are not cut there
  ServingMemory memory{};
  bool fits = false;
  int64_t most_sequences = 0;  // of `context` positions that fit; 0: not even the weights do
  ServingFloor step{}, prefill{};
  double stored_step_ms = 0;    // the step's floor where every code is multiplied as it is stored
  double expected_step_ms = 0;  // of our runner on one GPU, by kReadShare and kLayerMs; 0 of several
  double tokens_per_s = 0, prompt_tokens_per_s = 0;               // at most, all sequences
  double usd_per_million_tokens = 0, usd_per_million_prompt = 0;  // at least; 0 without a price
  std::vector<ServedKernel> kernels{};
};

// What our decode steps lose against the floor: they read at this share of the data sheet's rate, products do not hide
// behind it, and each layer takes so long beside (launches, barriers, attention's tail): all layers in one launch, or
// op by op. Fitted to steps of one sequence on an H200 (docs/serving.md has the rows), so for other GPUs an
// extrapolation.
inline constexpr double kReadShare = 0.85, kLayerMs = 0.015, kLayerMsOpByOp = 0.030;

// Error{usage} for more positions or stages than the model has; Error{unsupported} with every reason where the GPUs
// cannot share it.
ServingPlan plan_serving(const ServedModel&, const ServingJob&);

}  // namespace fewbit

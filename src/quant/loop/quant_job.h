#pragma once
// QuantJob: what one run was asked for besides the plan, and how it tells of its progress.
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "src/model/model_spec.h"
#include "src/model/sources/sources.h"
#include "src/quant/importance.h"
#include "src/quant/search/mixed_precision.h"
#include "src/ranks/ranks.h"

namespace fewbit {

struct LinearRecord;

struct QuantReport;

struct QuantJob {
  std::string recipe{};             // as the user gave it, for the report
  std::string command{};            // that makes the same checkpoint again, for the model card
  std::string note{};               // what the report should say aloud
  std::string short_calibration{};  // a warning: less calibration than was asked for
  std::filesystem::path out{};
  std::vector<std::string> dropped{};        // tensors of the model that OUT leaves out on purpose
  std::optional<PrecisionPlan> precision{};  // what `auto` chose, for the report
  DType dtype = DType::f32;                  // compute dtype of the calibration
  uint64_t seed = 0;
  bool allow_rtn = false;
  bool allow_nonfinite = false;       // quantize a model that holds NaN or infinities
  bool rehash = false;                // read the model even where a record says that it is untouched
  bool force = false;                 // replace an existing OUT
  bool resume = false;                // go on where OUT.partial stopped
  bool restart = false;               // remove what an unfinished run left in OUT.partial
  bool check_determinism = false;     // quantize a block twice first
  std::vector<SourceFile> sources{};  // of the model (read_model.h); a pipeline without them reads it itself
  bool overlaps = true;               // packs and writes beside the computation; the bytes are the same without
  // Of an imatrix file, for a run that does not calibrate (src/quant/importance.h); null: values count by themselves.
  const Importance* importance = nullptr;
  int64_t shard_bytes = int64_t{5} << 30;
  const Ranks* ranks = &one_process();  // that share the run; the bytes of OUT do not depend on them
  double seconds_before = 0;            // from the program's start to the pipeline's, which the report counts too
  // Looks at the finished checkpoint before it becomes OUT, and tells the report of it.
  std::function<void(const std::filesystem::path& built, QuantReport&)> measure{};
  std::function<bool()> stop_requested{};  // asked between blocks
  std::function<void()> check_stop{};      // asked between linears; throws Error{stopped} to end the run there
  std::function<void(const std::string& phase, double)> progress{};  // phase and fraction done
  std::function<void(const std::string& phase)> entered{};           // a phase of the report begins
  // What calibration saw in front of a linear that will be coded: sums of the squares of its inputs, [in] f32.
  std::function<void(const std::string& linear, const Tensor& squares, int64_t tokens)> observed{};
  // A linear has its codes; learned rounding may still move them, and the hash comes later.
  std::function<void(const LinearRecord&)> coded{};
};

// Tells the caller that `done` blocks (and a part of the next) are finished.
inline void tell(const QuantJob& job, const ModelSpec& spec, double done) {
  if (job.progress) job.progress("quantizing blocks", done / static_cast<double>(spec.layers));
}

}  // namespace fewbit

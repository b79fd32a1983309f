#pragma once
// The report of a run: one record per linear and the figures of the whole. quant_report.json in the checkpoint and
// `--json` hold it.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/written_file.h"
#include "src/model/sources/sources.h"
#include "src/quant/plan/disk_plan.h"
#include "src/quant/plan/plan.h"
#include "src/quant/search/mixed_precision.h"

namespace fewbit {

struct LinearRecord {
  std::string name, recipe, packing, rung;
  double rel_error = 0;  // ||(W - Q) X|| / ||W X|| on the calibration data; in weight space for data-free methods
  double sqnr_db = 0;    // 10 log10(||W||^2 / ||W - Q||^2)
  double loss = 0, loss_rtn = 0;  // MethodResult (method.h) says what the four losses are; 0 without statistics
  double loss_target = 0, loss_target_rtn = 0;
  int64_t tokens = 0;
  double input_reach = 1;  // of a static scale: the share of the largest input that it reaches
  double seconds = 0;
  std::string hash;  // of the neutral form; `evaluate verify` compares it
  // True where learned rounding changed the codes; rel_error and sqnr_db are then those of the learned ones,
  // the losses of what the method had found before.
  bool learned = false;
  bool coupled = false;                 // errors of its outputs were weighed together (src/quant/output_curvature.h)
  std::optional<int> learning_steps{};  // that its block made; nothing where the recipe learns no rounding
  bool lossless = false;                // the model's own codes, unchanged: no method touched them
};

// The tokens that the router of a layer's mixture sent to each expert during calibration.
struct ExpertRecord {
  int64_t layer = 0;
  std::vector<int64_t> tokens;  // [experts]
  std::vector<int> starved;     // experts that borrowed statistics from their layer (src/calib/experts.h)
};

// The static scales of an FP8 cache, of one layer.
struct KvRecord {
  int64_t layer = 0;
  float k_scale = 1, v_scale = 1;
};

// Perplexity before and after, as `quantize --measure` finds it.
struct MeasuredPerplexity {
  double base = 0, base_stderr = 0, perplexity = 0, stderr_ = 0;
  std::string data, protocol, dtype;
  int64_t windows = 0, context = 0;
};

// Of quant_report.json: 1 (and no key `schema`) had no digests.
inline constexpr int kReportSchema = 2;

struct QuantReport {
  std::string recipe, model, out, device, dtype, calibration, note;
  std::string short_calibration;                    // a warning: less calibration than was asked for
  std::string made_by;                              // the command that makes the same checkpoint again
  std::string made_from = "null";                   // JSON (origin.h)
  std::string config = "null";                      // JSON: what the config says of the model (origin.h)
  std::vector<WrittenFile> files{};                 // with tensors
  std::map<std::string, std::string> companions{};  // digest_of_file() of what stands beside them, but for the report
  uint64_t seed = 0;
  int64_t samples = 0, seq_len = 0;
  double seconds = 0;
  std::map<std::string, double> phases;  // seconds
  // What ran beside other phases: the part of theirs that nobody waited for, how long the thread that computes waited,
  // and the larger of what each thread had to do.
  std::map<std::string, double> hidden_seconds;
  double idle_seconds = 0, floor_seconds = 0;
  std::map<std::string, double> planned_seconds;  // what the plan had said of them; empty where it knew no rates
  double planned_total_seconds = 0;               // and of `seconds`
  std::map<std::string, int64_t> phase_peaks;     // bytes that the device had handed out (host memory without a GPU)
  int64_t peak_gpu_bytes = 0, peak_host_bytes = 0, source_bytes = 0, out_bytes = 0;
  // What the plan had said of the two peaks. That of the host holds pages of MODEL's files too, as the peak itself
  // does.
  int64_t planned_gpu_bytes = 0, planned_host_bytes = 0;
  int64_t scratch_bytes = 0;  // of the calibration's states on disk, at their most
  double bits_per_weight = 0;
  std::vector<LinearRecord> linears;
  std::vector<ExpertRecord> experts;       // layers with a mixture of experts, where there was a calibration
  std::vector<KvRecord> kv_scales;         // of every layer, with kv=fp8
  std::vector<std::string> kept;           // linears left as they are
  std::vector<std::string> dropped;        // tensors left out on purpose
  std::optional<PrecisionPlan> precision;  // what `auto` chose
  std::optional<MeasuredPerplexity> perplexity;
};

std::string to_json(const QuantReport&);
std::string to_json(const LinearRecord&);
LinearRecord linear_record_from_json(const std::string&);
// What `quantize plan --json` prints.
std::string to_json(const QuantPlan&, const std::optional<PrecisionPlan>&, const DiskPlan&, const std::string& recipe,
                    const std::string& model, const std::string& out);

}  // namespace fewbit

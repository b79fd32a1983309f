#pragma once
// What a run says of itself while it runs, and how another process reads it: OUT.partial/status.json, renewed at most
// once a second by a rename. Nothing depends on the file; a run that cannot write it goes on.
#include <filesystem>
#include <optional>
#include <string>

#include "src/core/stopwatch.h"
#include "src/quant/journal/run_folder.h"

namespace fewbit {

// What is known when the run begins.
struct StatusPlan {
  int64_t blocks = 0;
  int64_t sealed_before = 0;   // by the run that is resumed
  double planned_seconds = 0;  // 0 = not known
  int64_t planned_host_bytes = 0, planned_gpu_bytes = 0;
};

class StatusFile {
 public:
  StatusFile(std::filesystem::path partial, const StatusPlan&);
  void entered(const std::string& phase);        // of the report
  void reached(int64_t block, double fraction);  // of the blocks, 0 to 1

 private:
  void renew();
  std::filesystem::path partial_;
  StatusPlan plan_;
  std::string phase_ = "load", command_{};
  int64_t block_ = 0;
  double fraction_ = 0, written_ = -1;  // seconds of the clock
  Stopwatch clock_{};
};

// Where the run of an OUT stands.
struct RunStatus {
  enum class State : uint8_t { running, stopped, finished } state = State::stopped;
  bool told = false;              // status.json was there: what follows is from it, up to `age_seconds` ago
  std::string phase{}, resume{};  // the command that goes on; "" = not known
  int64_t block = 0, blocks = 0;
  double fraction = 0, elapsed_seconds = 0, age_seconds = 0;
  double planned_seconds = 0;                 // 0 = not known
  std::optional<double> remaining_seconds{};  // of one that runs
  int64_t peak_host_bytes = 0, planned_host_bytes = 0, planned_gpu_bytes = 0;
  int64_t sealed_blocks = 0, disk_bytes = 0;
  RunHolder holder{};
  std::string report{};  // of a finished one: its quant_report.json
};
// Reads only, and locks nothing. Error{io} where there is neither OUT.partial of a run nor a finished OUT.
RunStatus read_status(const std::filesystem::path& out);

// Seconds that are left after `elapsed` ones took the run from `before` to `fraction`; `planned` for the whole, 0 = not
// known. Nothing where neither tells.
std::optional<double> remaining(double elapsed, double before, double fraction, double planned);

}  // namespace fewbit

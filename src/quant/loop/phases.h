#pragma once
// Phases: how long the parts of a run took, by name, for the report; a profiler sees the same names.
#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "kernels/exec/exec.h"
#include "kernels/exec/exec_measure.h"
#include "kernels/exec/profile_range.h"
#include "src/core/stopwatch.h"

namespace fewbit {

class Phases {
 public:
  // `entered` is told when a phase begins.
  using Entered = std::function<void(const std::string& phase)>;
  explicit Phases(Exec& ex, Entered entered = {}) : ex_(ex), entered_(std::move(entered)) {}

  // Runs `work`, waits for the device and adds the time to the phase.
  template <class F>
  void timed(const std::string& phase, F&& work) {
    const ProfileRange range(phase.c_str());
    if (entered_) entered_(phase);
    const Stopwatch t;
    reset_peak(ex_);
    work();
    ex_.sync();
    seconds_[phase] += t.seconds();
    peaks_[phase] = std::max(peaks_[phase], ex_.peak_bytes());
  }
  const std::map<std::string, double>& seconds() const { return seconds_; }
  // The most memory that Exec had handed out at one time while a phase ran: of the device, or of the host without one.
  const std::map<std::string, int64_t>& peaks() const { return peaks_; }

 private:
  Exec& ex_;
  Entered entered_;
  std::map<std::string, double> seconds_;
  std::map<std::string, int64_t> peaks_;
};

}  // namespace fewbit

#pragma once
// Phases: how long the parts of a run took, by name, for the report; a profiler sees the same names.
#include <map>
#include <string>

#include "kernels/exec/exec.h"
#include "kernels/exec/profile_range.h"
#include "src/core/stopwatch.h"

namespace fewbit {

class Phases {
 public:
  explicit Phases(Exec& ex) : ex_(ex) {}

  // Runs `work`, waits for the device and adds the time to the phase.
  template <class F>
  void timed(const std::string& phase, F&& work) {
    const ProfileRange range(phase.c_str());
    const Stopwatch t;
    work();
    ex_.sync();
    seconds_[phase] += t.seconds();
  }
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  Exec& ex_;
  std::map<std::string, double> seconds_;
};

}  // namespace fewbit

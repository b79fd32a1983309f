#pragma once
// Phases: how long the parts of a run took, by name, for the report; a profiler sees the same names. On a GPU a phase
// is the span between two marks of the stream, so that the host runs ahead of the device from phase to phase: what it
// does while the device still works is in no span, and what the device waits for is in the span in which it waits.
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/exec/exec.h"
#include "kernels/exec/exec_measure.h"
#include "kernels/exec/profile_range.h"

namespace fewbit {

class Phases {
 public:
  // `entered` is told when a phase begins.
  using Entered = std::function<void(const std::string& phase)>;
  explicit Phases(Exec& ex, Entered entered = {}) : ex_(ex), entered_(std::move(entered)) {}

  // Runs `work` and adds its time to the phase.
  template <class F>
  void timed(const std::string& phase, F&& work) {
    const ProfileRange range(phase.c_str());
    if (entered_) entered_(phase);
    if (spans_.size() >= kSpans && open_ == 0) settle();
    const Open inside(open_);
    const int begin = ex_.mark();
    reset_peak(ex_);
    work();
    spans_.push_back({&seconds_[phase], begin, ex_.mark()});
    peaks_[phase] = std::max(peaks_[phase], ex_.peak_bytes());
  }
  // Inside such work: what others held beside the Exec while it ran.
  void also_held(const std::string& phase, int64_t bytes) {
    peaks_[phase] = std::max(peaks_[phase], ex_.peak_bytes() + bytes);
  }
  // Waits for the device and counts what has been timed so far.
  void settle() {
    for (const Span& s : spans_) *s.seconds += ex_.elapsed_ms(s.begin, s.end) / 1e3;
    spans_.clear();
    forget_marks(ex_);
  }
  const std::map<std::string, double>& seconds() const { return seconds_; }  // behind settle()
  // The most memory that Exec had handed out at one time while a phase ran: of the device, or of the host without one.
  const std::map<std::string, int64_t>& peaks() const { return peaks_; }

 private:
  struct Span {
    double* seconds = nullptr;  // in seconds_, whose entries stay where they are
    int begin = 0, end = 0;     // marks of ex_
  };
  // A phase inside another one keeps the marks of the outer.
  struct Open {
    explicit Open(int& count) : count(count) { ++count; }
    ~Open() { --count; }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    int& count;
  };
  // So many that waiting for the last of them costs nothing beside them, and few enough for the driver's events.
  static constexpr size_t kSpans = 1024;

  Exec& ex_;
  Entered entered_;
  std::vector<Span> spans_{};
  int open_ = 0;
  std::map<std::string, double> seconds_;
  std::map<std::string, int64_t> peaks_;
};

}  // namespace fewbit

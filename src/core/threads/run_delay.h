#pragma once
// RunDelay: for how long a thread has been ready to run without a processor, by the count of Linux' scheduler.
#include <atomic>
#include <chrono>

namespace fewbit {

class RunDelay {
 public:
  RunDelay() = default;
  ~RunDelay();
  RunDelay(const RunDelay&) = delete;
  RunDelay& operator=(const RunDelay&) = delete;

  void watch_this_thread();
  // Since the thread began; 0 where no thread is watched or the system does not count.
  std::chrono::nanoseconds total() const;

 private:
  std::atomic<int> file_{-1};  // another thread may read it
};

}  // namespace fewbit

#pragma once
// Background: one thread that does what is given to it in that order, while the thread that gives goes on: packing a
// linear while the next is quantized, writing a block while the next is computed. What the work does to the disk and to
// its own data is the same as if it were done at once.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "src/core/stopwatch.h"

namespace fewbit {

// Bytes that may wait to be worked on; one job may always wait. Codes of a linear of an 8B, which are packed in a tenth
// of the time that the next takes.
inline constexpr int64_t kWaitingBytes = int64_t{64} << 20;

class Background {
 public:
  // `beside` false: every job is done before give() returns, on the thread that gives it. `pool`: jobs use the threads
  // of parallel_for, which a device leaves idle; else they leave them to the thread that computes.
  explicit Background(bool beside, bool pool = false);
  // Does what was given first; an error of that is lost, for the run ends by another one already.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Number of a job, from 1.
  using Ticket = int64_t;
  // `bytes` are held by the job until it is done; waits while too many wait. Rethrows the error of a job that failed:
  // none behind it is done.
  Ticket give(const std::string& phase, int64_t bytes, std::function<void()> work);
  void wait_for(Ticket);  // until it and all before it are done; rethrows as give()
  void wait();            // until nothing is left

  // Of what is done; to be asked when nothing is left.
  struct Times {
    std::map<std::string, double> busy{};    // seconds of work by phase
    std::map<std::string, double> hidden{};  // of them those in which the other thread did not wait
    double idle = 0;                         // seconds that the other thread waited
  };
  const Times& times() const { return times_; }

 private:
  struct Job {
    std::string phase;
    int64_t bytes = 0;
    std::function<void()> work;
  };
  void loop();
  void run(Job&);
  void count(const std::string& phase, double begin, double end, bool beside);
  void until(std::unique_lock<std::mutex>&, const std::function<bool()>& ready);

  const bool pool_;
  Stopwatch clock_{};
  std::mutex mutex_;
  std::condition_variable given_, done_;
  std::deque<Job> jobs_;  // the first is at work
  int64_t waiting_ = 0;   // bytes of jobs_
  Ticket last_ = 0, ready_ = 0;
  bool ends_ = false;
  std::exception_ptr error_;
  std::optional<double> waits_since_{};
  Times times_{};
  std::thread thread_;
};

}  // namespace fewbit

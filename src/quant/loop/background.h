#pragma once
// Background: what is given to it is done while the thread that gives goes on: packing linears while the next are
// quantized, writing a block while the next is computed. One thread does all in the order in which it was given; of
// several each takes what may be done by now. What the work does to the disk and to its own data is the same as if it
// were done at once.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/core/stopwatch.h"

namespace fewbit {

// Bytes that may wait to be worked on; one job may always wait. Codes of a linear of an 8B, which are packed in a tenth
// of the time that the next takes.
inline constexpr int64_t kWaitingBytes = int64_t{64} << 20;

// Threads that pack beside a device. Of an expert's linear the most is done by one thread, and there are hundreds of
// them in a block.
inline constexpr int kPackers = 4;

class Background {
 public:
  // `beside` false: every job is done before give() returns, on the thread that gives it. `pool`: jobs use the threads
  // of parallel_for, which a device leaves idle; else they leave them to the thread that computes.
  explicit Background(bool beside, bool pool = false, int threads = 1);
  // Does what was given first; an error of that is lost, for the run ends by another one already.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Number of a job, from 1.
  using Ticket = int64_t;
  // Whether a job may be done as soon as a thread is free, or wants all before it to be done. Those behind the latter
  // do not wait for it.
  enum class When : uint8_t { any_time, behind_all };
  // `bytes` are held by the job until it is done; waits while too many wait, with 0 never. Rethrows the error of a job
  // that failed: none that was not begun by then is done.
  Ticket give(const std::string& phase, int64_t bytes, std::function<void()> work, When when = When::behind_all);
  void wait_for(Ticket);  // until it and all before it are done; rethrows as give()
  void wait();            // until nothing is left

  // Of what is done; to be asked when nothing is left.
  struct Times {
    std::map<std::string, double> busy{};    // seconds of work by phase, of all threads
    std::map<std::string, double> hidden{};  // of them those in which the thread that gives did not wait
    double working = 0;                      // seconds in which some thread worked
    double idle = 0;                         // seconds that the thread that gives waited
  };
  const Times& times() const { return times_; }

 private:
  enum class State : uint8_t { waits, at_work, done };
  struct Job {
    std::string phase;
    int64_t bytes = 0;
    std::function<void()> work;
    When when = When::behind_all;
    State state = State::waits;
  };
  void loop();
  Job* next();
  bool some_wait() const;
  void run(Job&, bool in_vain);
  void count(const std::string& phase, double begin, double end, bool beside);
  void until(std::unique_lock<std::mutex>&, const std::function<bool()>& ready);

  const bool pool_;
  Stopwatch clock_{};
  std::mutex mutex_;
  std::condition_variable given_, done_;
  std::deque<Job> jobs_;  // the first is not done
  int64_t waiting_ = 0;   // bytes of jobs that are not done
  int at_work_ = 0;       // threads
  double since_ = 0;      // when the first of them began
  Ticket last_ = 0, ready_ = 0;
  bool ends_ = false;
  std::exception_ptr error_;
  std::optional<double> waits_since_{};
  Times times_{};
  std::vector<std::thread> threads_;
};

}  // namespace fewbit

#pragma once
// The pool of threads behind parallel_for. Internal to it.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "src/core/threads/crowding.h"
#include "src/core/threads/run_delay.h"

namespace fewbit {

// One parallel_for: pieces that whoever is free takes.
struct PoolJob {
  int64_t n = 0, grain = 1, chunks = 0;
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  std::atomic<int64_t> next{0};
  std::exception_ptr error{};
  std::mutex error_mutex{};

  void work();
};

class Pool {
 public:
  // That many threads with the one that calls run(). Error{usage} where the system starts fewer.
  explicit Pool(int threads);
  ~Pool();
  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Returns when all pieces are done.
  void run(PoolJob&);
  // True on a thread that works for a pool at the moment: it must not wait for one.
  static bool& inside();

 private:
  struct Worker;
  int left_out();
  void call(PoolJob&, size_t workers);
  void loop(Worker&);
  void end();

  const bool spins_;  // more threads than processors would keep each other from working
  std::list<Worker> workers_;
  Crowding crowding_;
  std::thread::id caller_{};  // at the last look
  RunDelay own_delay_{};      // of that thread
  std::mutex run_mutex_{}, mutex_{};
  std::condition_variable wake_{}, done_{};
  PoolJob* job_ = nullptr;
  int sleeping_ = 0;
  std::atomic<int> busy_{0};
  bool stop_ = false;
};

}  // namespace fewbit

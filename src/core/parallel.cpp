#include "src/core/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/core/inline_parallel.h"

namespace fewbit {
namespace {

void pause_thread() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

thread_local bool t_inside = false;  // a nested parallel_for must not wait for the pool it runs on

int default_threads() {
  if (const char* e = std::getenv("FEWBIT_THREADS")) {
    const int n = std::atoi(e);
    if (n > 0) return n;
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

struct Job {
  int64_t n = 0, grain = 1, chunks = 0;
  const std::function<void(int64_t, int64_t)>* body = nullptr;
  std::atomic<int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;

  void work() {
    for (int64_t c = next++; c < chunks; c = next++) {
      try {
        (*body)(c * grain, std::min(n, (c + 1) * grain));
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next = chunks;
      }
    }
  }
};

// True as soon as `ready` is, false if it is not after a while. A decode step on the CPU hands out a hundred jobs of
// some hundred microseconds; to be put to sleep and woken between them costs a tenth of it.
template <class Ready>
bool spin(const Ready& ready) {
  constexpr auto kWhile = std::chrono::microseconds(100);
  const auto end = std::chrono::steady_clock::now() + kWhile;
  do
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause_thread();
    }
  while (std::chrono::steady_clock::now() < end);
  return false;
}

class Pool {
 public:
  explicit Pool(int threads) : spins_(threads <= static_cast<int>(std::thread::hardware_concurrency())) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { loop(); });
    } catch (const std::system_error& e) {
      const size_t started = workers_.size();
      end();
      fail(ErrorKind::usage, "cannot start " + std::to_string(threads) + " threads, only " + std::to_string(started) +
                                 ": " + e.what() + "; give fewer with --threads");
    }
  }
  ~Pool() { end(); }
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void run(Job& job) {
    std::lock_guard one(run_mutex_);
    bool asleep = false;
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      busy_ = static_cast<int>(workers_.size());
      ++generation_;
      asleep = sleeping_ > 0;
    }
    if (asleep) wake_.notify_all();
    t_inside = true;
    job.work();
    t_inside = false;
    if (spins_ && spin([this] { return busy_ == 0; })) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void end() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& w : workers_) w.join();
  }
  void loop() {
    t_inside = true;
    uint64_t seen = 0;
    for (;;) {
      if (spins_) spin([&] { return generation_ != seen; });
      Job* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        ++sleeping_;
        wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
        --sleeping_;
        if (stop_) return;
        seen = generation_;
        job = job_;
      }
      job->work();
      // The last thing that is done with the job: its owner may be gone once this says so.
      if (--busy_ == 0) {
        std::lock_guard lock(mutex_);
        done_.notify_all();
      }
    }
  }

  const bool spins_;  // more threads than processors would keep each other from working
  std::vector<std::thread> workers_;
  std::mutex run_mutex_, mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  int sleeping_ = 0;
  std::atomic<int> busy_{0};
  std::atomic<uint64_t> generation_{0};
  bool stop_ = false;
};

std::atomic<int> g_requested{0};

Pool& pool() {
  static Pool p(g_requested > 0 ? g_requested.load() : default_threads());
  return p;
}

}  // namespace

InlineParallel::InlineParallel() : before_(std::exchange(t_inside, true)) {}
InlineParallel::~InlineParallel() { t_inside = before_; }

void set_thread_count(int threads) { g_requested = threads; }
int thread_count() { return pool().threads(); }

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(1, grain);
  const int64_t chunks = (n + grain - 1) / grain;
  if (t_inside || chunks == 1 || pool().threads() == 1) {
    for (int64_t c = 0; c < chunks; ++c) body(c * grain, std::min(n, (c + 1) * grain));
    return;
  }
  Job job;
  job.n = n;
  job.grain = grain;
  job.chunks = chunks;
  job.body = &body;
  pool().run(job);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace fewbit

#include "src/core/threads/pool.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>

#include "src/core/error.h"

namespace fewbit {
namespace {

// Between jobs and behind one. A decode step on the CPU hands out a hundred jobs of some hundred microseconds; to be
// put to sleep and woken between them costs a tenth of it.
constexpr std::chrono::microseconds kSpin{100};

void pause_thread() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as `ready` is, false if it is not after a while.
template <class Ready>
bool spin(const Ready& ready) {
  const auto end = Crowding::Clock::now() + kSpin;
  do
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause_thread();
    }
  while (Crowding::Clock::now() < end);
  return false;
}

}  // namespace

void PoolJob::work() {
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

struct Pool::Worker {
  std::atomic<uint64_t> called{0};  // to so many jobs
  RunDelay delay{};
  std::thread thread{};
};

bool& Pool::inside() {
  static thread_local bool inside = false;
  return inside;
}

Pool::Pool(int threads)
    : spins_(threads <= static_cast<int>(std::thread::hardware_concurrency())), crowding_(threads - 1) {
  try {
    for (int i = 1; i < threads; ++i) {
      Worker& w = workers_.emplace_back();
      w.thread = std::thread([this, &w] { loop(w); });
    }
  } catch (const std::system_error& e) {
    workers_.pop_back();  // the one that was not started
    const size_t started = workers_.size();
    end();
    fail(ErrorKind::usage, "cannot start " + std::to_string(threads) + " threads, only " + std::to_string(started) +
                               ": " + e.what() + "; give fewer with --threads");
  }
}

Pool::~Pool() { end(); }

void Pool::run(PoolJob& job) {
  std::lock_guard one(run_mutex_);
  call(job, workers_.size() - static_cast<size_t>(spins_ ? left_out() : 0));
  inside() = true;
  job.work();
  inside() = false;
  if (spins_ && spin([this] { return busy_ == 0; })) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

// A look costs two system calls or so a thread, once in a few milliseconds.
int Pool::left_out() {
  const auto now = Crowding::Clock::now();
  if (crowding_.due(now)) {
    if (caller_ != std::this_thread::get_id()) {
      caller_ = std::this_thread::get_id();
      own_delay_.watch_this_thread();
      crowding_.restart();
    }
    Crowding::Duration waited = own_delay_.total();
    for (const Worker& w : workers_) waited += w.delay.total();
    crowding_.look(now, waited);
  }
  return crowding_.begin_job(now);
}

// The first `workers` of them.
void Pool::call(PoolJob& job, size_t workers) {
  bool asleep = false;
  {
    std::lock_guard lock(mutex_);
    job_ = &job;
    busy_ = static_cast<int>(workers);
    auto w = workers_.begin();
    for (size_t i = 0; i < workers; ++i) ++(w++)->called;
    asleep = sleeping_ > 0 && workers > 0;
  }
  if (asleep) wake_.notify_all();
}

void Pool::end() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (Worker& w : workers_) w.thread.join();
}

void Pool::loop(Worker& self) {
  inside() = true;
  self.delay.watch_this_thread();
  for (uint64_t done = 0;; ++done) {
    if (spins_) spin([&] { return self.called != done; });
    PoolJob* job = nullptr;
    {
      std::unique_lock lock(mutex_);
      ++sleeping_;
      wake_.wait(lock, [&] { return stop_ || self.called != done; });
      --sleeping_;
      if (stop_) return;
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

}  // namespace fewbit

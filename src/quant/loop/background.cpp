#include "src/quant/loop/background.h"

#include <algorithm>

#include "src/core/inline_parallel.h"

namespace fewbit {

Background::Background(bool beside, bool pool) : pool_(pool) {
  if (beside) thread_ = std::thread([this] { loop(); });
}

Background::~Background() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  given_.notify_all();
  thread_.join();
}

void Background::loop() {
  std::optional<InlineParallel> alone;
  if (!pool_) alone.emplace();
  for (;;) {
    Job* job = nullptr;
    {
      std::unique_lock lock(mutex_);
      given_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = &jobs_.front();  // stays where it is while others are put behind it
    }
    run(*job);
  }
}

// Behind an error jobs are let go of, undone.
void Background::run(Job& job) {
  const double begin = clock_.seconds();
  std::exception_ptr error;
  if (!error_) try {
      job.work();
    } catch (...) {
      error = std::current_exception();
    }
  job.work = {};  // and with it what it held
  {
    const std::lock_guard lock(mutex_);
    if (error) error_ = error;
    count(job.phase, begin, clock_.seconds(), true);
    waiting_ -= job.bytes;
    jobs_.pop_front();
    ++ready_;
  }
  done_.notify_all();
}

void Background::count(const std::string& phase, double begin, double end, bool beside) {
  times_.busy[phase] += end - begin;
  if (!beside) return;
  const double waited = waits_since_ ? std::max(0.0, end - std::max(begin, *waits_since_)) : 0;
  times_.hidden[phase] += end - begin - waited;
}

void Background::until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready) {
  if (!ready()) {
    waits_since_ = clock_.seconds();
    done_.wait(lock, ready);
    times_.idle += clock_.seconds() - *waits_since_;
    waits_since_.reset();
  }
  if (error_) std::rethrow_exception(error_);
}

Background::Ticket Background::give(const std::string& phase, int64_t bytes, std::function<void()> work) {
  if (!thread_.joinable()) {
    const double begin = clock_.seconds();
    work();
    count(phase, begin, clock_.seconds(), false);
    return ready_ = ++last_;
  }
  {
    std::unique_lock lock(mutex_);
    until(lock, [&] { return jobs_.empty() || waiting_ + bytes <= kWaitingBytes; });
    jobs_.push_back({phase, bytes, std::move(work)});
    waiting_ += bytes;
    ++last_;
  }
  given_.notify_one();
  return last_;
}

void Background::wait_for(Ticket ticket) {
  std::unique_lock lock(mutex_);
  until(lock, [&] { return ready_ >= ticket; });
}

void Background::wait() { wait_for(last_); }

}  // namespace fewbit

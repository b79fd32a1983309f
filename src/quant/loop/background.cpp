#include "src/quant/loop/background.h"

#include <algorithm>

#include "src/core/inline_parallel.h"

namespace fewbit {

Background::Background(bool beside, bool pool, int threads) : pool_(pool) {
  if (!beside) return;
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { loop(); });
}

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  given_.notify_all();
  for (std::thread& t : threads_) t.join();
}

// What may be begun now. Under `mutex_`.
Background::Job* Background::next() {
  for (Job& job : jobs_)
    if (job.state == State::waits && (job.when == When::any_time || &job == &jobs_.front())) return &job;
  return nullptr;
}

bool Background::some_wait() const {
  return std::any_of(jobs_.begin(), jobs_.end(), [](const Job& j) { return j.state == State::waits; });
}

void Background::loop() {
  std::optional<InlineParallel> alone;
  if (!pool_) alone.emplace();
  for (;;) {
    Job* job = nullptr;
    bool in_vain = false;
    {
      std::unique_lock lock(mutex_);
      given_.wait(lock, [&] { return (job = next()) || (ends_ && !some_wait()); });
      if (!job) return;
      job->state = State::at_work;  // it stays where it is while others come and go
      in_vain = static_cast<bool>(error_);
      if (at_work_++ == 0) since_ = clock_.seconds();
    }
    run(*job, in_vain);
  }
}

// Behind an error jobs are let go of, undone.
void Background::run(Job& job, bool in_vain) {
  const double begin = clock_.seconds();
  std::exception_ptr error;
  if (!in_vain) try {
      job.work();
    } catch (...) {
      error = std::current_exception();
    }
  job.work = {};  // and with it what it held
  {
    const std::lock_guard lock(mutex_);
    if (error && !error_) error_ = error;
    const double end = clock_.seconds();
    count(job.phase, begin, end, true);
    if (--at_work_ == 0) times_.working += end - since_;
    waiting_ -= job.bytes;
    job.state = State::done;
    for (; !jobs_.empty() && jobs_.front().state == State::done; ++ready_) jobs_.pop_front();
  }
  given_.notify_all();  // what waited for all before it may be next
  done_.notify_all();
}

void Background::count(const std::string& phase, double begin, double end, bool beside) {
  times_.busy[phase] += end - begin;
  if (!beside) {
    times_.working += end - begin;
    return;
  }
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

Background::Ticket Background::give(const std::string& phase, int64_t bytes, std::function<void()> work, When when) {
  if (threads_.empty()) {
    const double begin = clock_.seconds();
    work();
    count(phase, begin, clock_.seconds(), false);
    return ready_ = ++last_;
  }
  {
    std::unique_lock lock(mutex_);
    until(lock, [&] { return bytes == 0 || waiting_ == 0 || waiting_ + bytes <= kWaitingBytes; });
    jobs_.push_back({phase, bytes, std::move(work), when});
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

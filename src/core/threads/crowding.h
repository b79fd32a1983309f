#pragma once
// Crowding: how many threads of the pool are left out because other processes have their processors. With a processor
// less than threads, each waits in turn for one that another process, or another thread of the pool, has at the moment,
// and at the end of every job all wait for the last: two threads on one and a half processors take longer for a decode
// step than one thread does.
#include <algorithm>
#include <chrono>

namespace fewbit {

class Crowding {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = Clock::duration;

  explicit Crowding(int workers) : workers_(workers) {}

  // Workers to leave out of a job that begins now.
  int begin_job(Clock::time_point now) {
    ++jobs_;
    if (left_out_ > 0 && now >= until_) left_out_ = 0;
    return left_out_;
  }
  // Whether it is time for a look.
  bool due(Clock::time_point now) const { return now - since_ >= window(now); }
  // The next look begins a new count: what has waited so far is not of these threads.
  void restart() { since_ = {}; }
  // `waited`: for how long, in all, threads of the pool have been ready to run since they began, without a processor.
  void look(Clock::time_point now, Duration waited) {
    const Duration passed = now - since_, lost = waited - waited_before_;
    // Over a few long jobs little is lost at their ends, and on a crowded machine two threads get more of it than one.
    const bool short_jobs = passed < jobs_ * Duration(kShortJob), looked_before = since_ != Clock::time_point{};
    if (looked_before && short_jobs && 3 * lost > passed)
      leave_out(now, static_cast<int>((lost + passed / 2) / passed));
    since_ = now;
    waited_before_ = waited;
    jobs_ = 0;
  }

 private:
  // Long enough that what wakes for a moment is not taken for another process that computes. Soon after workers were
  // left out a shorter look says whether they still should be: it costs a part of a step.
  Duration window(Clock::time_point now) const {
    return now < until_ + length_ ? Duration(kShortWindow) : Duration(kWindow);
  }
  // For longer each time that it happens soon after the last time: an attempt to work together takes a slice of the
  // scheduler. A processor that is free again is used again after as long as it was taken, and at most kLongest.
  void leave_out(Clock::time_point now, int more) {
    length_ = now < until_ + length_ ? std::min<Duration>(2 * length_, kLongest) : Duration(kShortest);
    until_ = now + length_;
    left_out_ = std::min(workers_, left_out_ + std::max(1, more));
  }

  static constexpr std::chrono::milliseconds kWindow{20}, kShortWindow{2}, kShortJob{3}, kShortest{40}, kLongest{640};
  int workers_, left_out_ = 0, jobs_ = 0;
  Clock::time_point since_{}, until_{};
  Duration waited_before_{}, length_{};
};

}  // namespace fewbit

#include "src/core/threads/crowding.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "src/core/threads/run_delay.h"

namespace fewbit {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A pool of three workers that begins a job of half a millisecond after the other.
struct Crew {
  explicit Crew(microseconds job) : length(job) { crowding.look(now, waited); }

  // Runs for `time`, in which other processes have `taken` processors; then the workers left out of the next job. A
  // thread that has lost its processor waits for more than half of the time.
  int run(milliseconds time, int taken) {
    int left_out = 0;
    for (const auto end = now + time; now < end;) {
      if (crowding.due(now)) crowding.look(now, waited);
      left_out = crowding.begin_job(now);
      now += length;
      waited += std::max(0, taken - left_out) * length * 6 / 10;
    }
    return left_out;
  }

  microseconds length;
  Crowding crowding{3};
  Crowding::Clock::time_point now{std::chrono::hours(1)};
  Crowding::Duration waited{};
};

TEST(Crowding, NobodyIsLeftOutOfAQuietMachine) {
  Crew crew(microseconds(500));
  EXPECT_EQ(crew.run(milliseconds(500), 0), 0);
  crew.waited += milliseconds(2);  // something woke for a moment
  EXPECT_EQ(crew.run(milliseconds(100), 0), 0);
}

TEST(Crowding, AWorkerIsLeftOutWhereAProcessorIsTaken) {
  Crew crew(microseconds(500));
  EXPECT_EQ(crew.run(milliseconds(30), 1), 1);
}

TEST(Crowding, AsManyAreLeftOutAsProcessorsAreTaken) {
  Crew crew(microseconds(500));
  EXPECT_EQ(crew.run(milliseconds(30), 2), 2);
  EXPECT_EQ(crew.run(milliseconds(10), 4), 3) << "one always works, and no more can be left out";
}

TEST(Crowding, EveryoneComesBackAndIsLeftOutForLongerEachTime) {
  Crew crew(microseconds(500));
  ASSERT_EQ(crew.run(milliseconds(30), 1), 1);
  std::vector<int64_t> absences;  // in jobs
  for (int i = 0; i < 3; ++i) {
    int64_t jobs = 0;
    while (crew.run(milliseconds(1), 0) == 1) ++jobs;
    while (crew.run(milliseconds(1), 1) == 0) {
    }
    absences.push_back(jobs);
  }
  EXPECT_GT(absences[1], absences[0]);
  EXPECT_GT(absences[2], absences[1]);
}

TEST(Crowding, AfterAQuietTimeItBeginsWithAShortAbsence) {
  Crew crew(microseconds(500));
  crew.run(milliseconds(3000), 1);
  EXPECT_EQ(crew.run(milliseconds(3000), 0), 0);
  ASSERT_EQ(crew.run(milliseconds(30), 1), 1);
  EXPECT_EQ(crew.run(milliseconds(45), 0), 0);
}

TEST(Crowding, LongJobsKeepEveryone) {
  Crew crew(milliseconds(8));
  EXPECT_EQ(crew.run(milliseconds(500), 1), 0);
}

TEST(Crowding, AnotherCallersWaitsAreNotCounted) {
  Crew crew(microseconds(500));
  crew.run(milliseconds(15), 0);
  crew.waited += std::chrono::seconds(5);  // of a thread that ran no job before
  crew.crowding.restart();
  EXPECT_EQ(crew.run(milliseconds(100), 0), 0);
}

// Two threads that compute on one processor: each waits while the other has it.
TEST(RunDelay, CountsWhatAThreadWaitsForAProcessor) {
  if (access("/proc/self/schedstat", R_OK) != 0) GTEST_SKIP() << "this system does not count it";
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
  std::atomic<int64_t> waited{0};
  const auto compute = [&] {
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    RunDelay delay;
    delay.watch_this_thread();
    const auto before = delay.total();
    for (const auto end = Crowding::Clock::now() + milliseconds(200); Crowding::Clock::now() < end;) {
    }
    waited += (delay.total() - before).count();
  };
  std::thread first(compute), second(compute);
  first.join();
  second.join();
  EXPECT_GT(waited, std::chrono::nanoseconds(milliseconds(50)).count());
}

}  // namespace
}  // namespace fewbit

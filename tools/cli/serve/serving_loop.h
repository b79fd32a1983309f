#pragma once
// The thread that runs the scheduler, and what others say to it: requests, and that somebody has gone.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "src/run/paged/scheduler.h"

namespace fewbit::cli {

// A token of a continuation, or of a prompt what its logits say of it.
struct TokenNews {
  int64_t request = 0, choice = 0, position = 0;
  int32_t token = -1;  // -1: the prompt's, at `position`
  Finish finish = Finish::no;
  float logprob = 0;                             // of the token, natural logarithm
  std::vector<std::pair<int32_t, float>> top{};  // the likeliest, with theirs
};

// What comes of the requests of one call; one reader.
class NewsChannel {
 public:
  void put(TokenNews news);
  void fail(const std::string& why);
  // What has come, or comes within `wait`.
  std::vector<TokenNews> take(std::chrono::milliseconds wait);
  std::string failure();  // "" while all is well

 private:
  std::mutex mutex_;
  std::condition_variable come_;
  std::vector<TokenNews> news_;
  std::string failure_;
};

struct ServingStats {
  SchedulerCounts counts{};
  int64_t waiting = 0, running = 0, pages = 0, pages_held = 0, prefix_blocks = 0, evicted = 0;
};

class ServingLoop {
 public:
  ServingLoop(Exec&, PagedEngine&, const SchedulerOptions&, BatchDrafter, int64_t max_waiting);
  ~ServingLoop();  // as finish()

  struct Ask {
    ServedRequest request;  // its id is given here
    int logprobs = -1;      // how many of the likeliest tokens are told; -1: nothing is said of any
  };
  enum class Taken : uint8_t { yes, full, never, closing };
  // All of them or none; their ids, or `why` not.
  Taken submit(std::vector<Ask> asks, const std::shared_ptr<NewsChannel>&, std::vector<int64_t>& ids, std::string& why);
  void cancel(int64_t id, int64_t choice = -1);  // one choice, or all
  void finish();                                 // takes no more, ends what runs
  ServingStats stats();
  std::string failure();  // why nothing is served any more; "" while all is well
  void rethrow();         // that failure, if there is one

 private:
  struct Job {
    std::shared_ptr<NewsChannel> channel;
    int logprobs = -1;
    std::vector<int32_t> prompt{};  // where its logprobs are wanted
    int64_t choices = 1;
    std::set<int64_t> ended{};
    bool end(int64_t choice) { return ended.insert(choice), std::ssize(ended) == choices; }  // true: the last one
  };
  void run();
  void take_in();
  void tell(const ServedToken&);
  void fail_all(const std::string& why);

  PagedEngine& engine_;
  Scheduler scheduler_;  // the thread's, but for refuses()
  const int64_t max_waiting_;
  std::map<int64_t, Job> jobs_;  // the thread's
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::pair<ServedRequest, Job>> inbox_;
  std::vector<std::pair<int64_t, int64_t>> cancelled_;
  ServingStats stats_;
  std::string failure_;
  std::exception_ptr error_;
  int64_t next_id_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace fewbit::cli

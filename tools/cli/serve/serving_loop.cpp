#include "tools/cli/serve/serving_loop.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace fewbit::cli {
namespace {

// ln of the sum of exp of the logits.
double log_sum(std::span<const float> logits) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  return top + std::log(sum);
}

void add_logprobs(std::span<const float> logits, int32_t token, int count, TokenNews& news) {
  const double all = log_sum(logits);
  const auto of = [&](int32_t id) { return static_cast<float>(logits[static_cast<size_t>(id)] - all); };
  news.logprob = of(token);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto n = std::min<std::ptrdiff_t>(count, std::ssize(order));
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (std::ptrdiff_t i = 0; i < n; ++i)
    news.top.emplace_back(order[static_cast<size_t>(i)], of(order[static_cast<size_t>(i)]));
}

}  // namespace

void NewsChannel::put(TokenNews news) {
  {
    const std::lock_guard lock(mutex_);
    news_.push_back(std::move(news));
  }
  come_.notify_one();
}

void NewsChannel::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = why;
  }
  come_.notify_one();
}

std::vector<TokenNews> NewsChannel::take(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  come_.wait_for(lock, wait, [this] { return !news_.empty() || !failure_.empty(); });
  return std::exchange(news_, {});
}

std::string NewsChannel::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

ServingLoop::ServingLoop(Exec& ex, PagedEngine& engine, const SchedulerOptions& o, BatchDrafter drafter,
                         int64_t max_waiting)
    : engine_(engine),
      scheduler_(ex, engine, o, std::move(drafter)),
      max_waiting_(max_waiting),
      thread_([this] { run(); }) {}

ServingLoop::~ServingLoop() { finish(); }

void ServingLoop::finish() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

ServingLoop::Taken ServingLoop::submit(std::vector<Ask> asks, const std::shared_ptr<NewsChannel>& channel,
                                       std::vector<int64_t>& ids, std::string& why) {
  for (const Ask& ask : asks)
    if (why = scheduler_.refuses(ask.request); !why.empty()) return Taken::never;
  if (std::ssize(asks) > max_waiting_) return why = "more prompts than --queue", Taken::never;
  const std::lock_guard lock(mutex_);
  if (closing_ || !failure_.empty()) return why = failure_.empty() ? "closing" : failure_, Taken::closing;
  if (stats_.waiting + std::ssize(inbox_) + std::ssize(asks) > max_waiting_) return why = "too many wait", Taken::full;
  for (Ask& ask : asks) {
    Job job{.channel = channel, .logprobs = ask.logprobs, .choices = ask.request.choices};
    if (ask.request.prompt_logits) job.prompt = ask.request.prompt;
    ids.push_back(ask.request.id = next_id_++);
    inbox_.emplace_back(std::move(ask.request), std::move(job));
  }
  work_.notify_one();
  return Taken::yes;
}

void ServingLoop::cancel(int64_t id, int64_t choice) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.emplace_back(id, choice);
  }
  work_.notify_one();
}

std::string ServingLoop::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ServingLoop::rethrow() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

ServingStats ServingLoop::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// Under the lock: who came, who went.
void ServingLoop::take_in() {
  for (auto& [request, job] : std::exchange(inbox_, {})) {
    jobs_.emplace(request.id, std::move(job));
    scheduler_.submit(std::move(request));
  }
  for (const auto& [id, choice] : std::exchange(cancelled_, {})) {
    scheduler_.cancel(id, choice);
    const auto job = jobs_.find(id);
    if (job != jobs_.end() && (choice < 0 || job->second.end(choice))) jobs_.erase(job);
  }
  const PrefixCache* prefix = scheduler_.prefix();
  stats_ = {.counts = scheduler_.counts(),
            .waiting = scheduler_.waiting(),
            .running = scheduler_.running(),
            .pages = engine_.cache().pages(),
            .pages_held = engine_.cache().pages_held(),
            .prefix_blocks = prefix ? prefix->blocks() : 0,
            .evicted = prefix ? prefix->evicted() : 0};
}

void ServingLoop::tell(const ServedToken& t) {
  const auto found = jobs_.find(t.request);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  TokenNews news{
      .request = t.request, .choice = t.choice, .position = t.position, .token = t.token, .finish = t.finish};
  const bool of_prompt = t.token < 0 && t.finish == Finish::no;
  if (of_prompt) news.position = t.position + 1;  // the token that these logits foretell
  const int32_t about = of_prompt ? job.prompt[static_cast<size_t>(news.position)] : t.token;
  if (job.logprobs >= 0 && about >= 0) add_logprobs(t.logits, about, job.logprobs, news);
  job.channel->put(std::move(news));
  if (t.finish != Finish::no && job.end(t.choice)) jobs_.erase(found);
}

void ServingLoop::fail_all(const std::string& why) {
  const std::lock_guard lock(mutex_);
  failure_ = why;
  error_ = std::current_exception();
  for (const auto& [id, job] : jobs_) job.channel->fail(why);
  for (const auto& [request, job] : inbox_) job.channel->fail(why);
}

void ServingLoop::run() {
  try {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        take_in();
        const auto called = [this] { return closing_ || !inbox_.empty() || !cancelled_.empty(); };
        if (scheduler_.idle() && !called()) {
          work_.wait(lock, called);
          take_in();
        }
        if (scheduler_.idle() && closing_) return;
      }
      scheduler_.step([this](const ServedToken& t) { tell(t); });
    }
  } catch (const std::exception& e) {
    fail_all(e.what());
  }
}

}  // namespace fewbit::cli

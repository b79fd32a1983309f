// One pass after another; between them requests are submitted as they come, and every token is given the time at which
// it was chosen.
#include "src/run/bench/traffic_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "kernels/cpu/arithmetic.h"
#include "src/core/rng.h"
#include "src/core/stopwatch.h"

namespace fewbit {
namespace {

constexpr int64_t kWarmupPrompt = 16, kWarmupTokens = 4;

std::vector<int32_t> random_ids(const ModelSpec& spec, Rng rng, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(spec.vocab)));
  return ids;
}

// Prompt i is the same whatever the row, as far as it goes.
std::vector<int32_t> prompt_of(const ModelSpec& spec, const TrafficOptions& o, int64_t i, int64_t tokens) {
  const uint64_t seed = o.arrivals.seed;
  std::vector<int32_t> ids = random_ids(spec, Rng(seed, "traffic beginning"), o.shared_tokens);
  const std::vector<int32_t> own =
      random_ids(spec, Rng(mix64(seed) + static_cast<uint64_t>(i), "traffic prompt"), tokens - o.shared_tokens);
  ids.insert(ids.end(), own.begin(), own.end());
  return ids;
}

class TrafficRun {
 public:
  TrafficRun(Exec& ex, PagedEngine& engine, const BatchDrafter& drafter, const TrafficShape& shape,
             const TrafficOptions& o, std::vector<TrafficRequest> requests)
      : engine_(engine),
        shape_(shape),
        options_(o),
        requests_(std::move(requests)),
        events_(requests_.size()),
        scheduler_(ex, engine,
                   {.budget = o.budget,
                    .running = shape.concurrency,
                    .prefix_cache = o.prefix_cache,
                    .speculate = o.speculate},
                   drafter) {
    for (size_t i = 0; i < requests_.size(); ++i)
      prompts_.push_back(prompt_of(engine.spec(), o, static_cast<int64_t>(i), requests_[i].prompt_tokens));
  }

  TrafficRow run(const std::function<void(double)>& tell) {
    clock_ = {};
    if (!options_.arrivals.open())
      while (submitted_ < requests_.size() && static_cast<int64_t>(submitted_) < shape_.concurrency)
        submit(clock_.seconds());
    while (ended_ < requests_.size()) {
      if (options_.arrivals.open()) submit_what_came();
      if (scheduler_.idle())
        wait_for_the_next();
      else
        pass();
      tell(static_cast<double>(ended_) / static_cast<double>(requests_.size()));
    }
    TrafficRow row{.shape = shape_, .times = times_of(events_, options_.slo), .counts = scheduler_.counts()};
    row.cache_mean = shares_ / static_cast<double>(row.counts.passes);
    row.cache_peak = most_;
    return row;
  }

 private:
  void submit(double arrival) {
    const size_t i = submitted_++;
    events_[i] = {.arrival_s = arrival, .prompt_tokens = requests_[i].prompt_tokens};
    scheduler_.submit({.id = static_cast<int64_t>(i),
                       .prompt = std::move(prompts_[i]),
                       .max_tokens = requests_[i].tokens,
                       .stop_at_eos = false});
  }
  void submit_what_came() {
    while (submitted_ < requests_.size() && requests_[submitted_].arrival_s <= clock_.seconds())
      submit(requests_[submitted_].arrival_s);
  }
  // In short naps: whoever watches the progress may want to stop.
  void wait_for_the_next() const {
    const double left = requests_[submitted_].arrival_s - clock_.seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(left, 0.0, 0.05)));
  }

  // Pages are counted while the sequences of the pass still hold theirs.
  void pass() {
    bool counted = false;
    const auto count_pages = [&] {
      if (std::exchange(counted, true)) return;
      const PagedCache& cache = engine_.cache();
      const double share = static_cast<double>(cache.pages_of_sequences()) / static_cast<double>(cache.pages_in_all());
      shares_ += share;
      most_ = std::max(most_, share);
    };
    std::vector<double> places;
    scheduler_.step([&](const ServedToken& token) {
      count_pages();
      const double now = clock_.seconds();
      events_[static_cast<size_t>(token.request)].token_s.push_back(now);
      if (token.finish == Finish::no) return;
      ++ended_;
      places.push_back(now);
    });
    count_pages();
    if (options_.arrivals.open()) return;
    for (const double free_since : places)
      if (submitted_ < requests_.size()) submit(free_since);
  }

  PagedEngine& engine_;
  const TrafficShape shape_;
  const TrafficOptions& options_;
  std::vector<TrafficRequest> requests_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<RequestEvents> events_;
  Scheduler scheduler_;
  Stopwatch clock_;
  size_t submitted_ = 0, ended_ = 0;
  double shares_ = 0, most_ = 0;
};

TrafficRow run_row(Exec& ex, PagedEngine& engine, const BatchDrafter& drafter, const TrafficShape& shape,
                   const TrafficOptions& o, const std::function<void(const char* phase, double)>& tell) {
  std::vector<TrafficRequest> requests = requests_of(shape, o.arrivals);
  TrafficOptions warm = o;
  warm.arrivals = {.seed = mix64(o.arrivals.seed)};
  warm.shared_tokens = 0;
  const int64_t at_once = std::min(shape.concurrency, std::ssize(requests));
  TrafficRun(ex, engine, drafter, shape, warm,
             {static_cast<size_t>(at_once),
              {.prompt_tokens = std::min(kWarmupPrompt, requests[0].prompt_tokens),
               .tokens = std::min(kWarmupTokens, requests[0].tokens)}})
      .run([&](double f) { tell("warming up", f); });
  const auto measure = [&] {
    return TrafficRun(ex, engine, drafter, shape, o, requests).run([&](double f) { tell("measuring", f); });
  };
  TrafficRow row = measure();
  if (!o.batch_invariant || !ex.on_cuda()) return row;
  engine.set_batch_invariant(false);
  measure();  // its recordings
  row.variant_tokens_per_s = measure().times.tokens_per_s;
  engine.set_batch_invariant(true);
  return row;
}

// Of the longest prompt and the most tokens that are asked for, whatever the seed draws of them.
struct Reach {
  int64_t prompt = 0, tokens = 0, shortest_prompt = std::numeric_limits<int64_t>::max();
  void add(const Lengths& p, const Lengths& t) {
    if (p.most + t.most > prompt + tokens) prompt = p.most, tokens = t.most;
    shortest_prompt = std::min(shortest_prompt, p.least);
  }
  int64_t positions() const { return prompt + tokens; }
};
Reach reach_of(const TrafficOptions& o) {
  Reach reach;
  for (const TrafficRequest& r : o.arrivals.trace) reach.add({r.prompt_tokens, r.prompt_tokens}, {r.tokens, r.tokens});
  if (o.arrivals.trace.empty())
    for (const TrafficShape& shape : o.shapes) reach.add(shape.prompt_tokens, shape.tokens);
  return reach;
}

// The cache for all rows: a page for each running sequence is left when one is admitted.
PagedOptions engine_options(const ModelSpec& spec, const TrafficOptions& o) {
  const Reach longest = reach_of(o);
  check_drafts(spec, o.load.dtype, o.speculate);
  if (longest.positions() > spec.max_positions)
    fail(ErrorKind::usage, fmt::format("{} prompt tokens and {} tokens exceed the model's {} positions; ask for fewer",
                                       longest.prompt, longest.tokens, spec.max_positions));
  if (o.shared_tokens > longest.shortest_prompt)
    fail(ErrorKind::usage, fmt::format("--shared-tokens {}: a prompt may have only {} tokens; share fewer",
                                       o.shared_tokens, longest.shortest_prompt));
  if (o.positions > 0 && o.positions < longest.positions())
    fail(ErrorKind::usage, fmt::format("--cache-positions {}: the longest request has {}; give at least as many",
                                       o.positions, longest.positions()));
  int64_t sequences = 0;
  for (const TrafficShape& shape : o.shapes) sequences = std::max(sequences, shape.concurrency);
  return {.load = o.load,
          .pages = o.positions > 0 ? pages_for(o.positions) : sequences * (pages_for(longest.positions()) + 1),
          .sequences = sequences,
          .longest = longest.positions(),
          .pass = o.budget,
          .batch_invariant = o.batch_invariant};
}

}  // namespace

TrafficResult bench_traffic(Exec& ex, const std::filesystem::path& model, const TrafficOptions& o,
                            const BenchProgress& progress) {
  FEWBIT_ASSERT(!o.shapes.empty());
  const auto tell = [&](const std::string& phase, double f) {
    if (progress) progress(phase, f);
  };
  tell("loading", 0);
  const Stopwatch loading;
  const Checkpoint c = Checkpoint::open(model);
  const PagedOptions options = engine_options(c.spec, o);
  PagedEngine engine(ex, c, options);
  std::optional<DraftEngine> drafts;
  if (o.speculate.kind == DraftKind::model)
    drafts.emplace(ex, Checkpoint::open(o.draft), draft_options(options), c.spec.vocab);
  const BatchDrafter drafter = drafts ? drafts->drafter() : ngram_batch_drafter();
  ex.sync();
  TrafficResult r{.load_s = loading.seconds(),
                  .device = device_and_products(ex.device_name(), ex.on_cuda()),
                  .pages = engine.cache().pages(),
                  .cache_bytes = engine.cache().bytes(),
                  .cache_bytes_per_token = engine.cache().bytes_per_position(),
                  .notes = engine.notes()};
  for (size_t i = 0; i < o.shapes.size(); ++i)
    r.rows.push_back(run_row(ex, engine, drafter, o.shapes[i], o, [&](const char* phase, double f) {
      tell(o.shapes.size() == 1 ? phase : fmt::format("{} row {} of {}", phase, i + 1, o.shapes.size()), f);
    }));
  r.peak_bytes = ex.peak_bytes();
  return r;
}

}  // namespace fewbit

#pragma once
// Which rows go into which pass, for requests that come and go: admission at every pass (Yu et al., Orca, 2022),
// prompts cut into chunks that fill what a budget of rows leaves beside the decode steps (Agrawal et al.,
// Sarathi-Serve, 2024), and, where pages run out, the youngest request begins again later (recomputation, as in vLLM).
//
// First come, first served: an older request gets pages before a younger one, if need be the younger one's, so the
// oldest always goes on. Only a request that waits for a page which another one is filling is passed over, at most
// `passes_over` times. The same requests submitted between the same steps give the same passes.
//
// With a drafter a sequence that decodes brings a draft of the tokens to come, where rows and pages are left when all
// else has its own. Its tokens are those without; which drafts are made depends on what passes take, unless they are
// not sparing.
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "src/run/paged/paged_engine.h"
#include "src/run/paged/prefix_cache.h"
#include "src/run/sampler.h"
#include "src/run/speculate/batch_drafts.h"

namespace fewbit {

struct ServedRequest {
  int64_t id = 0;  // unique among those at hand
  std::vector<int32_t> prompt{};
  int64_t max_tokens = 16;
  SamplerOptions sampler{};
  int64_t choices = 1;         // continuations of the prompt, each of its own stream of random numbers
  bool stop_at_eos = true;     // at an eos of the spec, which is the last token then
  bool prompt_logits = false;  // of every position of the prompt too; such a request takes no pages of others
  bool logits = false;         // of every token chosen; without it a GPU tells none of them
};

enum class Finish : uint8_t { no, stop, length };

// One token of a continuation, or the logits of one position of a prompt.
struct ServedToken {
  int64_t request = 0, choice = 0;
  int64_t position = 0;             // of the token in prompt and continuation; of prompt logits: their row
  int32_t token = -1;               // -1: prompt logits
  std::span<const float> logits{};  // that it was chosen from, [vocab] or empty; valid during the call
  Finish finish = Finish::no;
};

struct SchedulerOptions {
  int64_t budget = 512;  // rows of a pass
  int64_t running = 32;  // sequences at one time
  bool prefix_cache = true;
  int64_t passes_over = 64;
  SpeculateOptions speculate{};
};

struct SchedulerCounts {
  int64_t passes = 0, rows = 0;
  int64_t prefilled = 0;  // rows that are no decode steps
  int64_t decoded = 0;    // tokens chosen
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0,
          shared_tokens = 0;  // of admitted requests, and how many of them came from the prefix cache
  double planning_s = 0, engine_s = 0, choosing_s = 0;
  double drafting_s = 0;  // of planning_s
  Acceptance drafts{};
};

// Error{unsupported} where drafts are asked for whose rejection the model's layers would not forget: those with a
// state.
void check_drafts(const ModelSpec&, DType compute, const SpeculateOptions&);

class Scheduler {
 public:
  // The drafter of options.speculate, of a model that check_drafts() takes; {} where k is 0.
  Scheduler(Exec&, PagedEngine&, const SchedulerOptions&, BatchDrafter = {});
  ~Scheduler();

  // "" or why this engine can never serve the request.
  std::string refuses(const ServedRequest&) const;
  void submit(ServedRequest);  // one that is not refused
  // One choice, or all (-1): their pages are free at once. False where none is at hand.
  bool cancel(int64_t id, int64_t choice = -1);
  bool idle() const { return waiting_.empty() && running_.empty(); }
  int64_t waiting() const { return std::ssize(waiting_); }
  int64_t running() const { return std::ssize(running_); }
  // One pass: `tell` gets each token as it is chosen. Does nothing where nothing is at hand.
  using Tell = std::function<void(const ServedToken&)>;
  void step(const Tell& tell);
  const SchedulerCounts& counts() const { return counts_; }
  PrefixCache* prefix() { return prefix_.get(); }

 private:
  struct Sequence {
    std::shared_ptr<const ServedRequest> request;
    int64_t order = 0, choice = 0;
    std::vector<int32_t> tokens;     // prompt and continuation
    std::vector<uint64_t> hashes;    // of the whole blocks of `tokens`
    int slot = -1;                   // in the cache, of a running one
    int64_t computed = 0, told = 0;  // positions in the cache; prompt positions whose logits were told
    int64_t shared_blocks = 0;       // of the hashes: handed to, or found in, the prefix cache
    int64_t passed_over = 0;
    bool forked = false;
    DraftAccount account{0};
    int64_t left() const { return std::ssize(tokens) - computed; }
  };
  using List = std::list<Sequence>;
  struct Planned {
    List::iterator sequence;
    int64_t rows;
    std::vector<int32_t> draft{};  // behind the one row of a decode step
    double cost = 0;               // of the draft, in tokens
  };
  bool before(const Sequence& a, const Sequence& b) const {
    return a.order != b.order ? a.order < b.order : a.choice < b.choice;
  }
  void insert(List& list, List::iterator from_where, List& from);
  std::vector<Planned> plan();
  bool make_room(List::iterator, int64_t length);
  void preempt(List::iterator);
  bool admit(List::iterator, int64_t budget, std::vector<Planned>&);
  bool waits_for_a_page(const Sequence&) const;
  void leave(List::iterator);  // gives up its pages and what others wait for
  void promise(const Sequence&);
  void withdraw(const Sequence&);
  void share_blocks(Sequence&);
  double add_drafts(std::vector<Planned>&);  // seconds of the processor
  void after_pass(const std::vector<Planned>&, const PassResult&, const Tell&);
  bool choose(Sequence&, const PassRow&, const Tell&);                             // true: it goes on
  bool judge_draft(const Planned&, const PassResult&, size_t first, const Tell&);  // likewise
  int64_t decoding() const;  // sequences whose next row is a decode step
  void fork(List::iterator parent, const PassRow&, const Tell&);

  Exec& ex_;
  PagedEngine& engine_;
  SchedulerOptions options_;
  std::unique_ptr<PrefixCache> prefix_;
  BatchDrafter drafter_;
  PassTimes times_;         // of passes that decode only
  List waiting_, running_;  // both by age
  // Blocks that a running sequence is about to fill, and which one.
  std::unordered_map<uint64_t, const Sequence*> promised_;
  int64_t orders_ = 0;
  SchedulerCounts counts_;
};

}  // namespace fewbit

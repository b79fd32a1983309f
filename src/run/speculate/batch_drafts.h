#pragma once
// Drafts for many sequences at once, each of which goes on by itself: all tokens of a draft are certain, so that every
// sequence gets the tokens of plain sampling with its seed (judge() of speculation.h), whatever is drafted.
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "src/run/paged/paged_engine.h"
#include "src/run/speculate/speculation.h"

namespace fewbit {

struct DraftWish {
  int sequence = 0;  // who asks, the same from call to call
  std::span<const int32_t> text{};
  int64_t most = 0;            // tokens
  std::vector<int32_t> ids{};  // the draft: what propose() answers, empty where it has none
};

struct BatchDrafter {
  std::function<void(std::span<DraftWish>)> propose{};
  std::function<void(int sequence)> forget{};  // it has ended, or another text has its number; may be empty
};

BatchDrafter ngram_batch_drafter();

// Of a DraftEngine beside an engine of these options: the draft model runs as it is stored.
inline PagedOptions draft_options(PagedOptions o) {
  o.load.head = HeadType::stored;
  o.load.acts = ActsType::bf16;
  return o;
}

// A second model with a paged cache of its own. A sequence that finds no page there has no draft.
class DraftEngine {
 public:
  // Error{unsupported} for a model whose layers keep a state: it would have to go back.
  DraftEngine(Exec&, const Checkpoint&, const PagedOptions&, int64_t vocab);
  const std::vector<std::string>& notes() const { return engine_.notes(); }
  PagedCache& cache() { return engine_.cache(); }
  void propose(std::span<DraftWish>);
  void forget(int sequence);
  BatchDrafter drafter();  // this one, which must outlive it

 private:
  struct Reader {
    int slot;                   // in the cache
    std::vector<int32_t> read;  // the tokens of its positions, guesses among them
  };
  bool feed(Reader&, std::span<const int32_t> text, std::vector<NewTokens>&);
  void take_back(Reader&, std::span<const int32_t> text);

  PagedEngine engine_;
  int64_t vocab_;
  std::map<int, Reader> readers_;
};

}  // namespace fewbit

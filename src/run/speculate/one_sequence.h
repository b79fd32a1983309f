#pragma once
// The sequence of a paged engine that generation with drafts works on: what was fed can be taken back.
#include <functional>
#include <span>
#include <vector>

#include "src/run/paged/paged_engine.h"

namespace fewbit {

// What an engine for one sequence of `length` positions, prompt and new tokens, needs.
PagedOptions paged_for_one(const LoadOptions&, int64_t length);

class OneSequence {
 public:
  OneSequence(Exec&, PagedEngine&);  // the engine must have room for one and outlive this
  ~OneSequence();
  OneSequence(const OneSequence&) = delete;
  OneSequence& operator=(const OneSequence&) = delete;

  int64_t length() const;  // positions fed that count
  // Feeds those of `text` behind length(), with logits of the last `wanted` ones: f32 [wanted, vocab] on the host. At
  // least one token, and as many as are wanted, must be left to feed. states [text, hidden]: for an engine with a Join.
  Tensor feed(std::span<const int32_t> text, int64_t wanted, ConstTensorView states = {});
  // Sees the states of every pass of an engine that has them, and the position of the first.
  void watch(std::function<void(int64_t first, ConstTensorView states)> seen) { seen_ = std::move(seen); }
  // What is fed from here on may be taken back, until the next mark(). Only layers that keep a state need it.
  void mark();
  // The first `length` positions count, and no others. Where layers keep a state, which goes back to mark() alone,
  // length() may be less than that afterwards: the tokens in between have to be fed again.
  void keep(int64_t length);

 private:
  Exec& ex_;
  PagedEngine& engine_;
  int sequence_;
  int64_t marked_ = 0;
  std::vector<RecurrentState> saved_;  // by layer, at marked_
  std::function<void(int64_t, ConstTensorView)> seen_;
};

}  // namespace fewbit

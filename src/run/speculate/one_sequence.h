#pragma once
// The one sequence of an engine: what was fed can be taken back.
#include <span>
#include <vector>

#include "src/run/engine.h"

namespace fewbit {

class OneSequence {
 public:
  // Begins anew; the engine must decode each token (Engine::decodes_each) and outlive this.
  OneSequence(Exec&, Engine&);

  int64_t length() const { return engine_.length(); }  // positions fed that count
  // Feeds those of `text` behind length(); logits of the last `wanted` ones, f32 [wanted, vocab], valid until the next
  // call. At least one token, and as many as are wanted, must be left to feed. A prompt goes as that of plain
  // generation does unless logits of more than its last token are wanted, what comes behind as decode steps do.
  ConstTensorView feed(std::span<const int32_t> text, int64_t wanted);
  // What is fed from here on may be taken back, until the next mark(). Only layers that keep a state need it.
  void mark();
  // The first `length` positions count, and no others. Where layers keep a state, which goes back to mark() alone,
  // length() may be less than that afterwards: the tokens in between have to be fed again.
  void keep(int64_t length);

 private:
  Exec& ex_;
  Engine& engine_;
  int64_t marked_ = 0;
  std::vector<RecurrentState> saved_;  // by layer, at marked_
};

}  // namespace fewbit

#pragma once
// InlineParallel: while it lives, parallel_for of this thread runs its chunks by itself and leaves the pool to others.
// For threads that work beside the one that computes; the results are the same.

namespace fewbit {

class InlineParallel {
 public:
  InlineParallel();
  ~InlineParallel();
  InlineParallel(const InlineParallel&) = delete;
  InlineParallel& operator=(const InlineParallel&) = delete;

 private:
  bool before_;
};

}  // namespace fewbit

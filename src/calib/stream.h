#pragma once
// Stream: the hidden states of all calibration tokens on their way through a block, op by op. Two of them run
// side by side: the quantized one (its linears already replaced) and the unquantized one.
#include "src/run/block.h"

namespace fewbit {

class Stream {
 public:
  // `x` [seqs * len, hidden]: the states; kept from block to block.
  Stream(Exec& ex, const ModelSpec& spec, Tensor x, int64_t seqs);

  // Begins a block: its op list decides how long each activation lives.
  void begin_block(const std::vector<BlockOp>& ops);
  // Runs op number `index` on all tokens. Slots are allocated when first written and freed after their last
  // use, so at most the widest pair of ops is held.
  void run(size_t index, const BlockWeights& weights, const RopeTables& ropes);
  ConstTensorView input(Slot s) const { return activations_[s]; }
  const Tensor& x() const { return x_; }
  int64_t tokens() const { return x_.rows(); }

 private:
  bool dead_after(size_t index, Slot s) const;  // nobody reads what the slot holds after op `index`
  void allocate_for(size_t index);
  void release_after(size_t index);

  Exec& ex_;
  const ModelSpec& spec_;
  Tensor x_, positions_;
  int64_t seqs_;
  const std::vector<BlockOp>* ops_ = nullptr;
  std::array<Tensor, kSlots> slots_{};
  Activations activations_{};
};

}  // namespace fewbit

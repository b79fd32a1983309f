#pragma once
// BlockTape runs a block of dense linears in f32, records what its gradient needs, and computes that gradient. It walks
// the same op list as the interpreter of src/run/block.h; blocks with other ops than decoders of one kind have
// (without_gradient) have none here.
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/run/block.h"

namespace fewbit {

// What of the block has no gradient here, in words for people; "" where every op has one.
std::string_view without_gradient(const std::vector<BlockOp>& ops);
bool has_gradient(const std::vector<BlockOp>& ops);

// The block's weights as a tape takes them. Linears that round their input take it as it is here.
BlockWeights in_f32(Exec&, const BlockWeights&);

class BlockTape {
 public:
  // Room for `seqs` sequences of `len` tokens in a block of the layer's kind.
  BlockTape(Exec& ex, const ModelSpec& spec, int64_t layer, int64_t seqs, int64_t len);

  // The states of the first `seqs` sequences, [seqs * len, hidden] f32: filled by the caller before a pass,
  // the block's output after it.
  TensorView states(int64_t seqs) const { return x_.view().row_range(0, seqs * len_); }
  void run(const BlockWeights& weights, const RopeTables& ropes, int64_t seqs);     // without a record
  void record(const BlockWeights& weights, const RopeTables& ropes, int64_t seqs);  // with one
  // From the gradient of the recorded pass' output (overwritten: it is used as room) to those of the weights
  // that `grads` names, by relative name of the linear: [out, in] f32, overwritten.
  void backward(const BlockWeights& weights, TensorView output_grad, const std::map<std::string, Tensor>& grads);
  // From the gradient of the recorded pass' output to that of the states that entered it, in its place. On the way it
  // shows that of the outputs of each linear, [seqs * len, out] f32.
  using ShowOutputs = std::function<void(const LinearDef&, ConstTensorView)>;
  void backward_through(const BlockWeights& weights, TensorView grad, const ShowOutputs& show);

 private:
  struct BackwardPass;  // the visitor of backward()
  void remember(size_t op, Slot s);
  void walk_back(BackwardPass&);

  Exec& ex_;
  const std::vector<BlockOp>& ops_;
  int kind_;
  int64_t len_, seqs_ = 0;
  Tensor x_{}, positions_{};
  SlotBuffers values_, gradients_;
  Activations now_{};                                 // of the pass at hand
  std::map<std::pair<size_t, Slot>, Tensor> seen_{};  // what an op found in a slot, of all `seqs` sequences
  std::map<size_t, Tensor> inverse_rope_{};           // by op: the negated table, which turns back
};

}  // namespace fewbit

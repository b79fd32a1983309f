#pragma once
// OutputGradients: the way of the model's own distribution back to the end of every block, and from there to the
// outputs of its linears. One walk through the unquantized model, before any block is quantized, leaves the gradients
// at the ends of blocks; a block's own way back is run when it is its turn, so that nothing is kept of a linear that is
// wider than its block's states. Products on a GPU have factors in TF32 (rough_products.h).
#include <functional>
#include <map>
#include <string>

#include "src/calib/states.h"
#include "src/quant/loop/learn/block_tape.h"
#include "src/quant/output_curvature.h"
#include "src/text/corpus.h"

namespace fewbit {

struct Checkpoint;

// Windows of the walk among so many, of `most` tokens at most: whole ones at even distances.
int64_t curvature_windows(int64_t windows, int64_t length, int64_t most);

// What of the model has no way back, in words for people; "" where all of it has one.
std::string without_curvature(const ModelSpec&);

class OutputGradients {
 public:
  struct Job {
    const Windows* windows = nullptr;
    const RopeTables* ropes = nullptr;
    DType dtype = DType::f32;  // of the states between blocks; within them all is f32
    uint64_t seed = 0;
    int64_t tokens = 0;                      // that are looked at, at most
    int64_t first = 0;                       // layer whose curvature is asked for first
    std::function<void(double)> progress{};  // fraction done
  };
  // Walks forward and back. The store must outlive the gradients.
  OutputGradients(Exec&, const Checkpoint&, StateStore&, const Job&);

  // Curvatures of all linears of the block, by their names in it. `weights` are dense; `entering` brings the states of
  // tokens [begin, end) in front of the block, in the job's dtype. Lets go of the gradients behind the block.
  using Entering = std::function<void(int64_t begin, int64_t end, TensorView into)>;
  std::map<std::string, OutputCurvature> of(int64_t layer, const BlockWeights& weights, const Entering& entering);

 private:
  int64_t begin_of(int64_t i) const { return i * all_ / windows_ * length_; }  // token of all, of window i of the walk
  // Window i of states in f32, and back.
  void read(const States&, int64_t i, TensorView into) const;
  void write(ConstTensorView from, States&, int64_t i) const;
  // From the states in the tape and the gradients behind the block to those in front of it, in `grad`.
  void back(BlockTape&, const BlockWeights&, const States& behind, int64_t i, TensorView grad,
            const BlockTape::ShowOutputs&) const;
  void forward(const Job&);
  void through_the_head(const Job&);
  void backward(const Job&);
  BlockWeights weights_of(int64_t layer) const;
  void tell(const Job&, int64_t layers);

  Exec& ex_;
  const Checkpoint& ckpt_;
  const ModelSpec& spec_;
  const RopeTables& ropes_;
  DType dtype_;
  int64_t all_, windows_, length_;
  // [l]: what stands in front of block l; behind the walk the gradient there. The last is behind all blocks.
  std::vector<std::optional<States>> at_{};
  int64_t done_ = 0;  // layers of the walk
};

// Tokens of the walk among so many windows.
inline int64_t curvature_tokens(int64_t windows, int64_t length, int64_t most) {
  return curvature_windows(windows, length, most) * length;
}
// Device memory that a block's way back takes besides its weights, with the curvatures of all its outputs; and that of
// the head.
int64_t curvature_bytes(const ModelSpec&, const std::vector<BlockOp>& ops, int64_t length);
int64_t curvature_head_bytes(Device::Kind, const ModelSpec&, int64_t length);

}  // namespace fewbit

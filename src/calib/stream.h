#pragma once
// Stream: the hidden states of all calibration tokens on their way through a block, chunk by chunk. Two of them run
// side by side: the quantized one (its linears already replaced) and the unquantized one.
//
// Between passes a stream keeps the slots of its last cut: at the beginning of a block the residual stream, later
// whatever is alive in front of the op where the caller said so. A pass brings every chunk from the cut to the op that
// is looked at; what lies between is computed again in the next pass, from the same bytes by the same ops, unless the
// cut moved past it.
#include <functional>
#include <map>
#include <optional>
#include <span>

#include "kernels/exec/side_stream.h"
#include "src/calib/states.h"
#include "src/run/block.h"

namespace fewbit {

// What looks at a block by itself, without the pass through the blocks before, lacks the keys that those chose for it.
// Error{usage} where windows are long enough for a choice and the model shares one; `what` names who looks.
void need_no_shared_choice(const ModelSpec&, const std::string& what, int64_t length);

class Stream {
 public:
  // `ids` of all chunks' tokens, for models whose blocks read them (reads_tokens); else none are needed.
  Stream(StateStore&, const ModelSpec&, const Chunks&, DType, std::span<const int32_t> ids = {});

  // The states that enter the first block, [rows of the chunk, width].
  void start(int64_t chunk, ConstTensorView x) { stored_.at(Slot::x).put(chunk, x); }
  // Begins a block from the states at the end of the one before.
  void begin_block(const std::vector<BlockOp>& ops);
  // Keeps the states that enter the block at hand until begin_block_again() or the next block.
  void keep_entering() { keeps_entering_ = true; }
  const States& entering() const { return entering_ ? *entering_ : stored_.at(Slot::x); }
  // Back in front of the block, from the states that keep_entering() saved.
  void begin_block_again();

  // Called in front of an op, with what the slots hold.
  using Watch = std::function<void(size_t op, const Activations&)>;
  // Brings a chunk in front of op `to` and returns what the slots hold there, until the next call. On the way it
  // stores what is alive in front of op `cut`, when that is given; a cut behind `to` is run_on()'s.
  const Activations& bring(int64_t chunk, size_t to, const BlockWeights&, const RopeTables&,
                           std::optional<size_t> cut = {}, const Watch& watch = {});
  // Takes the chunk that was just brought in front of op `to`, with `cut` behind it, on to the cut and stores it there.
  void run_on(int64_t chunk, size_t to, size_t cut, const BlockWeights&, const RopeTables&);
  // Adds what experts [first, last) of the mixture `op` make of the chunk that was just brought in front of it. Begins
  // with expert 0 and goes in order; once all experts were added, a pass takes the sums in the place of the experts.
  void add_experts(int64_t chunk, size_t op, const BlockWeights&, int first, int last);
  // Every chunk was brought past `cut`: the next passes begin there.
  void moved(size_t cut);
  // Gives back the memory of the chunk that was brought last: nobody looks at it again. What is on its way to host
  // memory has left when the device comes there.
  void let_go();
  size_t base() const { return base_; }

  const States& x() const { return stored_.at(Slot::x); }  // at the last cut
  const Chunks& chunks() const { return chunks_; }

 private:
  bool written_between(size_t begin, size_t end, Slot) const;
  void load(int64_t chunk, size_t to, std::optional<size_t> cut);
  void load_ahead(int64_t chunk);
  bool take_sums(int64_t chunk, size_t op);
  void run(int64_t chunk, size_t begin, size_t end, const BlockWeights&, const RopeTables&, std::optional<size_t> cut,
           const Watch& watch);
  void save(int64_t chunk, size_t at, size_t to);
  void put(States&, int64_t chunk, Slot, bool rewritten);
  void land(Slot);
  void allocate_for(size_t index, int64_t rows);
  void release_after(size_t index);

  StateStore& store_;
  const ModelSpec& spec_;
  Chunks chunks_;
  DType dtype_;
  Tensor positions_, ids_;
  const std::vector<BlockOp>* ops_ = nullptr;
  size_t base_ = 0;
  bool keeps_entering_ = false;
  std::map<Slot, States> stored_{}, next_{};  // at the last cut, and at the one that chunks are passing
  std::optional<States> entering_{};
  std::map<size_t, States> sums_{};     // of mixtures by op, f32: what their experts answer
  std::array<Tensor, kSlots> slots_{};  // memory of the chunk at hand
  Activations activations_{};
  // Slots of the chunk `coming_` on their way from host memory, where the device has room for them.
  std::optional<SideStream> side_{};
  std::map<Slot, Tensor> ahead_{};
  int64_t coming_ = -1;
  // Slots that were stored last, on their way to host memory.
  std::optional<SideStream> out_{};
  std::map<Slot, Tensor> leaving_{};
  std::vector<Tensor> choices_{};  // of keys: by chunk where later blocks look at them too, else one for all
};

}  // namespace fewbit

#pragma once
// BlockLoop takes a model through the pipeline, one block at a time. It owns the two streams of hidden states and hands
// the linears to the coder (block_coder.h). docs/architecture.md, "The block loop", tells the order of events. Several
// ranks each have a loop and make the same calls: the chunks of the calibration are theirs in turn.
#include <set>

#include "src/calib/chunk_share.h"
#include "src/calib/experts.h"
#include "src/calib/stream.h"
#include "src/core/stopwatch.h"
#include "src/quant/loop/block_coder.h"
#include "src/quant/loop/curvature/output_gradients.h"
#include "src/quant/loop/measure.h"
#include "src/text/corpus.h"

namespace fewbit {

class BlockLoop {
 public:
  // Without `windows` (count 0) nothing is run, and every linear is quantized from its weights alone.
  BlockLoop(Exec&, const Checkpoint&, const QuantPlan&, const Windows&, const QuantJob&, Journal&);

  // Quantizes and seals the block of `layer`, or replays it where an earlier run sealed it. To be called in order, from
  // 0.
  void block(int64_t layer);
  // After the last block: whether finish() has nothing to compute. Then the device has come to its end.
  bool is_computed();
  // After the last block: the head and the layer behind the last, where the plan quantizes them; seals them with the
  // embedding. Behind it all is on the disk.
  void finish();
  // Does it beside the computation, when the blocks so far are sealed; an error ends a later call.
  void behind(const char* phase, std::function<void()> work) { background_.give(phase, 0, std::move(work)); }
  // Returns when every block that was quantized is sealed.
  void settle() {
    background_.wait();
    phases_.settle();
  }

  const Phases& phases() const { return phases_; }                         // behind settle()
  const Background::Times& beside() const { return background_.times(); }  // behind settle()
  const std::vector<ExpertRecord>& experts() const { return experts_; }
  const std::vector<KvRecord>& kv_scales() const { return kv_scales_; }
  const StateStore::Use& states() const { return store_.peak(); }  // the most that the states took

 private:
  // Slots of the quantized stream, and of the unquantized one, that a pass shows in front of an op.
  struct Shown {
    std::vector<Slot> quantized{}, full{};
    bool error = false;  // of the residual stream: what the quantized one lacks of the unquantized one
  };
  using LinearOf = ExpertInputs::LinearOf;
  // A stream that has brought a chunk to where the pass ends, with the weights that it runs in reach.
  using Arrived = std::function<void(int64_t chunk, Stream&)>;

  void replay(int64_t layer);
  void quantize(int64_t layer);
  void enter(int64_t layer);
  void pass(size_t to, const Shown& slots, const ChunkShare::Show& show, const Stream::Watch& watch = {},
            const Arrived& arrived = {});
  void pass(size_t to, const Stream::Watch& watch = {}) { pass(to, {}, {}, watch); }
  ChunkShare::Rows bring(int64_t chunk, size_t to, const Shown& slots, std::optional<size_t> cut,
                         const Stream::Watch& watch, const Arrived& arrived);
  EachChunk input_of(size_t op, Slot slot, bool error);
  InputSumsOf sums_of(size_t op, const Linears&) const;
  ConstTensorView error_between(const Activations& full, const Activations& quantized);
  void run_on();
  void leave_full(size_t op);
  void load_linears(size_t begin, size_t end);
  void load(const LinearDef&);
  void foresee_weights(int64_t layer);
  Tensor bias_of(const LinearDef&);
  void drop_linears(size_t end);
  void swap_replaced();
  void load_biased(size_t op);
  std::optional<size_t> cut_before(size_t to) const;
  void quantize_op(size_t op);
  void quantize_group(size_t op, const Linears&);
  void quantize_experts(size_t op, const Moe&);
  ExpertInputs::EachRouted routed_to(size_t op, const Moe&);
  void add_biases(const Moe&);
  // Of mixtures whose weights are in memory wave by wave (block_loop_experts.cpp).
  bool in_waves(const BlockOp& op) const { return plan_.memory.experts_in_waves && std::holds_alternative<Moe>(op); }
  void hold_inputs(const Moe&, int first, int last, bool apart);
  void drop_experts(const Moe&);
  void hold_experts(const std::vector<LinearDef>&, const std::function<bool(size_t)>& wanted);
  void sum_mixtures(size_t to);
  Tensor quantize_embedding();
  void quantize_mtp();
  bool has_ends() const;  // linears of the plan outside its blocks
  Tensor whole_embedding();
  void start_streams(const Windows&, ConstTensorView quantized_embedding);
  void watch_kv(size_t op, const Activations&);
  void scale_kv();
  void weigh_outputs();
  void learn();
  void run_learned();
  double learning_seconds() const;
  // Runs the quantized stream alone in front of an op, with the weights that learning left, and shows slots of it.
  void pass_learned(size_t to, const std::vector<Slot>& slots, const ChunkShare::Show& show);
  void measure_learned(size_t op, const Linears&);
  const std::vector<BlockOp>& ops() const { return ckpt_.spec.block(layer_); }
  // The unquantized stream is at the block's end.
  bool full_ends() const { return full_ && full_->base() == ops().size(); }
  // Whether the chunk runs in both streams.
  bool both(int64_t chunk) const { return full_ && (!plan_.by_half || Chunks::in_half(chunk)); }

  Exec& ex_;
  const Checkpoint& ckpt_;
  const QuantPlan& plan_;
  const QuantJob& job_;
  Journal& journal_;
  const Ranks& ranks_;
  RopeTables ropes_;
  Phases phases_;
  Stopwatch since_start_;
  double learned_seconds_ = 0;  // of it, in blocks that learned with a limit
  int64_t sealed_before_;       // blocks, by the run that is resumed
  UploadAhead ahead_;           // weights on their way to the device
  BlockCoder coder_, ends_;     // of the block at hand; of the embedding, from the start, and the head, at the end
  Chunks chunks_{};
  ChunkShare share_;
  StateStore store_;
  std::optional<Stream> quantized_{}, full_{};
  const Windows& windows_;
  std::optional<OutputGradients> gradients_{};  // of the blocks from the one at hand on, once one asked for them
  std::vector<ExpertRecord> experts_{};
  std::vector<KvRecord> kv_scales_{};
  // Of the block at hand:
  int64_t layer_ = 0;
  bool learning_ = false;
  BlockWeights weights_{};                    // of the unquantized stream, as far as they are loaded
  std::map<std::string, Linear> replaced_{};  // what the quantized stream has in their place, without biases
  std::set<size_t> summed_{};                 // mixtures of which the streams have the answers
  // In front of which op a pass looks at the unquantized stream for the last time, and the chunk of it that is to run
  // on from there.
  std::optional<size_t> last_look_{};
  std::optional<int64_t> runs_on_{};
  Tensor error_{};  // of the residual stream, of the chunk that was brought last
  KvRange kv_range_{};
  Background background_;  // the last member: its work ends before what it works on goes
};

}  // namespace fewbit

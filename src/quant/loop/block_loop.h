#pragma once
// BlockLoop takes a model through the pipeline, one block at a time. It owns the two streams of hidden states and hands
// the linears to the coder (block_coder.h). docs/architecture.md, "The block loop", tells the order of events.
#include "src/calib/stream.h"
#include "src/quant/loop/block_coder.h"
#include "src/text/corpus.h"

namespace fewbit {

class BlockLoop {
 public:
  // Without `windows` (count 0) nothing is run, and every linear is quantized from its weights alone.
  BlockLoop(Exec&, const Checkpoint&, const QuantPlan&, const Windows&, const QuantJob&, Journal&);

  // Quantizes and seals the block of `layer`, or replays it where an earlier run sealed it. To be called in order, from
  // 0.
  void block(int64_t layer);
  // After the last block: the head, where the plan quantizes it; seals both ends.
  void finish();

  const std::map<std::string, double>& phases() const { return phases_.seconds(); }
  const std::vector<ExpertRecord>& experts() const { return experts_; }
  const std::vector<KvRecord>& kv_scales() const { return kv_scales_; }

 private:
  void replay(int64_t layer);
  void quantize(int64_t layer);
  BlockWeights enter(int64_t layer);
  std::map<std::string, Linear> quantize_op(int64_t layer, const BlockOp&, const BlockWeights&);
  void advance(size_t op, BlockWeights&, std::map<std::string, Linear> replaced);
  Tensor quantize_embedding();
  void start_streams(const Windows&, ConstTensorView quantized_embedding);
  std::map<std::string, Linear> quantize_group(const Linears&);
  std::map<std::string, Linear> quantize_experts(int64_t layer, const Moe&, const BlockWeights&);
  void scale_kv(int64_t layer, const BlockOp&);
  void learn(int64_t layer, ConstTensorView entering, BlockWeights&);
  void measure_learned(const Linears&);

  Exec& ex_;
  const Checkpoint& ckpt_;
  const QuantPlan& plan_;
  const QuantJob& job_;
  Journal& journal_;
  RopeTables ropes_;
  Phases phases_;
  BlockCoder coder_, ends_;  // of the block at hand; of the embedding, from the start, and the head, at the end
  int64_t windows_ = 0;
  std::optional<Stream> quantized_{}, full_{};
  std::vector<ExpertRecord> experts_{};
  std::vector<KvRecord> kv_scales_{};
};

}  // namespace fewbit

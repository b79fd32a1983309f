#pragma once
// Runner: a whole model resident on one device that keeps nothing from call to call: what perplexity and tests
// need.
#include <memory>
#include <span>

#include "src/run/block.h"
#include "src/run/head.h"

namespace fewbit {

class Runner {
 public:
  Runner(Exec& ex, const Checkpoint& ckpt, const LoadOptions& options);
  Exec& exec() const { return ex_; }
  const ModelSpec& spec() const { return spec_; }  // of several ranks, that of this one
  DType dtype() const { return options_.dtype; }
  const std::vector<std::string>& notes() const { return notes_; }  // linears without a packed kernel, one line each

  // States after the embedding and after each block: `ids` [seqs, len]. `observe(i, x)` is called with i = 0
  // … layers (the last one before the final norm); may be empty. Returns x [seqs * len, hidden].
  Tensor hidden(std::span<const int32_t> ids, int64_t seqs,
                const std::function<void(int64_t, ConstTensorView)>& observe = {});
  // Blocks [first, last) on states x [seqs * len, hidden], in place. Not of a model whose blocks read more than x
  // (keeps_slots, reads_tokens).
  void run_blocks(TensorView x, int64_t seqs, int64_t first, int64_t last);
  // The weights of a block: a measurement may swap some for others of the same shape.
  BlockWeights& block(int64_t layer) { return blocks_[static_cast<size_t>(layer)]; }
  // Final norm and head of given rows of x: f32 [rows, vocab], soft cap applied.
  Tensor logits(ConstTensorView x);
  // x after the final norm, compute dtype.
  Tensor final_normed(ConstTensorView x);
  // NLL of ids[s, i] given ids[s, 0 … i-1] for every s and first <= i < len: f32 [seqs, len - first] on the host.
  // Memory of the logits is bounded (src/run/head.h).
  std::vector<float> nll(std::span<const int32_t> ids, int64_t seqs, int64_t first = 1);
  // Device time of every following pass is added up by phase; null = not measured. The clock must outlive its use.
  void measure(PhaseClock* clock) { clock_ = clock; }
  int64_t weight_bytes() const;

 private:
  void need_kv(int64_t seqs, int64_t len);
  void run_block_of(int64_t layer, TensorView x, ConstTensorView positions, ConstTensorView ids, int64_t seqs);

  Exec& ex_;
  ModelSpec spec_;
  LoadOptions options_;
  std::vector<std::string> notes_;
  Ends ends_;
  std::vector<BlockWeights> blocks_;
  RopeTables ropes_;                    // fitted to the length of every pass
  std::unique_ptr<SlotBuffers> slots_;  // of the largest batch so far
  PhaseClock* clock_ = nullptr;
  // With a quantized cache keys and values go through one too, so that the losses are those of the engine: the
  // memory of one layer of each kind, for kv_seqs_ sequences of kv_len_ tokens.
  std::vector<KvStorage> kv_;
  std::vector<LatentStorage> latents_;
  std::vector<KvStaticScales> kv_scales_;  // per layer
  int64_t kv_seqs_ = 0, kv_len_ = 0;
};

}  // namespace fewbit

#pragma once
// Engine: a whole model resident with a key/value cache: prefill, decode steps, graph capture per batch size. It runs
// the same op list as Runner; only the attention differs.
#include <functional>
#include <span>

#include "src/run/runner.h"
#include "src/run/sampler.h"

namespace fewbit {

struct EngineOptions {
  LoadOptions load{};
  int64_t batch = 1;
  int64_t capacity = 2048;      // positions per sequence
  int64_t prefill_chunk = 2048; // tokens per prefill pass
  bool graph = true;            // record the decode step (CUDA)
};

class Engine {
 public:
  Engine(Exec& ex, const Checkpoint& ckpt, const EngineOptions& options);
  const ModelSpec& spec() const { return spec_; }

  void reset();  // forgets all sequences
  // Fills the cache with `ids` [batch, len] and returns the logits of the last position, f32 [batch, vocab] on the
  // device; valid until the next call. Error{usage} when the capacity would be exceeded.
  ConstTensorView prefill(std::span<const int32_t> ids);
  // One step: feeds `next` [batch] i32 (on the device), returns logits as prefill() does.
  ConstTensorView decode(ConstTensorView next);
  // One greedy step that stays on the device: feeds the tokens chosen by the step before (or by greedy_start), writes
  // the next ones. For measuring latency without a host round trip.
  void greedy_start(ConstTensorView logits);
  void greedy_step();
  std::vector<int32_t> greedy_tokens();  // the tokens that the next step would feed, [batch]; waits
  int64_t length() const { return length_; }
  int64_t weight_bytes_per_token() const;  // weights one decode step reads (embedding row excluded, head included)
  int64_t kv_bytes_per_token(int64_t context) const;
  std::vector<std::string> kernel_table() const;  // "24 x marlin4, 1 x dense head"
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void forward(int64_t len, TensorView x, ConstTensorView positions);
  void decode_body();

  Exec& ex_;
  ModelSpec spec_;
  EngineOptions options_;
  Ends ends_;
  std::vector<BlockWeights> blocks_;
  RopeTables ropes_;
  std::vector<std::string> notes_;
  std::vector<Tensor> k_cache_, v_cache_;  // per layer, [batch, kv_heads, capacity, head_dim]
  SlotBuffers prefill_slots_, decode_slots_;
  Tensor prefill_x_, x_, last_, normed_, logits_, next_, positions_, prefill_positions_;
  RecordedGraph step_graph_;
  bool recorded_ = false;
  int64_t length_ = 0;
};

// Generates up to `max_new` tokens after `prompt`; stops at an eos of the spec. `on_token` sees each id as it is
// chosen (may be empty). Greedy when options.temperature == 0.
std::vector<int32_t> generate(Exec&, Engine&, std::span<const int32_t> prompt, int64_t max_new,
                              const SamplerOptions& options,
                              const std::function<void(int32_t)>& on_token = {});

}  // namespace fewbit
